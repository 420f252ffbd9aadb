"""A gang in which nothing moves ends by itself, and the rank that says nothing is named."""

from __future__ import annotations

import os
import signal
import time

import pytest

from runners.base import JobState, JobStatus
from runners.outcome import Verdict
from runners.trainer.failure import read_failures
from runners.trainer.job import Measuring
from runners.workloads.torch import TorchWorkload

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("plan", [{"dp": 2, "zero_stage": 1}, {"tp": 2, "micro_batch_size": 8}])
def test_a_stopped_rank_ends_the_gang_after_the_stall_limit(plan, start_job, make_job):
    measuring = Measuring(max_warmup_steps=0, min_steps=10**7, max_steps=10**7, stall_s=2.0)
    running = start_job(make_job(plan=plan, measuring=measuring))
    start = time.monotonic()
    os.kill(running.ranks[1], signal.SIGSTOP)
    output, _ = running.process.communicate(timeout=120)
    assert time.monotonic() - start > 1.0
    assert running.process.returncode == 1
    assert "failed (timed_out): rank 0 in" in output
    (failure,) = read_failures(running.directory)
    assert (failure.rank, failure.verdict) == (0, Verdict.TIMED_OUT)
    assert failure.reason == "no step finished for 2 s"
    assert "in measure" in failure.traceback
    outcome = TorchWorkload({}).read(running.directory, JobStatus(state=JobState.FAILED, reason="rank 0 exited"))
    assert outcome.verdict is Verdict.TIMED_OUT
    assert outcome.failed_rank == 1
    assert outcome.reason == "no step finished for 2 s; not a word from rank 1"
    assert outcome.phase == failure.phase
