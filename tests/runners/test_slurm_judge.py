"""What became of a job follows from Slurm's word, its ranks' notes and its nodes, each where it knows best."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshtune.runners.base import JobSpec, JobState, JobStatus, Start
from meshtune.runners.batch.notes import End, Note
from meshtune.runners.failure_cause import Cause
from meshtune.runners.slurm.judge import status_of, suspects
from meshtune.runners.slurm.vocabulary import parse_jobs

SPEC = JobSpec(name="job", command=("true",), directory=Path("/d"), nodes=2, devices_per_node=2, time_limit_s=60.0)
NODES = ("n0", "n1")
FORGOTTEN = "Slurm does not know this job any more, and its processes did not say how they ended"


def note(rank: int, end: End | None = None, code: int | None = None, at: float = 110.5) -> Note:
    finished_at = None if end is None else at
    return Note(rank=rank, host=NODES[rank // 2], started_at=100.5, finished_at=finished_at, end=end, exit_code=code)


WELL = [note(rank, End.ITSELF, 0) for rank in range(4)]
BADLY = [note(0, End.TOLD), note(1, End.TOLD), note(2, End.ITSELF, 7, 109.0), note(3, End.TOLD)]
HALF = [note(0, End.TOLD), note(1, End.TOLD), note(2), note(3)]


def seen_as(word: str, *, nodes=NODES, started_at=100, finished_at=111, reason="None") -> JobStatus:
    """A job as squeue shows it."""
    return parse_jobs(f"5|{word}|{','.join(nodes)}|{started_at}|{finished_at}|{reason}")["5"]


def status(word: str | None, notes=(), *, cancel_asked=False, bad_nodes=(), spec=SPEC, **changes):
    seen = None if word is None else seen_as(word, **changes)
    return status_of(spec, seen, list(notes), cancel_asked=cancel_asked, bad_nodes=bad_nodes)


def test_a_waiting_job_has_no_nodes_yet_and_says_why_it_waits():
    waiting = status("PENDING", nodes=(), started_at=1000000000, reason="Resources")
    assert (waiting.state, waiting.reason) == (JobState.QUEUED, "waits in Slurm's queue: Resources")
    assert (waiting.started_at, waiting.nodes) == (None, ())
    assert status("PENDING", nodes=()).reason == "waits in Slurm's queue"
    assert status("CONFIGURING").reason == "its nodes are being prepared"


@pytest.mark.parametrize("word", ["RUNNING", "COMPLETING", "SUSPENDED"])
def test_a_job_that_has_its_nodes_runs_from_its_ranks_start(word):
    running = status(word, [note(0)], finished_at=999)
    assert (running.state, running.started_at, running.finished_at) == (JobState.RUNNING, 100.5, None)
    assert running.nodes == NODES
    assert status(word).started_at == 100.0


def test_the_notes_say_how_a_job_ended_that_came_to_its_own_end():
    done = status("COMPLETED", WELL)
    assert (done.state, done.exit_code, done.reason) == (JobState.SUCCEEDED, 0, "")
    assert (done.started_at, done.finished_at) == (100.5, 110.5)
    failed = status("FAILED", BADLY, reason="NonZeroExitCode")
    assert (failed.state, failed.exit_code, failed.reason) == (JobState.FAILED, 7, "rank 2 exited with code 7")
    assert (failed.cause, failed.failed_nodes, failed.nodes) == (None, (), NODES)
    late = status("FAILED", [note(rank, End.TIME_LIMIT) for rank in range(4)])
    assert (late.state, late.reason) == (JobState.TIMED_OUT, "ran longer than its time limit of 60 s")
    # srun may fail at its own end, after all ranks have ended well.
    assert status("FAILED", WELL).state is JobState.SUCCEEDED


def test_what_slurm_ended_is_as_it_says_whatever_the_ranks_saw():
    for word, state in (("CANCELLED", JobState.CANCELLED), ("PREEMPTED", JobState.LOST), ("NODE_FAIL", JobState.LOST)):
        assert status(word, BADLY).state is state
        assert status(word, HALF).state is state


def test_a_cancelled_job_says_by_whom_and_one_that_never_ran_has_no_start():
    assert status("CANCELLED", cancel_asked=True).reason == "cancelled"
    assert status("CANCELLED").reason == "cancelled from outside"
    assert status("CANCELLED", nodes=()).started_at is None
    assert status("CANCELLED", HALF).started_at == 100.5


def test_a_job_without_a_word_of_its_ranks_is_as_slurm_says():
    assert (status("COMPLETED").state, status("COMPLETED").exit_code) == (JobState.SUCCEEDED, 0)
    failed = status("FAILED", reason="NonZeroExitCode")
    assert failed.state is JobState.FAILED
    assert failed.reason == "the job script failed; see slurm.log (NonZeroExitCode)"
    assert status("TIMEOUT", HALF).state is JobState.TIMED_OUT
    killed = status("OUT_OF_MEMORY")
    assert (killed.state, killed.cause) == (JobState.FAILED, Cause.OOM)


def test_host_memory_that_ran_out_is_the_cause_of_a_rank_that_was_killed():
    notes = [note(0, End.ITSELF, -9), *(note(rank, End.TOLD) for rank in (1, 2, 3))]
    killed = status("OUT_OF_MEMORY", notes)
    assert (killed.state, killed.exit_code, killed.cause) == (JobState.FAILED, -9, Cause.OOM)
    assert killed.reason == "rank 0 was killed by SIGKILL; out of host memory, by Slurm's word"


def test_a_lost_node_is_named_where_it_is_down():
    assert suspects(SPEC, seen_as("NODE_FAIL"), HALF) == NODES
    lost = status("NODE_FAIL", HALF, bad_nodes=("n1", "n9"))
    assert (lost.state, lost.cause) == (JobState.LOST, Cause.NODE_FAULT)
    assert (lost.failed_nodes, lost.reason) == (("n1",), "a node failed: n1")


def test_a_lost_node_that_came_back_is_the_one_that_was_not_heard_of():
    assert status("NODE_FAIL", HALF).failed_nodes == ("n1",)
    assert status("NODE_FAIL", []).failed_nodes == ()
    assert status("NODE_FAIL", [note(rank) for rank in range(4)]).failed_nodes == ()
    assert status("NODE_FAIL", [], nodes=("n3",)).failed_nodes == ("n3",)
    assert status("FAILED", [], reason="JobLaunchFailure").failed_nodes == ("n0",)


def test_nodes_count_as_their_ranks_do():
    spec = JobSpec(
        name="job", command=("true",), directory=Path("/d"), nodes=2, time_limit_s=60.0, start=Start.NODE,
        devices_per_node=8,
    )  # fmt: skip
    notes = [Note(rank=0, host="n0", started_at=1.0, finished_at=2.0, end=End.TOLD)]
    assert status("NODE_FAIL", notes, spec=spec).failed_nodes == ("n1",)


def test_a_failure_that_no_rank_explains_is_the_nodes_where_one_is_down():
    assert suspects(SPEC, seen_as("FAILED"), HALF) == ("n1",)
    assert suspects(SPEC, seen_as("FAILED"), []) == NODES
    lost = status("FAILED", HALF, bad_nodes=("n1",))
    assert (lost.state, lost.cause, lost.failed_nodes) == (JobState.LOST, Cause.NODE_FAULT, ("n1",))
    assert status("FAILED", HALF).state is JobState.FAILED
    for word, notes in (("FAILED", BADLY), ("COMPLETED", []), ("CANCELLED", HALF), ("PREEMPTED", HALF)):
        assert suspects(SPEC, seen_as(word), notes) == ()


def test_ranks_that_all_were_told_to_end_were_displaced():
    told = [note(rank, End.TOLD) for rank in range(4)]
    lost = status("FAILED", told, reason="NonZeroExitCode")
    assert (lost.state, lost.cause, lost.failed_nodes) == (JobState.LOST, Cause.PREEMPTION, ())
    assert status("FAILED", told[:3]).state is JobState.FAILED
    assert status("TIMEOUT", told).state is JobState.TIMED_OUT


def test_a_forgotten_job_is_as_its_ranks_said_or_lost():
    done = status(None, WELL)
    assert (done.state, done.finished_at, done.nodes) == (JobState.SUCCEEDED, 110.5, NODES)
    assert status(None, BADLY).exit_code == 7
    lost = status(None, HALF)
    assert (lost.state, lost.reason, lost.cause) == (JobState.LOST, FORGOTTEN, None)
    assert status(None).state is JobState.LOST
