"""Failure rates: the share of trials that failed, after each trial and in windows.

A failed trial ended without a speed and not by intent: out of memory, crashed, timed out, illegal, or lost. A pruned
trial ran and was slower; a cancelled one is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.trial import Trial

FAILED = frozenset({Verdict.OOM, Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.ILLEGAL, Verdict.LOST})
# Trials of one window: a rate in steps of 10 %.
WINDOW = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Some trials in the order of planning, from number `first` to `last`. rate: the share that failed."""

    first: int
    last: int
    trials: int
    failed: int
    rate: float
    verdicts: Mapping[Verdict, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSoFar:
    """All trials up to this one."""

    trial: int
    failed: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failed trials: of all (null before any trial has ended), after each trial, and in windows of 10."""

    all: Window | None
    so_far: tuple[RateSoFar, ...]
    windows: tuple[Window, ...]


def count_failures(trials: Sequence[Trial]) -> Failures:
    """The failures among the trials that have ended."""
    ended = [
        (trial.number, trial.verdict)
        for trial in sorted(trials, key=lambda trial: trial.number)
        if trial.verdict is not None and trial.verdict is not Verdict.CANCELLED
    ]
    so_far, failed = [], 0
    for count, (number, verdict) in enumerate(ended, start=1):
        failed += verdict in FAILED
        so_far.append(RateSoFar(trial=number, failed=failed, rate=failed / count))
    return Failures(
        all=_window(ended) if ended else None,
        so_far=tuple(so_far),
        windows=tuple(_window(ended[start : start + WINDOW]) for start in range(0, len(ended), WINDOW)),
    )


def _window(ended: Sequence[tuple[int, Verdict]]) -> Window:
    counts = Counter(verdict for _, verdict in ended)
    failed = sum(counts[verdict] for verdict in FAILED)
    return Window(
        first=ended[0][0],
        last=ended[-1][0],
        trials=len(ended),
        failed=failed,
        rate=failed / len(ended),
        # In the order of Verdict, so that windows read alike.
        verdicts={verdict: counts[verdict] for verdict in Verdict if verdict in counts},
    )
