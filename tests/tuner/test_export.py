"""A setting and its knobs in every format: for programs, by hand, for schedulers and in other programs' words; and its
start line."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_lab import run_meshtune

from meshtune.runners.base import JobSpec, Start
from meshtune.runners.json_files import write_files
from meshtune.runners.outcome import Verdict, read_result
from meshtune.runners.programs.dialects.base import CannotExpress
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.spec import Backend
from meshtune.tuner.results.export import (
    FORMATS,
    Export,
    NothingToExport,
    export_files,
    export_of,
    handover_of,
    note_of,
)
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

SHARDED = Plan(dp=4, micro_batch_size=2, zero_stage=2)
GPUS = {"name": "toy", "devices_per_node": 4, "nodes": 1, "device": {"name": "x", "kind": "cuda", "memory_bytes": 1}}


@pytest.fixture
def setting(lab, make, tmp_path):
    """The plan of a finished campaign of one plan, with changes to its spec."""

    def build(plan=None, runner: Backend | None = None, options=None, **over) -> Export:
        campaign = make.campaign(lab.spec(**over), CampaignState.COMPLETED)
        plan = plan or Plan(dp=4, micro_batch_size=2)
        (entry,) = rank(campaign, [make.trial(0, make.measurement(1.0), plan=plan)])
        if runner is not None:
            campaign = replace(campaign, spec=replace(campaign.spec, runner=runner))
        return export_of(campaign, entry, tmp_path, options)

    return build


def test_by_default_the_setting_and_the_files_of_its_job_are_written(setting, tmp_path):
    paths = write_files(tmp_path / "a" / "b", export_files(setting()))
    assert [path.name for path in paths] == ["setting.json", "plan.json"]
    written, plan = (json.loads(path.read_text()) for path in paths)
    assert written["plan"] == plan
    assert written["plan_key"] == "tp1 pp1 dp4 mbs2 ga1 zero0"


def test_a_plan_without_words_is_refused_in_the_programs_own(setting):
    with pytest.raises(CannotExpress, match=r"cannot run this plan: plan: zero_stage\(1\) with pp\(1\)"):
        export_files(setting(plan=replace(SHARDED, zero_stage=1)), "torchtitan")


@pytest.mark.parametrize(("kind", "options"), [("slurm", {"partition": "gpu"}), ("fake", {})])
def test_a_script_takes_the_options_of_a_runner_of_its_kind(setting, tmp_path, kind, options):
    texts = export_files(setting(runner=Backend(kind=kind, options=options)), "slurm")
    assert list(texts) == ["plan.json", "gang.json", "job.sbatch"]
    assert ("#SBATCH --partition=gpu" in texts["job.sbatch"]) == bool(options)
    assert str(tmp_path) in texts["job.sbatch"]


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("slurm", {"partition": "gpu", "account": "me"}, ["#SBATCH --partition=gpu", "#SBATCH --account=me"]),
        ("pbs", {"queue": "debug"}, ["#PBS -q debug"]),
        ("jobset", {"image": "example.org/x", "queue": "tuning"}, ["kind: JobSet", "image: example.org/x", "tuning"]),
        ("trainjob", {"image": "example.org/x"}, ["kind: TrainJob", "image: example.org/x"]),
    ],
)
def test_every_scheduler_gets_a_script_with_the_options_that_were_named(setting, kind, options, words):
    export, format = setting(options=options), FORMATS[kind]
    texts = export_files(export, kind)
    assert {"plan.json", format.script} <= set(texts)
    assert ("gang.json" in texts) == (kind in ("slurm", "pbs"))
    for word in words:
        assert word in texts[format.script]
    assert format.command(export, texts).endswith(f" {format.script}")


def test_a_script_for_slurm_asks_for_devices_where_they_are_gpus(setting):
    assert "#SBATCH --gres=gpu:4" in export_files(setting(cluster=GPUS), "slurm")["job.sbatch"]
    assert "--gres" not in export_files(setting(), "slurm")["job.sbatch"]
    other = export_files(setting(cluster=GPUS, options={"gres": "gpu:h100"}), "slurm")["job.sbatch"]
    assert "#SBATCH --gres=gpu:h100:4" in other


def test_a_simulated_job_has_no_script(setting):
    with pytest.raises(NothingToExport, match=r"^campaign c \(simulated\) has no job that a scheduler could run"):
        export_files(setting(runner=Backend(kind="simulated")), "slurm")
    export = setting(runner=Backend(kind="simulated"), options={"program": "megatron", "partition": "gpu"})
    files = export_files(export, "slurm")
    assert "#SBATCH --partition=gpu" in files["job.sbatch"]
    assert "--train-iters" in files["launch.sh"]


# Start lines


@pytest.fixture
def line(setting):
    """The line for a format, on so many nodes. job: instead of the setting's."""

    def build(format: str, nodes: int = 1, job: JobSpec | None = None, **options) -> str:
        export = setting(plan=SHARDED, options=options)
        gpu = replace(export.spec.cluster.device, kind=DeviceKind.CUDA)
        cluster = replace(export.spec.cluster, nodes=nodes, device=gpu)
        spec, plan = replace(export.spec, cluster=cluster), Plan(dp=cluster.devices, zero_stage=2)
        export = replace(export, spec=spec, plan=plan, job=job or export.job)
        files = FORMATS[format].render(export)
        for name in re.findall(r"[\w-]+\.(?:json|yaml|toml|args)", FORMATS[format].command(export, files)):
            assert format == "job" or name in files
        return FORMATS[format].command(export, files)

    return build


