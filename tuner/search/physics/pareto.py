"""What a trial of each plan is worth where memory left over counts beside speed: the expected growth of the front.

The area between the Pareto front of log(seconds per token) and log(peak bytes) and a reference: half the best speed
measured, and the memory that a rank can use (hypervolume, Zitzler & Thiele 1998). Its expected growth is taken by
draws, the same ones for every plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np

from meshtune.search_spaces.columns import FloatColumn
from meshtune.tuner.search.physics.hypervolume import Points, added_area, dominated_area, front_of

DRAWS = 128
# Plans that are drawn together to find the chance that any extends the front: those with the largest expected growth.
DRAWN_PLANS = 100
SLOWEST = log(2.0)
# Keeps the logarithm of a growth that no draw has seen finite.
LEAST = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """log(seconds per token) and log(peak bytes) of plans: means and standard deviations."""

    time: FloatColumn
    time_sd: FloatColumn
    peak: FloatColumn
    peak_sd: FloatColumn


@dataclass(frozen=True, slots=True, eq=False)
class Front:
    """What was measured: the front, and the reference that closes the area."""

    points: Points
    reference: FloatColumn

    @property
    def area(self) -> float:
        return dominated_area(self.points, self.reference)


def measured_front(times: FloatColumn, peaks: FloatColumn, log_capacity: float) -> Front | None:
    """None while no plan was measured with its peak."""
    known = np.isfinite(peaks)
    if not np.any(known):
        return None
    reference = np.array([float(np.min(times)) + SLOWEST, log_capacity])
    return Front(front_of(np.stack([times[known], peaks[known]], axis=1)), reference)


def log_expected_growth(front: Front, outlook: Outlook, seed: int) -> FloatColumn:
    """The logarithm of the expected growth of the area by each plan."""
    grown = added_area(front.points, front.reference, _draws(outlook, DRAWS, seed))
    logs: FloatColumn = np.log(np.mean(grown, axis=0) + LEAST)
    return logs


def chance_of_growth(front: Front, outlook: Outlook, runs: FloatColumn, tolerance: float, seed: int) -> float:
    """The probability that any of the plans runs and extends the area by more than `tolerance` of it, the plans taken
    as independent, which makes it larger than it is."""
    promising = np.argsort(-(log_expected_growth(front, outlook, seed) + np.log(runs)), kind="stable")[:DRAWN_PLANS]
    few = Outlook(*(getattr(outlook, name)[promising] for name in Outlook.__slots__))
    grown = added_area(front.points, front.reference, _draws(few, 4 * DRAWS, seed)) > tolerance * front.area
    return float(1.0 - np.prod(1.0 - np.mean(grown, axis=0) * runs[promising]))


def _draws(outlook: Outlook, count: int, seed: int) -> Points:
    """count x plans x 2."""
    normal = np.random.default_rng(seed).standard_normal((count, 1, 2))
    return np.stack(
        [
            outlook.time + outlook.time_sd * normal[..., 0],
            outlook.peak + outlook.peak_sd * normal[..., 1],
        ],
        axis=-1,
    )
