"""The DeepSpeed and torchtitan examples are specs that can be written down anywhere; DeepSpeed runs for real."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import pytest
import yaml
from command_lab import run_campaign

from meshtune.runners.outcome import Verdict
from meshtune.runners.workloads.base import CONTEXT_FILE
from meshtune.tuner.campaign.spec import workload_of
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def example(name: str):
    return read_spec(parse_yaml((EXAMPLES / name / "campaign.yaml").read_text(encoding="utf-8")), None)


@pytest.mark.parametrize("name", ["deepspeed", "torchtitan"])
def test_an_example_is_a_spec_with_a_space_and_its_baseline_in_it(name):
    spec, space = example(name)
    assert len(space) > (spec.budget.trials or 0) > 0
    assert spec.baseline in space


@pytest.mark.parametrize(
    ("name", "plan", "rule"),
    [
        ("deepspeed", {"tp": 2, "zero_stage": 0}, "deepspeed-sequence-parallel"),
        ("torchtitan", {"tp": 8, "zero_stage": 1}, "zero"),
    ],
)
def test_an_example_explains_what_its_program_cannot(name, plan, rule):
    _, space = example(name)
    broken = space.explain(space.complete(micro_batch_size=1, **plan), ignore_bounds=True)
    assert {violation.constraint for violation in broken} == {rule}


def test_a_trial_of_the_deepspeed_example_is_the_script_and_its_config(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    spec, _ = example("deepspeed")
    job = workload_of(spec).materialize("t", spec.model, spec.baseline, spec.cluster, tmp_path, seed=0, time_limit_s=9)
    assert job.command[3:6] == (str(ROOT), "python3", "examples/deepspeed/train.py")
    assert job.command[job.command.index("--hidden") + 1] == "64"
    config = json.loads(job.files["ds_config.json"])
    assert (config["train_batch_size"], config["gradient_accumulation_steps"]) == (16, 8)
    assert config["optimizer"]["type"] == "AdamW"


def test_a_trial_of_the_torchtitan_example_is_one_line_of_flags(tmp_path):
    spec, _ = example("torchtitan")
    job = workload_of(spec).materialize("t", spec.model, spec.baseline, spec.cluster, tmp_path, seed=0, time_limit_s=9)
    assert set(job.files) == {"torchtitan.args", CONTEXT_FILE}
    assert job.command[4:11] == (*("python3", "-m", "torchtitan.train", "--module", "llama3", "--config", "llama3_8b"),)
    assert (job.command[-1], job.processes) == ("activation-checkpoint:selective", 16)


# How AutoTP cuts the example's layers, which are torch's own and none that it knows.
CUTS = {
    "use_default_specs": False,
    "layer_specs": [
        {"patterns": [r".*linear1\.weight$"], "partition_type": "column"},
        {"patterns": [r".*linear2\.weight$"], "partition_type": "row"},
    ],
}


def test_deepspeed_is_here_where_it_is_installed_for_the_tests():
    assert importlib.util.find_spec("deepspeed") is not None or not os.environ.get("CI")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
def test_deepspeed_itself_is_tuned_on_processes_of_this_machine(tmp_path):
    document = yaml.safe_load((EXAMPLES / "deepspeed" / "campaign.yaml").read_text(encoding="utf-8"))
    document |= {
        "space": {"tp": [2], "pp": [1], "sequence_parallel": [False], "zero_stage": [0], "micro_batch_size": [4]},
        "baseline": {"tp": 1, "micro_batch_size": 4, "zero_stage": 2},
        "budget": {"trials": 2},
        "runner": {"kind": "local", "idle_s": 0.5},
    }
    document["workload"] |= {"python": sys.executable, "steps": 8, "warmup_steps": 3}
    document["workload"]["config"]["tensor_parallel"] = {"partition_config": CUTS}
    started = time.monotonic()
    finished, _, trials = run_campaign(tmp_path, document, ROOT)
    took_s = time.monotonic() - started
    told = finished.out + finished.err + "".join(str(trial.outcome) for trial in trials)
    assert [trial.verdict for trial in trials] == [Verdict.OK] * 2, told
    assert "Use tp" in finished.out
    for trial in trials:
        measured = trial.outcome.measurement
        # Of 8 steps DeepSpeed times all but the first two, and the third is warm-up.
        assert (len(measured.warmup_times_s), len(measured.step_times_s)) == (1, 5)
        assert (measured.tokens_per_step, measured.devices, measured.peak_memory_bytes) == (16 * 64, 2, ())
        assert 0 < sum(measured.step_times_s) < took_s
    assert [trial.plan.tp for trial in trials] == [1, 2]
