"""Run by hand, a job tells what it measured or which rank failed first, why and at what; and it leaves no process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from jobs import alive, children, wait_for

from meshtune.runners.outcome import Verdict
from meshtune.runners.trainer.failure import Phase, first_cause, read_failures
from meshtune.runners.trainer.job import Measuring, render_job

pytestmark = pytest.mark.slow

MIB = 2**20


def test_a_measured_job_says_how_fast_it_was(run_job, make_job):
    measuring = Measuring(max_warmup_steps=1, min_steps=6, max_steps=7, profile_steps=3, loss_steps=3)
    job = make_job(plan={"dp": 2, "zero_stage": 1}, measuring=measuring)
    finished = run_job(job)
    measured = finished.measurement
    assert finished.status == 0
    assert len(measured.warmup_times_s) <= 1
    assert 6 <= len(measured.step_times_s) <= 7
    assert len(measured.first_losses) == 3
    assert len(measured.peak_memory_bytes) == 2
    assert len(measured.peak_held_bytes) == 2
    assert min(measured.peak_memory_bytes) > 0
    assert measured.tokens_per_step == 8 * 16
    assert measured.model_flops_per_token == job.model.flops_per_token
    assert "step_time_s: " in finished.output
    assert "tokens/s" not in finished.output


def test_bfloat16_trains_as_float32_does_but_for_rounding(run_job, make_job):
    exact = run_job(make_job(plan={"micro_batch_size": 8})).losses
    for plan in (
        {"micro_batch_size": 8},
        {"dp": 2, "zero_stage": 1},
        {"pp": 2, "dp": 2, "zero_stage": 3},
        {"cp": 2, "context": "ulysses", "zero_stage": 1},
        {"tp": 2, "sequence_parallel": False, "recompute": "selective"},
    ):
        rounded = run_job(make_job(plan={"micro_batch_size": 2} | plan, dtype="bfloat16")).losses
        assert rounded != exact
        assert max(abs(a - b) for a, b in zip(rounded, exact, strict=True)) < 2e-2, plan


# What a process holds beforehand differs by tens of MiB with what the warm process ran before, so the phases lie far
# apart. 1024 * 60000 logits are 234 MiB, and exist in the forward pass alone: limits of 90 to 240 MiB end it. 512 times
# 60000 values in a feed-forward block are 117 MiB: the forward pass keeps three such, the backward pass has five at
# once: limits of 430 to 580 MiB end that. 800000 * 32 weights are 98 MiB, twice: gradients are there from the start,
# and the optimizer adds two more such pairs: 600 to 760 MiB end it, below 560 the model is not even built.
LARGE_LOGITS = {"vocab": 60_000, "seq_len": 128}
LARGE_BLOCKS = {"ffn": 60_000, "layers": 1, "seq_len": 64}
LARGE_WEIGHTS = {"vocab": 800_000, "seq_len": 4}


@pytest.mark.parametrize(
    ("phase", "shapes", "plan", "limit_mib"),
    [
        (Phase.INIT, LARGE_WEIGHTS, {}, 300),
        (Phase.FORWARD, LARGE_LOGITS, {"micro_batch_size": 8}, 180),
        (Phase.BACKWARD, LARGE_BLOCKS, {"micro_batch_size": 8}, 500),
        (Phase.OPTIMIZER, LARGE_WEIGHTS, {}, 690),
    ],
)
def test_a_rank_that_runs_out_of_memory_says_in_which_phase(phase, shapes, plan, limit_mib, run_job, make_job):
    finished = run_job(make_job(plan=plan, model=shapes, memory_limit_bytes=limit_mib * MIB))
    cause = first_cause(read_failures(finished.directory))
    assert finished.status == 1
    assert cause is not None
    assert (cause.verdict, cause.phase, cause.rank, cause.echo) == (Verdict.OOM, phase, 0, False)
    assert f"failed (oom): rank 0 in {phase}: " in finished.output


def test_the_rank_that_failed_first_is_told_from_its_echoes(run_job, make_job):
    # Only the last stage makes logits: 4 * 256 * 40000 of them, 164 MB.
    shapes = {"vocab": 40_000, "seq_len": 256}
    job = make_job(plan={"pp": 2, "micro_batch_size": 4}, model=shapes, memory_limit_bytes=110 * MIB)
    finished = run_job(job)
    failures = read_failures(finished.directory)
    cause = first_cause(failures)
    assert cause is not None
    assert (cause.rank, cause.verdict) == (1, Verdict.OOM)
    assert all(failure.echo for failure in failures if failure.rank != 1)


def test_a_loss_that_is_no_number_fails_the_job(run_job, make_job):
    finished = run_job(make_job(learning_rate=1e38))
    cause = first_cause(read_failures(finished.directory))
    assert finished.status == 1
    assert cause is not None
    assert cause.verdict is Verdict.CRASHED
    assert "LossNotFinite: the loss of step" in cause.reason


ABORT = """
import os
import meshtune.runners.trainer.main as trainer_main
measure = trainer_main.measure

def break_down(*arguments):
    if os.environ["RANK"] == "1":
        os.write(2, b"malloc(): what the C library says\\n")
        os.abort()
    return measure(*arguments)

trainer_main.measure = break_down
"""


def test_a_rank_that_a_signal_ended_is_heard_from_its_log(run_job, make_job):
    finished = run_job(make_job(plan={"dp": 2}), ABORT)
    assert finished.status == 1
    head, _, log = finished.output.partition("rank 1 was killed by SIGABRT; the end of its log:\n")
    assert head.endswith("failed: ")
    assert log.startswith("malloc(): what the C library says\nFatal Python error: Aborted\n")
    assert "in break_down" in log
    assert f"--- rank-1.log\n{log.rstrip()}" in finished.logs


def test_a_terminated_gang_leaves_no_rank(tmp_path, make_job):
    measuring = Measuring(max_warmup_steps=0, min_steps=10**7, max_steps=10**7)
    (tmp_path / "job.json").write_text(render_job(make_job(plan={"dp": 2}, measuring=measuring)), encoding="utf-8")
    command = [sys.executable, "-m", "meshtune.runners.trainer", "job.json", "--directory", "."]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: (tmp_path / "rendezvous").exists() and len(children(process.pid)) == 2, 180)
        ranks = children(process.pid)
    finally:
        process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert not any(map(alive, ranks))


# Prints what a rank's torch finds when it first asks for devices, of which there are none.
ALLOCATOR_SETTINGS = """
import os, torch
for name in [name for name in os.environ if name.endswith("ALLOC_CONF")]:
    del os.environ[name]
os.environ.update(OWN)
def look():
    found = {name: value for name, value in os.environ.items() if name.endswith("ALLOC_CONF")}
    print(found, torch._C._accelerator_getAllocatorSettings(), flush=True)
    return 0
torch.accelerator.device_count = look
"""


@pytest.mark.parametrize(
    "own",
    [{}, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}, {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}],
    ids=str,
)
def test_cudas_allocator_grows_its_segments_unless_the_user_says_otherwise(own, run_job, make_job):
    finished = run_job(make_job(device="cuda"), f"OWN = {own}\n{ALLOCATOR_SETTINGS}")
    expected = own or {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert f"{expected} {next(iter(expected.values()))}\n" in finished.logs