def job(command: tuple[str, ...], **changes) -> JobSpec:
    return JobSpec(name="a", command=command, directory=Path("/work"), time_limit_s=60.0, **changes)


def test_several_nodes_are_told_who_they_are(line):
    assert "--nnodes 2 --nproc_per_node 4 --node_rank $NODE_RANK --master_addr $MASTER_ADDR" in line("torchtitan", 2)
    assert "$NODE_RANK" not in line("torchtitan", 1)
    assert "--machine_rank $NODE_RANK" in line("accelerate", 2)
    assert "--num_nodes 2 --num_gpus 4" in line("deepspeed", 2)


def test_the_program_is_the_campaigns_own_where_it_names_one(line):
    assert line("deepspeed", script="/my train.py").endswith("'/my train.py' --deepspeed_config ds_config.json")
    assert " --module train --deepspeed_config " in line("deepspeed", module="train")
    assert " /there/a.py " in line("deepspeed", script="a.py", directory="/there")


def test_the_trainer_starts_its_own_ranks_on_one_machine(line):
    trainer = ("/venv/bin/python", "-m", "meshtune.runners.trainer", "job.json")
    assert line("job", job=job(trainer, devices_per_node=4)) == "python -m meshtune.runners.trainer job.json"
    two = job(trainer, devices_per_node=4, nodes=2)
    assert line("job", 2, two) == "srun --nodes=2 --ntasks-per-node=4 python -m meshtune.runners.trainer job.json"


def test_another_program_is_started_by_torchrun_with_its_environment(line):
    own = job(("train", "--x", "a b"), devices_per_node=2, env={"A": "b c"})
    assert line("job", job=own) == "torchrun --nnodes 1 --nproc_per_node 2 --no-python env 'A=b c' train --x 'a b'"
    assert line("job", job=job(("train",))) == "train"
    # What is started once per node starts its own ranks.
    assert line("job", 2, job(("train",), nodes=2, devices_per_node=2, start=Start.NODE)) == "train"


# The command


