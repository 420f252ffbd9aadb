"""By hand: runs all ranks of a job as processes of this machine and tells a person how it went.

When one rank dies the others are killed. No time limit: that is for runners, or for Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from types import FrameType

from meshtune.runners.base import JobSpec
from meshtune.runners.logs.lines import read_tail
from meshtune.runners.measuring.step_breakdown import Part, Profile
from meshtune.runners.outcome import RESULT_FILE, Measurement, ResultError, Verdict, read_result
from meshtune.runners.processes.gang import Entry, exit_text, first_death, kill_tree, log_path, reap_one, start_gang
from meshtune.runners.trainer.failure import first_cause, read_failures
from meshtune.runners.trainer.job import Job

POLL_S = 0.05
LAST_WORDS_BYTES = 16_000  # the C library's word and faulthandler's stacks after it
GRACE_S = 0.5  # for the peers of a dead rank to say what they saw


def run_gang(job: Job, directory: Path, run_rank: Callable[[int], int]) -> int:
    """Fork one process per rank, wait for all, print a summary; return 0 when the job measured something (or was
    pruned, as asked), else 1."""
    directory.mkdir(parents=True, exist_ok=True)
    for stale in (RESULT_FILE, "rendezvous", "failure-*.json", "rank-*.log"):
        for path in directory.glob(stale):
            path.unlink()
    spec = JobSpec(
        name=job.name,
        command=(),
        directory=directory.resolve(),
        devices_per_node=job.plan.world_size,
        time_limit_s=inf,
    )
    death = run_ranks(spec, lambda _: run_rank(int(os.environ["RANK"])))
    summary, exit_status = summarize(directory, death)
    sys.stdout.write(f"{job.name}: {job.plan.key}\n{summary}\n")
    return exit_status


def run_ranks(spec: JobSpec, entry: Entry | None) -> tuple[int, int] | None:
    """Start a process per rank and wait for all; the rank to blame and its exit code, None when all did well.

    When one dies the others are killed; none is left when this ends, by an exception or by SIGTERM too.
    """
    alive: dict[int, int] = {}
    deaths: list[tuple[int, int]] = []
    with _terminated_as_exception():
        try:
            alive |= {pid: rank for rank, pid in enumerate(start_gang(spec, entry))}
            deaths = _wait(alive)
        finally:
            _end(alive)
    return first_death(deaths)


@contextmanager
def _terminated_as_exception() -> Iterator[None]:
    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait(alive: dict[int, int]) -> list[tuple[int, int]]:
    """Wait until all ranks have ended, or one has failed and its peers had their say; forget those that ended.

    Returns rank and exit code (negative: the signal that ended it) of those, in the order of notice.
    """
    deaths: list[tuple[int, int]] = []
    deadline = inf
    while alive and time.monotonic() < deadline:
        while (ended := reap_one()) is not None:
            rank = alive.pop(ended[0], None)
            if rank is not None:
                deaths.append((rank, ended[1]))
                deadline = min(deadline, time.monotonic() + GRACE_S) if ended[1] else deadline
        time.sleep(POLL_S)
    return deaths


def _end(alive: dict[int, int]) -> None:
    """Kill and reap the ranks that are left."""
    for pid in alive:
        kill_tree(pid)
    for pid in alive:
        os.waitpid(pid, 0)


def summarize(directory: Path, death: tuple[int, int] | None) -> tuple[str, int]:
    """What a person wants to read, and the exit status. death: the rank to blame and its exit code."""
    failures = read_failures(directory)
    cause = first_cause(failures)
    if death is not None and (cause is None or cause.echo):
        return f"failed: {exit_text(*death)}{_last_words(directory, *death)}", 1
    if cause is not None:
        return f"failed ({cause.verdict}): rank {cause.rank} in {cause.phase}: {cause.reason}", 1
    try:
        outcome = read_result(directory)
    except ResultError as error:
        return f"failed: {error}", 1
    if outcome.verdict is Verdict.PRUNED:
        return f"pruned: {outcome.reason}", 0
    if outcome.measurement is None:
        return "failed: no measurement", 1
    lines = [describe_measurement(outcome.measurement), f"note    {outcome.reason}" if outcome.reason else ""]
    return "\n".join(line for line in lines if line), 0


def _last_words(directory: Path, rank: int, code: int) -> str:
    """The end of the log of a rank that a signal ended: it has left no failure file."""
    tail = read_tail(log_path(directory, rank), LAST_WORDS_BYTES).strip() if code < 0 else ""
    return f"; the end of its log:\n{tail}" if tail else ""


def describe_measurement(measurement: Measurement) -> str:
    interval = measurement.step_time_interval_s
    losses = ", ".join(f"{loss:.6f}" for loss in measurement.first_losses)
    return "\n".join(
        (
            f"step    {measurement.step_time_s * 1e3:.1f} ms, median of {len(measurement.step_times_s)}"
            f" ({interval.coverage:.0%} interval {interval.low * 1e3:.1f} to {interval.high * 1e3:.1f} ms)",
            f"tokens  {measurement.tokens_per_s:.0f}/s, {measurement.tokens_per_s_per_device:.0f}/s per device",
            f"memory  {max(measurement.peak_memory_bytes, default=0) / 2**20:.1f} MiB of tensors at the fullest rank, "
            f"{max(measurement.peak_held_bytes, default=0) / 2**20:.1f} MiB held",
            f"losses  {losses}",
            *([] if measurement.profile is None else [describe_profile(measurement.profile)]),
        )
    )


def describe_profile(profile: Profile) -> str:
    """The parts as shares of the step, averaged over the ranks; parts that nobody spent time on are left out."""
    ranks = len(profile.parts_s)
    shares = {part: sum(parts[part] for parts in profile.parts_s) / ranks / profile.step_time_s for part in Part}
    return "parts   " + ", ".join(f"{part} {share:.1%}" for part, share in shares.items() if share > 0)
