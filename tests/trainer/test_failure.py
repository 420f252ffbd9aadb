"""Failures are told apart: out of memory, a crash, and the mere echo of a peer's death.

Real processes fail in test_gang.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.runners.base import Cause
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
    ("error", "cause"),
    [
        (MemoryError(), Cause.OOM),
        (OutOfMemoryError("Tried to allocate 2.00 GiB"), Cause.OOM),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), Cause.OOM),
        (RuntimeError("std::bad_alloc"), Cause.OOM),
        (JobMalformed("plan: is missing"), Cause.USER_BUG),
        (ModuleNotFoundError("No module named 'nowhere'"), Cause.USER_BUG),
        (FileNotFoundError(2, "No such file or directory", "job.json"), Cause.USER_BUG),
        (InvalidValue([Problem("cp", "ring on cpu")]), Cause.ILLEGAL_SETTING),
        (ValueError("heads(3) is odd"), Cause.CRASH),
    ],
)
def test_an_error_is_known_for_its_cause(error, cause):
    found = describe(error, rank=3, phase=Phase.BACKWARD, at=1.5)
    assert (found.cause, found.echo, found.rank, found.phase, found.at) == (cause, False, 3, "backward", 1.5)
    assert (found.verdict is Verdict.OOM) == (cause is Cause.OOM)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[gloo/transport/tcp/pair.cc:525] Read error [127.0.0.1]:1234: Connection reset by peer", Cause.COMMUNICATION),
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE)", Cause.HANG),
        ("NCCL error: remote process exited or there was a network error", Cause.COMMUNICATION),
        ("Timed out waiting 300000ms for recv operation to complete", Cause.HANG),
        ("Rank 0 failed to pass monitoredBarrier\nBroken pipe", Cause.COMMUNICATION),
    ],
)
def test_a_lost_connection_is_an_echo_wherever_in_a_chain_of_errors_it_stands(text, cause):
    found = describe(RuntimeError(text), rank=0, phase=Phase.FORWARD, at=0.0)
    assert (found.verdict, found.echo, found.cause) == (Verdict.CRASHED, True, cause)
    wrapped = ValueError("a stage failed")
    wrapped.__cause__ = RuntimeError(text)
    wrapped.__cause__.__cause__ = KeyError("innermost")
    assert describe(wrapped, rank=0, phase=Phase.FORWARD, at=0.0).echo


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


def test_failure_files_are_read_in_their_order_and_broken_ones_left_out(tmp_path):
    written = [replace(failure(2, 1.0), cause=Cause.HANG), failure(0, 2.0)]
    for one in written:
        write_failure(tmp_path, one)
    assert {path.name for path in tmp_path.iterdir()} == {"failure-0.json", "failure-2.json"}
    (tmp_path / "failure-1.json").write_text('{"rank": 1')
    (tmp_path / "failure-3.json").write_text("[]")
    assert read_failures(tmp_path) == written


def test_the_first_cause_is_the_earliest_failure_that_is_no_echo():
    failures = [failure(0, 1.0, echo=True), failure(1, 3.0), failure(2, 2.0)]
    assert first_cause(failures) == failures[2]
    assert first_cause(failures[:1]) == failures[0]
    assert first_cause([]) is None
