"""A Digest is a measurement without its steps: what rankings of many trials need, kept beside the steps.

It holds for the ranks what the fullest one used, so `peak_memory_bytes` and `peak_held_bytes` have one value or none;
there is no profile. Everything else answers as the measurement itself would; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshtune.runners.measuring.median_interval import Interval
from meshtune.runners.outcome import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest(Measurement):
    """median_s, and the ends of its interval: of the timed steps, which are left out, so the interval's coverage is not
    known (0). Read from the store, never written to it."""

    median_s: float
    low_s: float
    high_s: float

    def __post_init__(self) -> None:
        """Nothing to check: the measurement was, before it was stored."""

    @property
    def step_time_s(self) -> float:
        return self.median_s

    @property
    def step_time_interval_s(self) -> Interval:
        return Interval(self.low_s, self.high_s, 0.0)
