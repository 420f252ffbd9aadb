"""The deepspeed workload: a short run that tells every step, measured by lines that DeepSpeed's own code writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from workload_lab import WorkloadLab

from meshtune.runners.base import Cause, Start
from meshtune.runners.outcome import Measurement, Outcome, Verdict, write_result
from meshtune.runners.programs.workloads.base import CONTEXT_FILE
from meshtune.runners.registry import create_workload
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.plan import Plan

PLAN = Plan(dp=8, micro_batch_size=2, grad_accum_steps=2, zero_stage=1)
LAB = WorkloadLab("deepspeed", PLAN, script="/opt/train.py", steps=6, warmup_steps=3)
workload, materialize = LAB.workload, LAB.materialize
PIPELINE = {"pipeline_module": True, "arguments": ["--stages {pp}"]}


def throughput(global_step: int, batch: int, seconds: float, gib: float = 3.25, accumulation: int = 2) -> str:
    """DeepSpeed 0.19.8, deepspeed/utils/timer.py, ThroughputTimer.stop, through utils/logging.py's formatter."""
    message = f"epoch={0}/micro_step={global_step * accumulation}/global_step={global_step}, "
    message += f"RunningAvgSamplesPerSec={123.4567890123}, CurrSamplesPerSec={batch / (seconds + 1e-6)}, "
    message += f"MemAllocated={round(gib / 2, 2)}GB, MaxMemAllocated={round(gib, 2)}GB"
    return f"[2026-11-22 00:07:48,479] [INFO] [timer.py:264:stop] {message}"


def batch_size(batch: int) -> str:
    """DeepSpeed 0.19.8, deepspeed/runtime/config.py, DeepSpeedConfig.print: arg, dots, value."""
    arg = "train_batch_size"
    return "[2026-11-22 00:07:48,360] [INFO] [config.py:678:print]   {} {} {}".format(arg, "." * (29 - len(arg)), batch)


def progress(step: int) -> str:
    """DeepSpeed 0.19.8, deepspeed/runtime/engine.py, _report_progress, by log_dist."""
    message = f"step={step}, skipped={0}, lr={[0.001]}, mom={[(0.9, 0.999)]}"
    return f"[2026-11-22 00:07:48,445] [INFO] [logging.py:123:log_dist] [Rank 0] {message}"


def wall_clock(milliseconds: float) -> str:
    """DeepSpeed 0.19.8, deepspeed/utils/timer.py, SynchronizedWallClockTimer.log, by print_dist."""
    string = "time (ms)"
    for name in ("fwd", "bwd", "bwd_inner", "bwd_allreduce", "step"):
        string += f" | {name}: {milliseconds:.2f}"
    return f"[Rank 0] {string}"


def pipeline_step(step: int, batch: int, seconds: float, loss: float) -> str:
    """DeepSpeed 0.19.8, deepspeed/runtime/pipe/engine.py, PipelineEngine.train_batch."""
    return f"steps: {step} loss: {loss:0.4f} iter time (s): {seconds:0.3f} samples/sec: {batch / seconds:0.3f}"


def outcome(folder: Path, lines: list[str], **given) -> Outcome:
    """What the workload reads from these lines of rank 0."""
    return LAB.outcome(folder, {0: lines}, **given)


def steps(batch: int, of: int = 6) -> list[str]:
    """Of the steps from the third on, which are the ones that are timed: 0.3, 0.4, 0.5 ... seconds."""
    return [throughput(step, batch, step / 10) for step in range(3, of + 1)]


def test_a_trial_is_the_users_script_once_per_device_with_its_own_config(tmp_path):
    job = materialize(tmp_path, arguments=["--config {config} --steps {steps}", "--seed {seed} --hidden {hidden}"])
    config = str(tmp_path / "ds_config.json")
    told = ("--config", config, "--steps", "6", "--seed", "7", "--hidden", "64")
    assert job.command == ("python3", "/opt/train.py", *told)
    assert (job.start, job.processes, dict(job.env)) == (Start.DEVICE, 8, {})
    assert set(job.files) == {"ds_config.json", CONTEXT_FILE}
    assert list(tmp_path.iterdir()) == []


def test_a_trial_tells_every_step_and_is_not_slowed_down_by_what_the_user_watches(tmp_path):
    own = {
        "steps_per_print": 100,
        "wall_clock_breakdown": True,
        "autotuning": {"enabled": True},
        "tensorboard": {"enabled": True, "output_path": "tb"},
        "zero_optimization": {"overlap_comm": True},
    }
    config = json.loads(materialize(tmp_path, config=own).files["ds_config.json"])
    assert (config["steps_per_print"], config["log_level"], config["wall_clock_breakdown"]) == (1, "info", False)
    assert config["timers"] == {"throughput": {"enabled": True, "synchronized": True}}
    assert "autotuning" not in config
    assert config["tensorboard"] == {"enabled": False, "output_path": "tb"}
    assert "wandb" not in config
    assert config["zero_optimization"] == {"overlap_comm": True, "stage": 1}
    assert config["train_batch_size"] == 32


