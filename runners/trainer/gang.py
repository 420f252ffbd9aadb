"""By hand: runs all ranks of a job as processes of this machine and tells a person how it went. No time limit."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path

from meshtune.runners.base import JobSpec
from meshtune.runners.logs.lines import read_tail
from meshtune.runners.outcome import RESULT_FILE, Measurement, ResultError, Verdict, read_result
from meshtune.runners.processes import gang as supervisor
from meshtune.runners.processes.gang import exit_text, log_path
from meshtune.runners.step_breakdown import Part, Profile
from meshtune.runners.trainer.failure import first_cause, read_failures
from meshtune.runners.trainer.job import Job

LAST_WORDS_BYTES = 16_000  # the C library's word and faulthandler's stacks after it


def run_gang(job: Job, directory: Path, run_rank: Callable[[int], int]) -> int:
    """Fork the ranks, wait for all, print a summary; return 0 when the job measured something or was pruned, else 1."""
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
    gang = supervisor.run_gang(spec, lambda _: run_rank(int(os.environ["RANK"])))
    summary, exit_status = summarize(directory, gang.death)
    sys.stdout.write(f"{job.name}: {job.plan.key}\n{summary}\n")
    return exit_status


def summarize(directory: Path, death: tuple[int, int] | None) -> tuple[str, int]:
    """The summary, and the exit status. death: the rank to blame and its exit code."""
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
    """The end of the log of a rank that a signal ended."""
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
    """The parts as shares of the step, averaged over the ranks."""
    ranks = len(profile.parts_s)
    shares = {part: sum(parts[part] for parts in profile.parts_s) / ranks / profile.step_time_s for part in Part}
    return "parts   " + ", ".join(f"{part} {share:.1%}" for part, share in shares.items() if share > 0)
