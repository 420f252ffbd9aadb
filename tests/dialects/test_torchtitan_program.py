"""torchtitan's own programs: its ConfigManager parses what every plan of a space is written as, and says the plan back;
its trainer runs on CPU processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_lab import run_campaign
from places import cluster
from torchtitan_lab import ON_CPU, RELEASES, environment

from meshtune.runners.programs.dialects.config_import import flat
from meshtune.runners.programs.torchtitan.configuration import KEYS_0_2, KEYS_0_3, ONLY_0_2_0, SECTIONS_0_3, SINCE_0_2_1
from meshtune.runners.programs.torchtitan.options import Release, TorchtitanOptions, capabilities_of
from meshtune.runners.programs.torchtitan.reader import is_log, read_log
from meshtune.runners.programs.workloads.base import JobRequest
from meshtune.runners.registry import create_workload
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import SpaceContext
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute, Schedule
from meshtune.search_spaces.space import Bounds, Space

LLAMA = ModelSpec(name="8B", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, seq_len=8192)
CLUSTER = cluster(1, 8, "cuda", memory_bytes=2**36)
# What has a word of its own, each in some plan; the wide one has all that go together.
NARROW = Bounds(
    tp=(1, 2),
    pp=(1, 4),
    cp=(1, 2),
    vpp=(1, 2, 4),
    micro_batch_size=(1,),
    zero_stage=(0, 3),
    recompute=(Recompute.NONE, Recompute.FULL),
    schedule=(Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
)
WIDE = Bounds(
    tp=(1, 2),
    pp=(1, 4),
    cp=(1, 2),
    vpp=(1, 2, 4),
    micro_batch_size=(2,),
    recompute=tuple(Recompute),
    recompute_interval=(1, 2),
    schedule=tuple(Schedule),
    sequence_parallel=(True, False),
    context=tuple(ContextParallel),
)
KINDS = {"0.2.0": Release.TOML_0_2_0, "0.2.1": Release.TOML, "0.2.2": Release.TOML, "0.3.0": Release.FLAGS}


def options_of(version: str) -> dict:
    release = KINDS[version]
    if release.has_file:
        return {"release": release, "config": {"model": {"name": "llama3", "flavor": "8B"}}}
    return {"release": release, "arguments": ["--module llama3", "--config llama3_8b"]}


def plans_of(version: str, bounds: Bounds, cluster: ClusterSpec = CLUSTER, model: ModelSpec = LLAMA) -> Space:
    able = capabilities_of(TorchtitanOptions(**options_of(version)))
    return Space(bounds, SpaceContext(model=model, cluster=cluster, global_batch_size=64, capabilities=able))


def parsed(version: str, plans: Space, folder: Path, **options) -> list[dict]:
    """The configuration that torchtitan reads of each plan's trial."""
    workload = create_workload("torchtitan", {**options_of(version), **options})
    lines = []
    for number, plan in enumerate(plans):
        place = folder / str(number)
        place.mkdir()
        job = workload.materialize(JobRequest(f"t{number}", LLAMA, plan, CLUSTER, place, seed=7, time_limit_s=60))
        for name, text in job.files.items():
            (place / name).write_text(text)
        lines.append(json.dumps(job.command[3:]))
    program = [sys.executable, str(ON_CPU / "parse_configs.py"), str(CLUSTER.devices)]
    done = subprocess.run(
        program, input="\n".join(lines), env=environment(version), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_all(version: str, bounds: Bounds, folder: Path) -> None:
    plans = plans_of(version, bounds)
    documents = parsed(version, plans, folder)
    assert len(documents) == len(plans) > 0
    keys = flat(documents[0]).keys()
    if KINDS[version].has_file:
        # 0.2.2 has two keys that 0.2.1 has not.
        missing = KEYS_0_2 - keys - (SINCE_0_2_1 if version == "0.2.0" else ONLY_0_2_0)
        assert (keys - KEYS_0_2, len(missing)) == (set(), 2 if version == "0.2.1" else 0)
    else:
        sections = SECTIONS_0_3 - {"activation_checkpoint"}
        assert {key for key in keys if key.rpartition(".")[0] in sections} == KEYS_0_3
    for plan, document in zip(plans, documents, strict=True):
        training, parallelism = document["training"], document["parallelism"]
        replicas = parallelism["data_parallel_replicate_degree"] * parallelism["data_parallel_shard_degree"]
        said = [parallelism[f"{name}_parallel_degree"] for name in ("tensor", "pipeline", "context", "expert")]
        assert [*said, replicas] == [plan.tp, plan.pp, plan.cp, plan.ep, plan.dp]
        assert (training["global_batch_size"], training["seq_len"], training["steps"]) == (64, 8192, 25)
        assert (training if "seed" in training else document["debug"])["seed"] == 7
        # And as torchtitan would print it.
        log = f"[titan] - root - INFO - Running with configs: {json.dumps(document, indent=2)}\n"
        imported = read_log(log)
        assert is_log(log)
        assert (Plan(**imported.plan), imported.global_batch_size) == (plan, 64)
        assert {question.path for question in imported.questions} <= {"workload.arguments"}
        assert imported.model["layers"] == 32


# Of 0.2 the releases differ in a key; 0.3.0's parser takes 0.3 s a plan.
FIRST = next(iter(RELEASES))


@pytest.mark.slow
@pytest.mark.parametrize(
    "version", [pytest.param(one, marks=[] if one == FIRST else pytest.mark.long) for one in RELEASES]
)
def test_torchtitan_reads_every_plan_of_a_space_as_it_was_meant(version, tmp_path):
    check_all(version, NARROW, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", RELEASES)
def test_torchtitan_reads_every_plan_of_a_wide_space_as_it_was_meant(version, tmp_path):
    check_all(version, WIDE, tmp_path)


# torchtitan's debugmodel from 0.2.0 on, and a sequence that two CPU cores train in seconds.
TINY = {"name": "debug", "layers": 6, "hidden": 256, "heads": 16, "ffn": 768, "vocab": 2048, "seq_len": 64}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_campaign_of_the_real_trainer_measures_plans_that_train_the_same(tmp_path):
    """torchtitan 0.2.2 on two CPU processes over gloo: replicas, shards (ZeRO 2 and 3), tensor and pipeline ranks."""
    shown = ("PYTHONPATH", "OMP_NUM_THREADS")
    env = {name: value for name, value in environment("0.2.2").items() if name in shown}
    own = {
        "model": {"name": "llama3", "flavor": "debugmodel"},
        "experimental": {"custom_import": "cpu_model"},
        "optimizer": {"implementation": "foreach"},
        "lr_scheduler": {"warmup_steps": 2},
    }
    document = {
        "name": "torchtitan on CPUs",
        "model": TINY,
        "cluster": {
            "name": "two",
            "nodes": 1,
            "devices_per_node": 2,
            "device": {"name": "cpu", "kind": "cpu", "memory_bytes": 2**34},
        },
        "global_batch_size": 8,
        "space": {
            "tp": [1, 2],
            "pp": [1, 2],
            "micro_batch_size": [4],
            "zero_stage": [0, 2, 3],
            "recompute": ["none"],
        },
        "workload": {
            "kind": "torchtitan",
            "release": "v0.2",
            "dtype": "float32",
            "config": own,
            "python": sys.executable,
            "env": env,
            "steps": 6,
            "warmup_steps": 2,
        },
        "baseline": {"tp": 1, "pp": 1, "micro_batch_size": 4, "zero_stage": 3},
        "search": {"kind": "grid"},
        "budget": {"trials": 5},
        "confirm": 0,
        "trial": {"time_limit_s": 200},
    }
    result, _, trials = run_campaign(tmp_path, document, tmp_path, timeout_s=800)
    done = {trial.plan.key: trial.outcome for trial in trials}
    assert all(outcome is not None and outcome.measurement for outcome in done.values()), result.out[-3000:]
    assert len(done) == 5
    losses = {key: outcome.measurement.first_losses for key, outcome in done.items()}
    for key, said in losses.items():
        # torchtitan prints five digits behind the point.
        assert said == pytest.approx(losses["tp1 pp1 dp2 mbs4 ga1 zero3"], abs=5e-5), key
