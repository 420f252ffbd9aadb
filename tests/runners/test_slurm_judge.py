"""What became of a job follows from Slurm's word, its ranks' notes and its nodes, each where it knows best."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus, Start
from meshtune.runners.schedulers.batch.launch_wrapper import End, Note
from meshtune.runners.schedulers.slurm.vocabulary import parse_jobs, status_of, suspects

SPEC = JobSpec(name="job", command=("true",), directory=Path("/d"), nodes=2, devices_per_node=2, time_limit_s=60.0)
NODES = ("n0", "n1")
LOST, FAILED, SUCCEEDED = JobState.LOST, JobState.FAILED, JobState.SUCCEEDED
FORGOTTEN = "Slurm does not know this job any more, and its processes did not say how they ended"
KILLED_LAUNCHER = "its launcher ended, while its nodes answer and its ranks had started"


def note(rank: int, end: End | None = None, code: int | None = None, at: float = 110.5) -> Note:
    finished_at = None if end is None else at
    return Note(rank=rank, host=NODES[rank // 2], started_at=100.5, finished_at=finished_at, end=end, exit_code=code)


WELL = [note(rank, End.ITSELF, 0) for rank in range(4)]
BADLY = [note(0, End.TOLD), note(1, End.TOLD), note(2, End.ITSELF, 7, 109.0), note(3, End.TOLD)]
LATE = [note(rank, End.TIME_LIMIT) for rank in range(4)]
TOLD = [note(rank, End.TOLD) for rank in range(4)]
KILLED = [note(0, End.ITSELF, -9), *TOLD[1:]]
HALF = [note(0, End.TOLD), note(1, End.TOLD), note(2), note(3)]


def seen_as(word: str, *, nodes=NODES, started_at=100, finished_at=111, reason="None") -> JobStatus:
    """A job as squeue shows it."""
    return parse_jobs(f"5|{word}|{','.join(nodes)}|{started_at}|{finished_at}|{reason}")["5"]


def status(word: str | None, notes=(), *, cancel_asked=False, bad_nodes=(), spec=SPEC, **changes):
    seen = None if word is None else seen_as(word, **changes)
    return status_of(spec, seen, list(notes), cancel_asked=cancel_asked, bad_nodes=bad_nodes)


PER_NODE = replace(SPEC, start=Start.NODE, devices_per_node=8)
NOTE_OF_A_NODE = [Note(rank=0, host="n0", started_at=1.0, finished_at=2.0, end=End.TOLD)]


@pytest.mark.parametrize(
    ("word", "notes", "changes", "expected"),
    [
        # A waiting job has no nodes yet and says why it waits.
        (
            "PENDING",
            [],
            {"nodes": (), "started_at": 1000000000, "reason": "Resources"},
            {"state": JobState.QUEUED, "reason": "waits in Slurm's queue: Resources", "started_at": None, "nodes": ()},
        ),
        ("PENDING", [], {"nodes": ()}, {"reason": "waits in Slurm's queue"}),
        ("CONFIGURING", [], {}, {"reason": "its nodes are being prepared"}),
        # One that has its nodes runs from its ranks' start.
        (
            "RUNNING",
            [note(0)],
            {"finished_at": 999},
            {"state": JobState.RUNNING, "started_at": 100.5, "finished_at": None, "nodes": NODES},
        ),
        ("COMPLETING", [], {}, {"state": JobState.RUNNING, "started_at": 100.0}),
        ("SUSPENDED", [], {}, {"state": JobState.RUNNING}),
        # The notes say how a job ended that came to its own end.
        ("COMPLETED", WELL, {}, {"state": SUCCEEDED, "exit_code": 0, "started_at": 100.5, "finished_at": 110.5}),
        (
            "FAILED",
            BADLY,
            {"reason": "NonZeroExitCode"},
            {"state": FAILED, "exit_code": 7, "reason": "rank 2 exited with code 7", "cause": None, "failed_nodes": ()},
        ),
        ("FAILED", LATE, {}, {"state": JobState.TIMED_OUT, "reason": "ran longer than its time limit of 60 s"}),
        ("FAILED", WELL, {}, {"state": SUCCEEDED}),  # srun may fail at its own end
        # Without a word of its ranks it is as Slurm says.
        ("COMPLETED", [], {}, {"state": SUCCEEDED, "exit_code": 0}),
        (
            "FAILED",
            [],
            {"reason": "NonZeroExitCode"},
            {"state": FAILED, "reason": "the job script failed; see slurm.log (NonZeroExitCode)"},
        ),
        ("OUT_OF_MEMORY", [], {}, {"state": FAILED, "cause": Cause.OOM}),
        (
            "OUT_OF_MEMORY",
            KILLED,
            {},
            {
                "state": FAILED,
                "exit_code": -9,
                "cause": Cause.OOM,
                "reason": "rank 0 was killed by SIGKILL; out of host memory, by Slurm's word",
            },
        ),
        # What Slurm ended is as it says, whatever the ranks saw.
        ("TIMEOUT", HALF, {}, {"state": JobState.TIMED_OUT}),
        ("TIMEOUT", TOLD, {}, {"state": JobState.TIMED_OUT}),
        ("CANCELLED", BADLY, {}, {"state": JobState.CANCELLED, "reason": "cancelled from outside"}),
        ("CANCELLED", HALF, {"cancel_asked": True}, {"reason": "cancelled", "started_at": 100.5}),
        ("CANCELLED", [], {"nodes": ()}, {"started_at": None}),
        (
            "PREEMPTED",
            HALF,
            {"bad_nodes": ("n1",)},
            {"state": LOST, "cause": Cause.PREEMPTION, "failed_nodes": (), "reason": "preempted by another job"},
        ),
        ("PREEMPTED", BADLY, {}, {"state": LOST}),
        ("NODE_FAIL", BADLY, {}, {"state": LOST}),
        # Ranks that all were told to end were displaced.
        ("FAILED", TOLD, {"reason": "NonZeroExitCode"}, {"state": LOST, "cause": Cause.PREEMPTION, "failed_nodes": ()}),
        ("FAILED", TOLD[:3], {}, {"state": FAILED}),
        # A lost node is named where it is down, or else where it was not heard of.
        (
            "NODE_FAIL",
            HALF,
            {"bad_nodes": ("n1", "n9")},
            {"state": LOST, "cause": Cause.NODE_FAULT, "failed_nodes": ("n1",), "reason": "a node failed: n1"},
        ),
        ("NODE_FAIL", HALF, {}, {"failed_nodes": ("n1",)}),
        ("NODE_FAIL", [], {}, {"failed_nodes": ()}),
        ("NODE_FAIL", [note(rank) for rank in range(4)], {}, {"failed_nodes": ()}),
        ("NODE_FAIL", [], {"nodes": ("n3",)}, {"failed_nodes": ("n3",)}),
        ("NODE_FAIL", NOTE_OF_A_NODE, {"spec": PER_NODE}, {"failed_nodes": ("n1",)}),
        ("FAILED", [], {"reason": "JobLaunchFailure"}, {"failed_nodes": ("n0",)}),
        # Slurm says so too of a launcher that was killed: no node is to blame while all answer.
        (
            "FAILED",
            HALF,
            {"reason": "JobLaunchFailure"},
            {"state": LOST, "cause": None, "failed_nodes": (), "reason": KILLED_LAUNCHER},
        ),
        (
            "FAILED",
            HALF,
            {"reason": "JobLaunchFailure", "bad_nodes": ("n1",)},
            {"state": LOST, "cause": Cause.NODE_FAULT, "failed_nodes": ("n1",)},
        ),
        ("FAILED", HALF, {"bad_nodes": ("n1",)}, {"state": LOST, "cause": Cause.NODE_FAULT, "failed_nodes": ("n1",)}),
        ("FAILED", HALF, {}, {"state": FAILED}),
        # A forgotten job is as its ranks said, or lost.
        (None, WELL, {}, {"state": SUCCEEDED, "finished_at": 110.5, "nodes": NODES}),
        (None, BADLY, {}, {"exit_code": 7}),
        (None, HALF, {}, {"state": LOST, "reason": FORGOTTEN, "cause": None}),
        (None, [], {}, {"state": LOST}),
    ],
)
def test_a_job_is_as_slurm_its_ranks_and_its_nodes_say(word, notes, changes, expected):
    found = status(word, notes, **changes)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("word", "notes", "nodes"),
    [
        ("NODE_FAIL", HALF, NODES),
        ("FAILED", HALF, ("n1",)),
        ("FAILED", [], NODES),
        ("FAILED", BADLY, ()),
        ("COMPLETED", [], ()),
        ("CANCELLED", HALF, ()),
        ("PREEMPTED", HALF, ()),
    ],
)
def test_nodes_are_suspected_where_no_rank_explains_the_failure(word, notes, nodes):
    assert suspects(SPEC, seen_as(word), notes) == nodes
