"""`meshtune calibrate` as a user meets it, on a simulated cluster and on this machine's CPU."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import toy
import yaml
from command_lab import Result, run_meshtune

pytestmark = pytest.mark.slow

CPU = {
    "name": "tiny",
    "model": {"preset": "gpt-micro", "layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 512, "seq_len": 64},
    "cluster": {
        "preset": "local-cpu",
        "devices_per_node": 2,
        "nodes": 64,
        "network_link": {"latency_s": 1e-3, "bandwidth_bytes_per_s": 1.2e9},
        "device": {"peak_flops": {"float32": 5e10}, "memory_bandwidth_bytes_per_s": 1.8e10},
        "node_link": {"latency_s": 8e-4, "bandwidth_bytes_per_s": 2.6e9},
    },
    "global_batch_size": 512,
    "space": {"micro_batch_size": [1, 2, 4]},
    "workload": {
        "kind": "torch",
        "compile": False,
        "measuring": {"max_warmup_steps": 1, "min_steps": 5, "max_steps": 5, "profile_steps": 0},
    },
    "runner": {"kind": "local", "idle_s": 2},
}


@pytest.fixture
def meshtune(tmp_path: Path) -> Callable[..., Result]:
    """The command in a folder with spec.yaml."""
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(toy.SPEC))
    return lambda *arguments: run_meshtune(tmp_path, *arguments)


def test_it_measures_lists_and_deletes_and_predictions_follow(meshtune, tmp_path):
    before = meshtune("estimate", "spec.yaml").out
    assert "uncalibrated: nothing was measured of toy and Megatron-DeepSpeed, fp16: times may be off" in before
    made = meshtune("calibrate", "spec.yaml", "--trials", "4")
    assert (made.code, made.err) == (0, "")
    assert "calibrating 1 x 4 devices of hpc; global batch 32 in place of 64" in made.out
    assert "is completed: calibrated toy and Megatron-DeepSpeed, fp16 (simulated) by 4 trials" in made.out
    assert "matmul_efficiency" in made.out
    assert "not to be seen in these trials, so as before:" in made.out
    (found,) = json.loads(meshtune("calibrate", "--list", "--json").out)["calibrations"]
    assert (found["device"], found["trials"], found["version"]) == ("toy", 4, "hidden cluster 1")
    assert found["campaign"] in meshtune("calibrate", "--list").out
    for command in (
        ["estimate", "spec.yaml"],
        ["project", "spec.yaml", "--nodes", "4"],
        ["run", "spec.yaml", "--dry-run"],
    ):
        assert f"of {found['campaign']} (" in meshtune(*command).out
    (tmp_path / "large.yaml").write_text(yaml.safe_dump(toy.SPEC | {"trial": {}, "global_batch_size": 2**18}))
    limit = re.search(r"\ntrial.time_limit_s .*", meshtune("spaces", "large.yaml").out)[0]
    assert limit in meshtune("run", "large.yaml", "--dry-run").out
    assert "is deleted" in meshtune("calibrate", "--delete", found["campaign"]).out
    assert json.loads(meshtune("calibrate", "--list", "--json").out) == {"calibrations": []}
    assert "basis: uncalibrated" in meshtune("estimate", "spec.yaml").out
    assert f"there is no calibration {found['campaign']}" in meshtune("calibrate", "--delete", found["campaign"]).err


def test_a_runner_that_has_not_even_the_part_is_refused(meshtune, tmp_path):
    device = toy.DEVICE | {"peak_flops": {"bfloat16": 1e14}}
    accelerators = {"cluster": toy.CLUSTER | {"device": device}, "workload": "torch", "runner": "local"}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(toy.SPEC | accelerators))
    refused = meshtune("calibrate", "spec.yaml", "--nodes", "2")
    assert refused.code == 2
    assert "the local runner has this machine's devices only" in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["spec.yaml"]


def test_json_is_the_calibration_alone(meshtune):
    found = json.loads(meshtune("calibrate", "spec.yaml", "--trials", "3", "--json").out)
    assert (found["trials"], found["devices"]) == (3, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of SPEC, --list and --delete CAMPAIGN"),
        (["spec.yaml", "--list"], "give one of SPEC, --list and --delete CAMPAIGN"),
        (["--list"], "there is no database yet"),
        (["spec.yaml", "--nodes", "3"], "nodes: must be 1 to 2, as the cluster has, not 3"),
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(meshtune, tmp_path, arguments, message):
    refused = meshtune("calibrate", *arguments)
    assert refused.code == 2
    assert message in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["spec.yaml"]


def test_a_dry_run_shows_what_would_be_measured(meshtune, tmp_path):
    told = meshtune("calibrate", "spec.yaml", "--dry-run").out
    for words in ("calibrating 1 x 4 devices", "for 8 trials", "first trial: "):
        assert words in told
    assert [path.name for path in tmp_path.iterdir()] == ["spec.yaml"]


def test_too_few_measured_trials_store_nothing(meshtune, tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(toy.SPEC | {"trial": {"time_limit_s": 61}}))
    refused = meshtune("calibrate", "spec.yaml", "--trials", "3")
    assert refused.code == 2
    assert "no calibration: 0 of 3 trials measured, 3 timed_out; it takes 3" in refused.err
    assert "the campaign ended" not in refused.err
    assert json.loads(meshtune("calibrate", "--list", "--json").out) == {"calibrations": []}


def test_this_machine_is_calibrated_by_real_training_for_a_cluster_of_64(meshtune, tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(CPU))
    made = meshtune("calibrate", "spec.yaml", "--devices", "1", "--trials", "3")
    assert (made.code, made.err) == (0, ""), made.out
    assert "calibrated cpu-process and meshtune trainer, float32 by 3 trials" in made.out
    (found,) = json.loads(meshtune("calibrate", "--list", "--json").out)["calibrations"]
    assert found["version"].startswith("torch 2.")
    assert f"of {found['campaign']} (" in meshtune("estimate", "spec.yaml").out