def test_on_a_cpu_cluster_deepspeed_is_told_so(tmp_path):
    assert dict(materialize(tmp_path, device="cpu", env={"A": "1"}).env) == {"A": "1", "DS_ACCELERATOR": "cpu"}


def test_each_steps_own_rate_is_its_time_and_running_averages_are_nothing(tmp_path):
    lines = [batch_size(32), progress(1), wall_clock(1.0), *steps(32), progress(6), "the script's own words"]
    found = outcome(tmp_path, lines)
    measured = found.measurement
    assert (found.verdict, found.reason) == (Verdict.OK, "")
    # Warm-up is 3 steps, of which DeepSpeed times the third only; it adds 1e-6 s to each.
    assert measured.warmup_times_s == pytest.approx([0.3], abs=2e-6)
    assert measured.step_times_s == pytest.approx([0.4, 0.5, 0.6], abs=2e-6)
    assert (measured.tokens_per_step, measured.devices) == (32 * 32, 8)
    assert measured.peak_flops_per_device == 1e15
    assert measured.peak_memory_bytes == (round(3.25 * 2**30),)


AUTOTP = Plan(tp=2, dp=4, micro_batch_size=2, grad_accum_steps=2, sequence_parallel=False)


# 16 sequences per step: of every tensor rank, or of the replicas alone where the script names those.
@pytest.mark.parametrize("counted", [32, 16])
def test_with_autotp_the_samples_that_are_counted_twice_are_taken_back(counted, tmp_path):
    measured = outcome(tmp_path, [batch_size(counted), *steps(counted)], plan=AUTOTP).measurement
    assert measured.step_times_s == pytest.approx([0.4, 0.5, 0.6], abs=4e-6)
    assert measured.warmup_times_s == pytest.approx([0.3], abs=4e-6)
    assert measured.tokens_per_step == 16 * 32


def test_on_a_cpu_the_memory_of_the_whole_process_is_not_kept(tmp_path):
    assert outcome(tmp_path, steps(32), device="cpu").measurement.peak_memory_bytes == ()


def test_a_pipeline_tells_all_its_steps_and_their_losses(tmp_path):
    plan = Plan(pp=2, dp=4, micro_batch_size=2, grad_accum_steps=4)
    lines = [pipeline_step(step, 32, step / 10, 4.0 - step / 10) for step in range(1, 7)]
    measured = outcome(tmp_path, lines, plan=plan, **PIPELINE).measurement
    assert measured.warmup_times_s == pytest.approx([0.1, 0.2, 0.3], rel=1e-4)
    assert measured.step_times_s == pytest.approx([0.4, 0.5, 0.6], rel=1e-4)
    assert measured.first_losses == (3.9, 3.8, 3.7, 3.6)


@pytest.mark.parametrize(
    ("plan", "lines", "told"),
    [
        (PLAN, [batch_size(32), *(progress(step) for step in range(1, 7)), *[wall_clock(100.0)] * 6], "no line"),
        (AUTOTP, steps(32), "train_batch_size"),  # it may count every tensor rank
    ],
)
def test_a_log_that_does_not_tell_steps_or_what_it_counts_is_a_users_bug(tmp_path, plan, lines, told):
    found = outcome(tmp_path, lines, plan=plan)
    assert (found.verdict, found.cause) == (Verdict.CRASHED, Cause.USER_BUG)
    assert told in found.reason


def test_a_result_that_the_script_wrote_itself_is_taken_as_it_is(tmp_path):
    own = Measurement(step_times_s=(9.0,), tokens_per_step=512, devices=8)
    write_result(tmp_path, Outcome(verdict=Verdict.OK, measurement=own))
    assert outcome(tmp_path, [batch_size(32), *steps(32)], plan=AUTOTP).measurement == own


def test_a_workload_without_a_program_is_no_workload():
    with pytest.raises(InvalidValue, match=r"^script: is missing, and so is module$"):
        create_workload("deepspeed", {})


def test_the_physics_knows_an_optimizer_on_the_host():
    offloaded = workload(config={"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}).framework
    assert offloaded.host_optimizer
    assert not workload(
        config={"zero_optimization": {"offload_optimizer": {"device": "none"}}}
    ).framework.host_optimizer
    assert not workload().framework.host_optimizer


@pytest.mark.parametrize(
    ("config", "elements"),
    [
        ({}, 5e8),
        ({"zero_optimization": {"reduce_bucket_size": 1_000_000_000}}, 1e9),
        ({"zero_optimization": {"reduce_bucket_size": 5e7}}, 5e7),
        ({"zero_optimization": {"reduce_bucket_size": "auto"}}, 5e8),
    ],
)
def test_the_physics_knows_the_size_of_buckets(config, elements):
    assert workload(config=config).framework.bucket_weights == elements


def test_a_size_of_buckets_that_yaml_reads_as_a_word_is_refused():
    config = yaml.safe_load("zero_optimization: {stage: 2, reduce_bucket_size: 5e7}")
    with pytest.raises(InvalidValue, match=r"config\.zero_optimization\.reduce_bucket_size: 5e7 is a word"):
        workload(config=config)
