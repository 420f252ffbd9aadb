"""Failures are told apart: out of memory, a crash, and the mere echo of a peer's death.

Real processes fail in test_gang.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import Verdict
from meshtune.runners.trainer.failure import Phase, RankFailure, describe, first_cause, read_failures, write_failure
from meshtune.runners.trainer.job import JobMalformed
from meshtune.search_spaces.checks import InvalidValue, Problem


def failure(rank: int, at: float, *, echo: bool = False) -> RankFailure:
    return RankFailure(
        rank=rank, at=at, verdict=Verdict.CRASHED, phase=Phase.FORWARD, reason="ValueError: no", echo=echo
    )


class OutOfMemoryError(RuntimeError):
    """Stands for torch's, which is known by its name."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError("Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:128] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("CUDA out of memory. Tried to allocate"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_an_allocator_that_gives_up_means_out_of_memory(error):
    found = describe(error, rank=3, phase=Phase.BACKWARD, at=1.5)
    assert (found.verdict, found.echo, found.rank, found.phase, found.at) == (Verdict.OOM, False, 3, "backward", 1.5)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "[gloo/transport/tcp/pair.cc:525] Read error [127.0.0.1]:1234: Connection reset by peer",
            Cause.COMMUNICATION,
        ),
        ("Connection closed by peer [127.0.0.1]:28642", Cause.COMMUNICATION),
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE)", Cause.HANG),
        ("NCCL error: remote process exited or there was a network error", Cause.COMMUNICATION),
        ("Timed out waiting 300000ms for recv operation to complete", Cause.HANG),
        ("Rank 0 failed to pass monitoredBarrier\nBroken pipe", Cause.COMMUNICATION),
    ],
)
def test_a_lost_connection_is_an_echo(text, cause):
    found = describe(RuntimeError(text), rank=0, phase=Phase.FORWARD, at=0.0)
    assert (found.verdict, found.echo, found.cause) == (Verdict.CRASHED, True, cause)
    # Wherever in a chain of errors it stands.
    wrapped = ValueError("a stage failed")
    wrapped.__cause__ = RuntimeError(text)
    wrapped.__cause__.__cause__ = KeyError("innermost")
    assert describe(wrapped, rank=0, phase=Phase.FORWARD, at=0.0).echo


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (JobMalformed("plan: is missing"), Cause.USER_BUG),
        (ModuleNotFoundError("No module named 'nowhere'"), Cause.USER_BUG),
        (FileNotFoundError(2, "No such file or directory", "job.json"), Cause.USER_BUG),
        (InvalidValue([Problem("cp", "ring on cpu")]), Cause.ILLEGAL_SETTING),
        (ValueError("heads(3) is odd"), Cause.CRASH),
        (MemoryError(), Cause.OOM),
    ],
)
def test_what_no_plan_can_change_is_told_from_what_this_plan_broke(error, cause):
    found = describe(error, rank=0, phase=Phase.INIT, at=0.0)
    assert (found.cause, found.echo) == (cause, False)


def test_a_wrapped_error_is_known_by_its_cause():
    try:
        try:
            raise MemoryError("the cause")
        except MemoryError as cause:
            raise RuntimeError("[Stage 1] failed to run forward") from cause
    except RuntimeError as error:
        found = describe(error, rank=0, phase=Phase.FORWARD, at=0.0)
    assert (found.verdict, found.reason) == (Verdict.OOM, "MemoryError: the cause")
    assert "failed to run forward" in found.traceback


def test_a_failure_file_says_what_was_written(tmp_path):
    written = replace(failure(1, 2.0), cause=Cause.HANG)
    write_failure(tmp_path, written)
    assert [path.name for path in tmp_path.iterdir()] == ["failure-1.json"]
    assert read_failures(tmp_path) == [written]


def test_a_broken_failure_file_is_left_out(tmp_path):
    write_failure(tmp_path, failure(0, 2.0))
    write_failure(tmp_path, failure(2, 1.0))
    (tmp_path / "failure-1.json").write_text('{"rank": 1')
    (tmp_path / "failure-3.json").write_text("[]")
    assert [found.rank for found in read_failures(tmp_path)] == [2, 0]


def test_the_first_cause_is_the_earliest_failure_that_is_no_echo():
    failures = [failure(0, 1.0, echo=True), failure(1, 3.0), failure(2, 2.0)]
    assert first_cause(failures) == failures[2]
    assert first_cause(failures[:1]) == failures[0]
    assert first_cause([]) is None
