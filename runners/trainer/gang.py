"""By hand: runs all ranks of a job as processes of this machine and tells a person how it went.

When one rank dies the others are killed. No time limit: that is for runners, or for Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from runners.outcome import RESULT_FILE, Measurement, ResultError, read_result
from runners.trainer.failure import first_cause, read_failures
from runners.trainer.job import Job

POLL_S = 0.05
GRACE_S = 0.5  # for the peers of a dead rank to say what they saw


def run_gang(job: Job, directory: Path, run_rank: Callable[[int], int]) -> int:
    """Fork one process per rank, wait for all, print a summary; return 0 when the job measured something, else 1."""
    directory.mkdir(parents=True, exist_ok=True)
    for stale in (RESULT_FILE, "rendezvous", "failure-*.json"):
        for path in directory.glob(stale):
            path.unlink()
    sys.stdout.flush()
    sys.stderr.flush()
    ranks: dict[int, int] = {}
    with _terminated_as_exception():
        try:
            for rank in range(job.plan.world_size):
                ranks[_fork_rank(rank, job.plan.world_size, directory, run_rank)] = rank
            dead = _wait(set(ranks))
        finally:
            _kill(set(ranks))
    statuses = {ranks[pid]: status for pid, status in dead.items()}
    summary, exit_status = summarize(directory, statuses)
    sys.stdout.write(f"{job.name}: {job.plan.key}\n{summary}\n")
    return exit_status


@contextmanager
def _terminated_as_exception() -> Iterator[None]:
    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _fork_rank(rank: int, world_size: int, directory: Path, run_rank: Callable[[int], int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        log = os.open(directory / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
        status = run_rank(rank)
    finally:
        # Never return into the parent's stack.
        os._exit(status)


def _wait(pids: set[int]) -> dict[int, int]:
    """The exit status of every process (negative: the signal that ended it); the rest is killed once one fails.

    Processes that were killed here are left out: they are no cause of anything.
    """
    dead: dict[int, int] = {}
    deadline = float("inf")
    while pids - dead.keys() and time.monotonic() < deadline:
        for pid in pids - dead.keys():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                dead[pid] = os.waitstatus_to_exitcode(status)
                if dead[pid] != 0:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        time.sleep(POLL_S)
    return dead


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def summarize(directory: Path, statuses: dict[int, int]) -> tuple[str, int]:
    """What a person wants to read, and the exit status."""
    failures = read_failures(directory)
    cause = first_cause(failures)
    killed = next(((rank, -status) for rank, status in statuses.items() if status < 0), None)
    if killed is not None and (cause is None or cause.echo):
        return f"failed: rank {killed[0]} was ended by {signal.Signals(killed[1]).name}", 1
    if cause is not None:
        return f"failed ({cause.verdict}): rank {cause.rank} in {cause.phase}: {cause.reason}", 1
    try:
        measurement = read_result(directory).measurement
    except ResultError as error:
        return f"failed: {error}", 1
    return ("failed: no measurement", 1) if measurement is None else (describe_measurement(measurement), 0)


def describe_measurement(measurement: Measurement) -> str:
    interval = measurement.step_time_interval_s
    losses = ", ".join(f"{loss:.6f}" for loss in measurement.first_losses)
    return "\n".join(
        (
            f"step    {measurement.step_time_s * 1e3:.1f} ms, median of {len(measurement.step_times_s)}"
            f" ({interval.coverage:.0%} interval {interval.low * 1e3:.1f} to {interval.high * 1e3:.1f} ms)",
            f"tokens  {measurement.tokens_per_s:.0f}/s, {measurement.tokens_per_s_per_device:.0f}/s per device",
            f"memory  {max(measurement.peak_memory_bytes, default=0) / 2**20:.1f} MiB at the fullest rank",
            f"losses  {losses}",
        )
    )
