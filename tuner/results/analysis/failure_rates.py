"""How many trials failed, and whether the search learnt to avoid it: so far after each trial, and in windows.

Failed is what ended without a speed and not by intent: out of memory, crashed, timed out, illegal, or lost. A pruned
trial ran and was slower; one that was cancelled says nothing and is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    verdicts: Mapping[Verdict, int]

    @property
    def trials(self) -> int:
        return sum(self.verdicts.values())

    @property
    def failed(self) -> int:
        return sum(count for verdict, count in self.verdicts.items() if verdict in FAILED)

    @property
    def rate(self) -> float:
        return self.failed / self.trials

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        verdicts = {str(verdict): count for verdict, count in self.verdicts.items()}
        numbers = {"first": self.first, "last": self.last, "trials": self.trials, "failed": self.failed}
        return {**numbers, "rate": self.rate, "verdicts": verdicts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """so_far: after each trial, all until then. windows: one after the other, WINDOW trials each, the last may be
    shorter. Both empty before any trial has ended."""

    so_far: tuple[Window, ...]
    windows: tuple[Window, ...]

    @property
    def all(self) -> Window | None:
        return self.so_far[-1] if self.so_far else None

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "all": None if self.all is None else self.all.document(),
            "so_far": [{"trial": one.last, "failed": one.failed, "rate": one.rate} for one in self.so_far],
            "windows": [window.document() for window in self.windows],
        }


def count_failures(trials: Sequence[Trial]) -> Failures:
    """The failures among the trials that have ended."""
    ended = [
        (trial.number, trial.verdict)
        for trial in sorted(trials, key=lambda trial: trial.number)
        if trial.verdict is not None and trial.verdict is not Verdict.CANCELLED
    ]
    return Failures(
        so_far=tuple(_window(ended[: end + 1]) for end in range(len(ended))),
        windows=tuple(_window(ended[start : start + WINDOW]) for start in range(0, len(ended), WINDOW)),
    )


def _window(ended: Sequence[tuple[int, Verdict]]) -> Window:
    counts = Counter(verdict for _, verdict in ended)
    # In the order of Verdict, so that windows read alike.
    return Window(
        first=ended[0][0],
        last=ended[-1][0],
        verdicts={verdict: counts[verdict] for verdict in Verdict if verdict in counts},
    )
