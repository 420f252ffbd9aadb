"""How many optimizer steps a job will take, by its own text: what a trial costs before it is run.

For jobs of the built-in trainer and simulated ones: how long other programs measure is not known here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import ceil

from meshtune.runners.base import JobSpec
from meshtune.runners.measuring.warmup import WINDOW

# Of the built-in trainer and of the simulated workload; named here, for what reads this knows no workload.
JOB_FILES = ("job.json", "simulated.json")
# Steps in which memory is counted, before the warm-up: `runners.trainer.timing.measure.COUNTED_STEPS`.
COUNTED_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """How many steps are taken outside of the timing at least and at most, and how many are timed; see `Measuring`."""

    before: int
    warmup: int
    timed: int
    most_timed: int
    max_seconds: float
    after: int

    @property
    def least(self) -> int:
        """Without any warm-up, and the interval tight at once."""
        return self.before + self.timed + self.after

    def most(self, step_s: float) -> int:
        """With all of the warm-up, and timed until max_steps or max_seconds, whichever comes first."""
        timed = min(self.most_timed, max(self.timed, ceil(self.max_seconds / step_s)))
        return self.before + self.warmup + timed + self.after


def step_counts(spec: JobSpec) -> StepCounts | None:
    """The steps that the job will take; None for a job that does not say."""
    texts = [text for name, text in spec.files.items() if name in JOB_FILES]
    measuring = json.loads(texts[0]).get("measuring") if texts else None
    if measuring is None:
        return None
    # Warm-up is known to be over only when a whole window of steps came after it; they are timed.
    timed = max(measuring["min_steps"], min(WINDOW, measuring["max_steps"]))
    return StepCounts(
        before=COUNTED_STEPS,
        warmup=measuring["max_warmup_steps"],
        timed=timed,
        most_timed=measuring["max_steps"],
        max_seconds=measuring["max_seconds"],
        after=measuring["profile_steps"],
    )
