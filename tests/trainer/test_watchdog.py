"""A gang in which nothing moves ends by itself, and the rank that says nothing is named."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from meshtune.runners.base import Cause, JobState, JobStatus
from meshtune.runners.outcome import Verdict
from meshtune.runners.programs.workloads.torch import TorchWorkload
from meshtune.runners.trainer.failure import Phase, read_failures, stillness
from meshtune.runners.trainer.job import Measuring

# In the third step rank 1 stops, and only then the watchdogs begin to watch: up to there a busy machine may take longer
# than the stall limit for anything.
STOP = """
import os
import signal
import meshtune.runners.trainer.main as trainer_main
from meshtune.runners.trainer.train import Trainer

start_watchdog, step, asked, taken = trainer_main.start_watchdog, Trainer.step, [], []

def step_or_stop(trainer, *batch):
    taken.append(batch)
    if len(taken) == 3:
        asked[0][0].beat()
        start_watchdog(*asked[0])
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSTOP)
    return step(trainer, *batch)

trainer_main.start_watchdog = lambda *arguments: asked.append(arguments)
Trainer.step = step_or_stop
"""


def looks(times_s: list[float], beats_s: list[float]) -> list[float]:
    """What each look at these times finds, with beats at those, in periods of 0.2 s."""
    found, before = [0.0], 0.0
    for now in times_s:
        found.append(stillness(found[-1], now - before, now - max(beat for beat in beats_s if beat <= now), 0.2))
        before = now
    return found[1:]


@pytest.mark.parametrize(
    ("times_s", "beats_s", "found"),
    [
        # In time: by the clock, and a beat begins anew.
        ([0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 0.5], [0.2, 0.4, 0.1, 0.3, 0.5]),
        # An hour for which the process was stopped counts as a second.
        ([0.2, 0.4, 3600.4, 3600.6, 3600.8], [0.0], [0.2, 0.4, 1.4, 1.6, 1.8]),
        ([0.2, 0.4, 3600.4, 3600.6, 3600.8], [0.0, 3600.5], [0.2, 0.4, 1.4, 0.1, 0.3]),
    ],
)
def test_stillness_is_counted_by_the_clock_of_a_process_that_runs(times_s, beats_s, found):
    assert looks(times_s, beats_s) == pytest.approx(found)


def test_looks_that_a_busy_machine_delays_reach_every_limit():
    assert looks([0.9 * look for look in range(1, 41)], [0.0])[-1] == pytest.approx(36)
    assert looks([3.0 * look for look in range(1, 41)], [0.0])[-1] == pytest.approx(40)


@pytest.mark.parametrize(
    "plan",
    [
        {"dp": 2, "zero_stage": 1},
        pytest.param({"tp": 2, "micro_batch_size": 8}, marks=pytest.mark.long),
    ],
)
def test_a_stopped_rank_ends_the_gang_after_the_stall_limit(plan, run_job, make_job):
    start = time.monotonic()
    finished = run_job(make_job(plan=plan, measuring=Measuring(max_warmup_steps=0, stall_s=2.0)), STOP)
    assert time.monotonic() - start > 2.0
    assert finished.status == 1
    assert "failed (timed_out): rank 0 in" in finished.output
    (failure,) = read_failures(finished.directory)
    assert (failure.rank, failure.verdict) == (0, Verdict.TIMED_OUT)
    assert failure.reason == "no step finished for 2 s"
    assert "in measure" in failure.traceback
    outcome = TorchWorkload({}).read(finished.directory, JobStatus(state=JobState.FAILED, reason="rank 0 exited"))
    assert outcome.verdict is Verdict.TIMED_OUT
    assert outcome.failed_rank == 1
    assert outcome.reason == "no step finished for 2 s; not a word from rank 1"
    assert outcome.phase == failure.phase


# Rank 1 comes to the meeting, or is built, only when the limit of a step is long past.
LATE = """
import os
import time
import meshtune.runners.trainer.main as trainer_main

begin = trainer_main.{begin}

def begin_late(*arguments):
    if os.environ["RANK"] == "1":
        time.sleep({seconds})
    return begin(*arguments)

trainer_main.{begin} = begin_late
"""
QUICK = Measuring(max_warmup_steps=0, min_steps=1, max_steps=1, profile_steps=0)


@pytest.mark.parametrize("begin", [pytest.param("meet", marks=pytest.mark.long), "Trainer"])
def test_a_late_start_is_no_stall(begin, run_job, make_job):
    job = make_job(plan={"dp": 2}, measuring=replace(QUICK, stall_s=2.0))
    finished = run_job(job, LATE.format(begin=begin, seconds=4))
    assert finished.status == 0, f"{finished.output}\n{finished.logs}"
    assert len(finished.measurement.step_times_s) == 1


@pytest.mark.parametrize(
    ("begin", "phase"),
    [("meet", Phase.RENDEZVOUS), pytest.param("Trainer", Phase.INIT, marks=pytest.mark.long)],
)
def test_a_rank_that_never_starts_ends_the_gang_after_the_limit_of_the_start(begin, phase, run_job, make_job):
    job = make_job(plan={"dp": 2}, measuring=replace(QUICK, start_limit_s=4.0, stall_s=600.0))
    finished = run_job(job, LATE.format(begin=begin, seconds=300))
    assert finished.status == 1
    # Each rank watches itself: the one whose time ends first may end the other's, which then sees a peer go.
    failures = [failure for failure in read_failures(finished.directory) if not failure.echo]
    reason = "did not meet its peers and build its model within 4 s"
    assert {(each.verdict, each.phase, each.reason) for each in failures} == {(Verdict.TIMED_OUT, phase, reason)}
    outcome = TorchWorkload({}).read(finished.directory, JobStatus(state=JobState.FAILED, reason="rank 0 exited"))
    assert (outcome.verdict, outcome.cause) == (Verdict.TIMED_OUT, Cause.HANG)
