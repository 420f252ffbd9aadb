"""Two objectives, speed and memory left over: how much a trial of each plan extends the Pareto front.

The front is that of log(seconds per token) and log(peak bytes), both to be small. Its area (hypervolume, Zitzler &
Thiele 1998) is closed by a reference: half the best speed measured, and the memory that a rank can use. The expected
growth of the area is taken by draws, the same ones for every plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import FloatColumn

Points = npt.NDArray[np.float64]

DRAWS = 128
# Plans that are drawn together to find the chance that any extends the front: those with the largest expected growth.
DRAWN_PLANS = 100
# The reference in time: half the best speed measured.
SLOWEST = log(2.0)
# Keeps the logarithm of a growth that no draw has seen finite.
LEAST = 1e-12


def front_of(points: Points) -> Points:
    """Those of the points (n x 2) that no other is at least as small as in both, by the first objective."""
    order = np.lexsort((points[:, 1], points[:, 0]))
    kept: list[int] = []
    lowest = np.inf
    for index in order:
        if points[index, 1] < lowest:
            kept.append(int(index))
            lowest = float(points[index, 1])
    return points[kept]


def dominated_area(front: Points, reference: FloatColumn) -> float:
    """The area between a front and the reference, which is no better than any point of interest (2)."""
    inside = front[np.all(front < reference, axis=1)]
    ends = np.append(inside[1:, 0], reference[0])
    return float(np.sum((ends - inside[:, 0]) * (reference[1] - inside[:, 1])))


def added_area(front: Points, reference: FloatColumn, points: Points) -> FloatColumn:
    """The dominated area that each of the points (any shape x 2) adds; 0 for a point beyond the reference.

    front: as `front_of` gives it. Between two neighbours of the front, a point adds what lies below the left one's
    second objective.
    """
    inside = front[np.all(front < reference, axis=1)]
    lefts = np.concatenate([[-np.inf], inside[:, 0]])
    rights = np.concatenate([inside[:, 0], [reference[0]]])
    ceilings = np.concatenate([[reference[1]], inside[:, 1]])
    total = np.zeros(points.shape[:-1])
    for left, right, ceiling in zip(lefts, rights, ceilings, strict=True):
        width = right - np.maximum(points[..., 0], left)
        total += np.maximum(width, 0.0) * np.maximum(ceiling - points[..., 1], 0.0)
    return total


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """log(seconds per token) and log(peak bytes) of plans: means and standard deviations."""

    time: FloatColumn
    time_sd: FloatColumn
    peak: FloatColumn
    peak_sd: FloatColumn


@dataclass(frozen=True, slots=True, eq=False)
class Front:
    """The measured front, and the reference that closes its area."""

    points: Points
    reference: FloatColumn

    @property
    def area(self) -> float:
        return dominated_area(self.points, self.reference)


def measured_front(times: FloatColumn, peaks: FloatColumn, log_capacity: float) -> Front | None:
    """The front of the measured plans; None while no peak is known."""
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