@pytest.mark.parametrize("url", ["file"], indirect=True)
def test_the_command_writes_a_format_with_its_options_and_nothing_for_a_mistake(lab, url, tmp_path):
    id = lab.create(budget={"trials": 1}, space={"tp": [1], "pp": [1], "zero_stage": [1], "micro_batch_size": [1]})
    lab.run(id)

    def export(*arguments: str):
        place = ["--home", str(lab.home.root), "--db", url, "-o", "out"]
        return run_meshtune(tmp_path, "export", id, *place, *arguments)

    for arguments, words in (
        (["--format", "slum"], "no export format is called 'slum'; did you mean 'slurm'?"),
        (["--format", "jobset"], "--format jobset: needs --option image=..."),
        (["--format", "trainjob", "--option", "imag=x"], "--option imag: is not a known key; did you mean 'image'?"),
        (["--format", "pbs", "--option", "queue=[]"], "--format pbs: --option queue: must be"),
        (["--format", "json", "--option", "queue=gpu"], "--option queue: --format json has no options"),
        (["--option", "queue=gpu"], "--option queue: the formats json and job have no options"),
        (["--format", "slurm", "--option", "partition"], "--option partition: must be name=value"),
        (["--format", "slurm", "--option", "a={"], "--option a: is not YAML: "),
        (["--format", "torchtitan"], "cannot run this plan: plan: zero_stage(1) with pp(1)"),
    ):
        done = export(*arguments)
        assert (done.code, done.out) == (2, "")
        assert words in done.err
        assert "Traceback" not in done.err
    assert not (tmp_path / "out").exists()
    done = export("--format", "slurm", "--option", "partition=gpu", "--option", "setup=[module load x, y]")
    assert done.out.splitlines() == [f"wrote out/{name}" for name in ("plan.json", "gang.json", "job.sbatch")]
    assert done.err.startswith("start it in out: sbatch job.sbatch\n")
    assert "trains nothing" in done.err
    script = (tmp_path / "out" / "job.sbatch").read_text()
    assert "#SBATCH --partition=gpu" in script
    assert "\nmodule load x\ny\n" in script


@pytest.mark.long
@pytest.mark.slurm
def test_an_exported_script_runs_its_job_on_a_real_slurm(slurm, setting, tmp_path):
    tiny = {"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq_len": 16}
    few = {"kind": "torch", "measuring": {"max_warmup_steps": 1, "min_steps": 6, "max_steps": 6}}
    cluster = {"preset": "local-cpu", "devices_per_node": 2}
    export = setting(plan=Plan(dp=2), model=tiny, workload=few, cluster=cluster, global_batch_size=2)
    write_files(tmp_path, export_files(export, "slurm"))
    subprocess.run(["sbatch", tmp_path / "job.sbatch"], check=True, timeout=30, stdout=subprocess.DEVNULL)
    give_up = time.monotonic() + 90
    while not (tmp_path / "result.json").exists():
        assert time.monotonic() < give_up, list(tmp_path.iterdir())
        time.sleep(0.1)
    assert read_result(tmp_path).verdict is Verdict.OK


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
def with_knobs(make: Any, tmp_path: Path) -> Any:
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


def line_of(export: Export, name: str) -> str:
    files = export_files(export, name)
    command = FORMATS[name].command
    assert command is not None
    return command(export, files)


def test_megatrons_script_sets_variables_and_gives_arguments(with_knobs: Any) -> None:
    script = export_files(with_knobs("megatron"), "megatron")["launch.sh"]
    assert "export NCCL_ALGO=Ring" in script
    assert "--fp8-format hybrid" in script
    assert "--nproc_per_node 2" in script or "--nproc-per-node 2" in script


def test_deepspeeds_configuration_has_the_keys_and_its_line_the_rest(with_knobs: Any) -> None:
    export = with_knobs("deepspeed")
    config = json.loads(export_files(export, "deepspeed")["ds_config.json"])
    assert config["zero_optimization"]["reduce_bucket_size"] == 5000
    told = line_of(export, "deepspeed")
    assert told.startswith("env NCCL_ALGO=Ring deepspeed --num_nodes 1 --num_gpus 2")
    assert told.endswith("--flash")


