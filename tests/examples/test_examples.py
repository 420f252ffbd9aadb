"""Every example is a spec as it should be, whose trials can be written down anywhere; DeepSpeed's runs for real."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import pytest
from command_lab import run_campaign
from launches import parse

from meshtune.runners.base import Start
from meshtune.runners.outcome import Verdict
from meshtune.runners.programs.workloads.base import CONTEXT_FILE, JobRequest
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.presets import described, model_presets
from meshtune.tuner.campaign.spec import workload_of
from meshtune.tuner.cli.spec_file import read_document
from meshtune.tuner.specs.read import read_spec

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PATHS = [*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("*/campaign.yaml")]


def example(name: str):
    return read_spec(read_document(EXAMPLES / name), None)


def baseline_job(name: str, directory: Path):
    spec, _ = example(name)
    workload = workload_of(spec)
    return workload.materialize(
        JobRequest("t", spec.model, spec.baseline, spec.cluster, directory, seed=0, time_limit_s=9)
    )


@pytest.mark.parametrize("name", sorted(str(path.relative_to(EXAMPLES)) for path in PATHS))
def test_an_example_is_a_spec_with_a_space_and_a_legal_baseline(name):
    spec, space = example(name)
    assert len(space) >= (spec.budget.trials or 0) > 0
    assert spec.baseline is not None
    assert space.explain(spec.baseline, ignore_bounds="/" not in name) == []


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            "dense-axes.yaml",
            {
                "schedule": {"1f1b", "interleaved", "zero_bubble"},
                "recompute": {"none", "selective", "full"},
                "tp": {1, 2, 4},
                "pp": {1, 2, 4},
                "vpp": {1, 2},
                "zero_stage": {0, 1, 3},
            },
        ),
        (
            "bring-your-own/campaign.yaml",
            {"micro_batch_size": {1, 2, 4, 8}, "zero_stage": {0, 1}, "recompute": {"none", "full"}},
        ),
        ("megatron/campaign.yaml", {"vpp": {1, 2, 4}, "context": {"all_gather", "ring"}}),
    ],
)
def test_an_example_has_every_axis_that_it_speaks_of(name, values):
    plans = list(example(name)[1])
    assert {axis: {getattr(plan, axis) for plan in plans} for axis in values} == values


@pytest.mark.parametrize(
    ("name", "plan", "rule"),
    [
        ("deepspeed", {"tp": 2, "zero_stage": 0}, "deepspeed-sequence-parallel"),
        ("torchtitan", {"tp": 8, "zero_stage": 1}, "zero"),
        ("megatron", {"tp": 2, "pp": 4, "vpp": 2, "schedule": "interleaved", "zero_stage": 3}, "zero"),
    ],
)
def test_an_example_explains_what_its_program_cannot(name, plan, rule):
    _, space = example(f"{name}/campaign.yaml")
    broken = space.explain(space.complete(micro_batch_size=1, **plan), ignore_bounds=True)
    assert {violation.constraint for violation in broken} == {rule}


def test_a_trial_of_the_deepspeed_example_is_the_script_and_its_config(tmp_path):
    job = baseline_job("deepspeed/campaign.yaml", tmp_path)
    assert job.command[3:6] == (str(EXAMPLES / "deepspeed"), "python3", "train.py")
    assert job.command[job.command.index("--hidden") + 1] == "64"
    config = json.loads(job.files["ds_config.json"])
    assert (config["train_batch_size"], config["gradient_accumulation_steps"]) == (16, 8)
    assert config["optimizer"]["type"] == "AdamW"


def test_a_trial_of_the_torchtitan_example_is_one_line_of_flags(tmp_path):
    job = baseline_job("torchtitan/campaign.yaml", tmp_path)
    assert set(job.files) == {"torchtitan.args", CONTEXT_FILE}
    assert job.command[4:11] == (*("python3", "-m", "torchtitan.train", "--module", "llama3", "--config", "llama3_8b"),)
    assert (job.command[-1], job.processes) == ("activation-checkpoint:selective", 16)


def test_a_trial_of_the_megatron_example_is_a_script_that_needs_no_more(tmp_path):
    job = baseline_job("megatron/campaign.yaml", tmp_path)
    assert (job.nodes, job.devices_per_node, job.processes, job.start) == (4, 8, 32, Start.DEVICE)
    assert set(job.files) == {"launch.sh", "megatron-args.txt", CONTEXT_FILE}
    head = ["module load cuda/12.8", "source /opt/venvs/megatron/bin/activate", "cd /opt/Megatron-LM", "ARGS=("]
    for words in ("\n".join(head), "--tensor-model-parallel-size 2\n", "--train-iters 25\n"):
        assert words in job.files["launch.sh"]


def test_the_launch_script_of_megatron_imports_as_the_example():
    spec, space = example("megatron/campaign.yaml")
    imported = parse((EXAMPLES / "megatron" / "launch.sh").read_text(encoding="utf-8"))
    assert imported.questions == ()
    assert Plan(**imported.plan) == spec.baseline
    assert space.explain(Plan(**imported.plan)) == []
    preset = described(model_presets()["llama3-8b"])
    assert ModelSpec(name="m", **imported.model) == ModelSpec(**{**preset, "name": "m"})
    assert (imported.nodes, imported.devices_per_node) == (spec.cluster.nodes, spec.cluster.devices_per_node)


# A sequence's logits are 16 MB: those of one at a time fit, of eight, which are one chunk, do not. The smallest limit
# that a run of one needs lies between 65 and 85 MiB: what a process holds before varies.
TIGHT = {
    "name": "tight",
    "model": {"layers": 1, "hidden": 16, "heads": 2, "ffn": 32, "vocab": 32_000, "seq_len": 128},
    "cluster": {"preset": "local-cpu", "devices_per_node": 2, "device": {"memory_bytes": 112 * 2**20}},
    "global_batch_size": 16,
    "space": {"tp": [1], "pp": [1], "zero_stage": [0], "micro_batch_size": [1, 8], "recompute": ["none"]},
    "workload": {"kind": "torch", "measuring": {"max_warmup_steps": 1, "min_steps": 3, "max_steps": 4}},
    "baseline": {"micro_batch_size": 1, "zero_stage": 0},
    "search": "grid",
    "runner": {"kind": "local", "idle_s": 0.5},
    "budget": {"trials": 2},
    "confirm": 0,
}


@pytest.mark.slow
def test_what_breaks_the_memory_limit_ends_oom_with_its_phase_and_rank_and_what_keeps_it_is_recommended(tmp_path):
    finished, _, (fits, breaks) = run_campaign(tmp_path, TIGHT, ROOT)
    assert finished.code == 0, finished.out + finished.err
    assert (fits.plan.micro_batch_size, fits.verdict) == (1, Verdict.OK), finished.out
    assert (breaks.plan.micro_batch_size, breaks.verdict) == (8, Verdict.OOM), finished.out
    outcome = breaks.outcome
    assert outcome.measurement is None
    assert outcome.phase in ("forward", "backward")
    assert outcome.failed_rank in (0, 1)
    assert "you tried to allocate" in outcome.reason.splitlines()[0][:100]
    assert "1 oom" in finished.out
    assert f"Recommended: {fits.plan.key}" in finished.out


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
    document = read_document(EXAMPLES / "deepspeed" / "campaign.yaml")
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
    assert "Recommended: tp" in finished.out
    for trial in trials:
        measured = trial.outcome.measurement
        # Of 8 steps DeepSpeed times all but the first two, and the third is warm-up.
        assert (len(measured.warmup_times_s), len(measured.step_times_s)) == (1, 5)
        assert (measured.tokens_per_step, measured.devices, measured.peak_memory_bytes) == (16 * 64, 2, ())
        assert 0 < sum(measured.step_times_s) < took_s
    assert [trial.plan.tp for trial in trials] == [1, 2]
