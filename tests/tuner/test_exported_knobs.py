"""Knobs in every format of a setting: variables, arguments and keys of the program that was measured, and in another
program's words the variables alone, with a warning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.results.export import FORMATS, Export, export_files, export_of, handover_of
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

CLUSTER = """
model: gpt-micro
cluster:
  preset: local-cpu
  node_link: {latency_s: 1.0e-6, bandwidth_bytes_per_s: 1.0e+10}
  device: {kind: cuda, name: x, memory_bytes: 80000000000}
global_batch_size: 8
space: {micro_batch_size: [1, 2], zero_stage: [0, 1, 2], tp: [1], pp: [1]}
runner: local
"""
COMMON = """
  algo: {values: [auto, Ring], env: NCCL_ALGO, omit: auto}
  devices: {values: [2, 4]}
"""
KNOBS = {
    "megatron": "workload: {kind: megatron, script: pretrain_gpt.py}\nknobs:\n"
    "  fp8: {values: [off, hybrid], argument: '--fp8-format {value}', omit: off}",
    "deepspeed": "workload: {kind: deepspeed, script: train.py, directory: /tmp}\nknobs:\n"
    "  bucket: {values: [1000, 5000], config: zero_optimization.reduce_bucket_size}\n"
    "  flash: {values: [off, on], argument: --flash, omit: off}",
    "torchtitan": "workload: {kind: torchtitan}\nknobs:\n  compile: {values: [false, true], config: compile.enable}",
}
VALUES: dict[str, dict[str, Any]] = {
    "megatron": {"fp8": "hybrid"},
    "deepspeed": {"bucket": 5000, "flash": "on"},
    "torchtitan": {"compile": True},
}


@pytest.fixture
def setting(make: Any, tmp_path: Path) -> Any:
    def build(kind: str) -> Export:
        document = parse_yaml(CLUSTER + KNOBS[kind] + COMMON)
        spec = read_spec(document, None)[0]
        plan = Plan(dp=2, micro_batch_size=2, grad_accum_steps=2, zero_stage=2 if kind != "megatron" else 1)
        chosen = {**VALUES[kind], "algo": "Ring", "devices": 2}
        plan = read_spec(document, None)[1].complete(**{**plan.axes_as_dict(), "knobs": chosen})
        campaign = make.campaign(spec, CampaignState.COMPLETED)
        (entry,) = rank(campaign, [make.trial(0, make.measurement(1.0, devices=2), plan=plan)])
        return export_of(campaign, entry, tmp_path)

    return build


def line(export: Export, name: str) -> str:
    files = export_files(export, name)
    command = FORMATS[name].command
    assert command is not None
    return command(export, files)


def test_megatrons_script_sets_variables_and_gives_arguments(setting: Any) -> None:
    script = export_files(setting("megatron"), "megatron")["launch.sh"]
    assert "export NCCL_ALGO=Ring" in script
    assert "--fp8-format hybrid" in script
    assert "--nproc_per_node 2" in script or "--nproc-per-node 2" in script


def test_deepspeeds_configuration_has_the_keys_and_its_line_the_rest(setting: Any) -> None:
    export = setting("deepspeed")
    config = json.loads(export_files(export, "deepspeed")["ds_config.json"])
    assert config["zero_optimization"]["reduce_bucket_size"] == 5000
    told = line(export, "deepspeed")
    assert told.startswith("env NCCL_ALGO=Ring deepspeed --num_nodes 1 --num_gpus 2")
    assert told.endswith("--flash")


def test_torchtitans_flags_have_the_keys(setting: Any) -> None:
    export = setting("torchtitan")
    texts = "\n".join(export_files(export, "torchtitan").values())
    assert "compile.enable" in texts
    assert line(export, "torchtitan").startswith("env NCCL_ALGO=Ring torchrun --nnodes 1 --nproc_per_node 2")


@pytest.mark.parametrize("kind", KNOBS)
def test_the_job_and_the_schedulers_script_have_all_of_them_and_json_the_values(setting: Any, kind: str) -> None:
    export = setting(kind)
    texts = "\n".join([*export_files(export, "job").values(), line(export, "job")])
    assert "NCCL_ALGO" in texts
    assert any(word in texts for word in ("--fp8-format", "reduce_bucket_size", "compile.enable"))
    assert "NCCL_ALGO" in "\n".join(export_files(export, "slurm").values())
    written = json.loads(export_files(export, "json")["setting.json"])
    assert written["plan"]["knobs"] == {**VALUES[kind], "algo": "Ring", "devices": 2}


def test_another_program_gets_the_variables_and_the_warning_names_the_rest(setting: Any) -> None:
    export = setting("deepspeed")
    script = export_files(export, "megatron")["launch.sh"]
    assert "export NCCL_ALGO=Ring" in script
    assert "--flash" not in script
    handover = handover_of(export, "megatron")
    assert handover is not None
    assert "knobs there, not told here: bucket = 5000, flash = on" in handover.differs