def test_torchtitans_flags_have_the_keys(with_knobs: Any) -> None:
    export = with_knobs("torchtitan")
    texts = "\n".join(export_files(export, "torchtitan").values())
    assert "compile.enable" in texts
    assert line_of(export, "torchtitan").startswith("env NCCL_ALGO=Ring torchrun --nnodes 1 --nproc_per_node 2")


@pytest.mark.parametrize("kind", KNOBS)
def test_the_job_and_the_schedulers_script_have_all_of_them_and_json_the_values(with_knobs: Any, kind: str) -> None:
    export = with_knobs(kind)
    texts = "\n".join([*export_files(export, "job").values(), line_of(export, "job")])
    assert "NCCL_ALGO" in texts
    assert any(word in texts for word in ("--fp8-format", "reduce_bucket_size", "compile.enable"))
    assert "NCCL_ALGO" in "\n".join(export_files(export, "slurm").values())
    written = json.loads(export_files(export, "json")["setting.json"])
    assert written["plan"]["knobs"] == {**VALUES[kind], "algo": "Ring", "devices": 2}


def test_another_program_gets_the_variables_and_the_warning_names_the_rest(with_knobs: Any) -> None:
    export = with_knobs("deepspeed")
    script = export_files(export, "megatron")["launch.sh"]
    assert "export NCCL_ALGO=Ring" in script
    assert "--flash" not in script
    handover = handover_of(export, "megatron")
    assert handover is not None
    assert "knobs there, not told here: bucket = 5000, flash = on" in handover.differs
    assert handover.untold == ("bucket = 5000", "flash = on")


@pytest.mark.parametrize(("framework", "told"), [("megatron-core", True), ("fsdp", False)])
def test_the_arguments_of_a_simulated_program_are_in_the_launch_of_that_program(
    with_knobs: Any, framework: str, told: bool
) -> None:
    export = with_knobs("deepspeed")
    workload = Backend(kind="simulated", options={"framework": framework})
    export = replace(export, spec=replace(export.spec, workload=workload))
    assert ("--flash" in export_files(export, "megatron")["launch.sh"]) == told
    handover = handover_of(export, "megatron")
    assert handover is not None
    assert handover.untold == (("bucket = 5000",) if told else ("bucket = 5000", "flash = on"))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("megatron", "bash launch.sh"),
        ("deepspeed", "torchrun --nnodes 1 --nproc_per_node 2 /tmp/train.py"),
        ("torchtitan", "-m torchtitan.train"),
    ],
)
def test_a_scheduler_starts_the_training_of_the_program_that_was_measured(
    with_knobs: Any, kind: str, words: str
) -> None:
    export = with_knobs(kind)
    files = export_files(export, "slurm")
    assert files.keys() > export_files(export, kind).keys()
    assert words in json.loads(files["gang.json"])["command"][-1]
    assert "--train-iters 25" not in "".join(files.values())
    assert note_of(export, "slurm") == ""
    # What measured it is there by its name, and says what it is.
    measures = replace(export, options={"program": "job"})
    assert json.loads(export_files(measures, "slurm")["gang.json"])["command"] == list(export.job.command)
    assert "trains nothing" in note_of(measures, "slurm")


def test_a_scheduler_starts_another_program_with_its_options_and_its_warning(setting: Any) -> None:
    options = {"program": "megatron", "steps": 5000, "script": "/my/pretrain.py", "partition": "gpu"}
    export = setting(options=options)
    files = export_files(export, "slurm")
    assert "--train-iters 5000" in files["launch.sh"]
    assert "/my/pretrain.py" in files["launch.sh"]
    assert "#SBATCH --partition=gpu" in files["job.sbatch"]
    assert handover_of(export, "slurm").program == "Megatron"
    with pytest.raises(InvalidValue, match="program: must be one of job, megatron"):
        export_files(setting(options={"program": "megatro"}), "slurm")
