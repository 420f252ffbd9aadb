"""The worth of a trial of each plan: expected improvement, the probability that it runs, and its cost.

Speeds are logarithms of seconds per token, so an improvement is a share of the speed. The expected improvement of a
mixture is the mixture of the expected improvements, exact for each plan. Each hypothesis about layouts is normal: that
steps are further off than the closest one has it is another one's word (`speed`), and surprises are slow, not fast
(benchmarks/log.md). Knobs' effects have one assumed size in all hypotheses: with knobs, without a model, and in the
chance that is left, tails are Student's t with 3 degrees of freedom.

With two objectives, speed and memory left over, the gain is the growth of the area (hypervolume, Zitzler & Thiele 1998)
of the Pareto front of log(seconds per token) and log(peak bytes). A reference closes the area: half the best speed
measured, and the memory that a rank can use. The growth is taken by draws, the same ones for every plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, log, pi, sqrt

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import FloatColumn
from meshtune.search_spaces.physics.estimate import heavy_cdf
from meshtune.tuner.campaign.second_runs import falling
from meshtune.tuner.search.physics.prior import Rows, stack
from meshtune.tuner.search.physics.speed import Component, Speeds

# Plans that are drawn together to find the chance that any is better: those with the largest chance of their own.
DRAWN_PLANS = 200
DRAWS = 1000
# The same for the chance that any extends the Pareto front, and for the expected growth of its area.
FRONT_PLANS = 100
FRONT_DRAWS = 128
# The front's reference in time: half the best speed measured.
SLOWEST = log(2.0)
# Far below any improvement that counts; keeps logarithms finite.
LEAST = 1e-12

# Standard deviations, from which on the normal distribution's expansion takes the place of its functions.
FAR_OUT = -5.0

Points = npt.NDArray[np.float64]
_erfc = np.vectorize(erfc, otypes=[np.float64])


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that a trial holds its devices: startup_s + steps * seconds per step; failed_s when it fails.

    None of it known: every trial costs the same.
    """

    startup_s: float
    steps: float
    failed_s: float

    def of(self, log_step_s: FloatColumn, runs: FloatColumn) -> FloatColumn:
        return runs * (self.startup_s + self.steps * np.exp(log_step_s)) + (1.0 - runs) * self.failed_s


EQUAL = Cost(1.0, 0.0, 1.0)


def cost_of(held_s: Sequence[float], steps_s: Sequence[float], failed_held_s: Sequence[float]) -> Cost:
    """From measured trials, their seconds held and seconds per step, and the seconds that failed ones held."""
    if len(held_s) < 2:
        return EQUAL
    held, steps = np.array(held_s), np.array(steps_s)
    off = steps - steps.mean()
    slope = max(0.0, float(off @ held) / float(off @ off)) if off @ off > 0 else 0.0
    startup = max(0.05 * float(np.median(held)), float(np.median(held - slope * steps)))
    failed = float(np.median(failed_held_s)) if failed_held_s else startup
    return Cost(startup, slope, failed)


def log_expected_improvement(components: Sequence[Component], best: float, *, heavy: bool = False) -> FloatColumn:
    """The logarithm of the mean of max(0, best - log(seconds per token)) for each plan. heavy: by Student's t."""
    unit_gain = _log_heavy_gain if heavy else _log_normal_gain
    parts = [log(one.weight) + np.log(one.sd) + unit_gain((best - one.mean) / one.sd) for one in components]
    total: FloatColumn = np.logaddexp.reduce(parts)
    return total


def _log_normal_gain(u: FloatColumn) -> FloatColumn:
    """The logarithm of the mean of max(0, u - Z): of u F(u) + f(u), with the normal distribution function F and density
    f (Jones et al. 1998, eq. 15).

    Far out that is a difference of equal numbers: there f(u) / (u^2 + 3), from the expansion of Mills' ratio, keeps
    the order of hopeless plans.
    """
    near = np.maximum(u, FAR_OUT)
    gain = near * 0.5 * _erfc(-near / sqrt(2.0)) + np.exp(-0.5 * near**2) / sqrt(2.0 * pi)
    return np.where(u > FAR_OUT, np.log(gain), -0.5 * (u**2 + log(2.0 * pi)) - np.log(u**2 + 3.0))


def _log_heavy_gain(u: FloatColumn) -> FloatColumn:
    """For 3 degrees of freedom, the mean of max(0, u - T) is u F(u) + (3 + u^2) f(u) / 2 with its distribution function
    F and density f (Tracey & Wolpert 2018, section 3): it falls as u^-2, never to nothing."""
    density = 6.0 * sqrt(3.0) / (pi * (3.0 + u**2) ** 2)
    return np.log(np.maximum(u * heavy_cdf(u) + (3.0 + u**2) / 2.0 * density, LEAST))


def chance_better(components: Sequence[Component], than: float) -> FloatColumn:
    """The probability that each plan takes fewer log(seconds per token)."""
    total: FloatColumn = np.sum([one.weight * heavy_cdf((than - one.mean) / one.sd) for one in components], axis=0)
    return total


def chance_left(
    speeds: Speeds,
    components: Sequence[Component],
    runs: FloatColumn,
    rows: Rows,
    best: Rows,
    tolerance: float,
    seed: int,
) -> float:
    """The probability that any of the plans of `rows` runs and is faster than the best one by more than `tolerance`.

    components, runs: of these plans. best: one row, the best measured plan, whose own speed is not known for sure
    either. By `DRAWS` joint draws of the most promising plans' speeds: neighbours are fast together, so their chances
    do not add up. That plans run is taken as independent of each other, which makes the chance larger than it is.
    """
    if not len(rows):
        return 0.0
    random = np.random.default_rng(seed)
    incumbent = float(sum(one.weight * one.mean[0] for one in speeds.at(best)))
    single = chance_better(components, incumbent + np.log1p(-tolerance)) * runs
    chosen = np.argsort(-single, kind="stable")[:DRAWN_PLANS]
    drawn = speeds.draw(stack([best, rows.take(chosen)]), DRAWS, random)
    faster = drawn[:, 1:] < drawn[:, :1] + np.log1p(-tolerance)
    better = faster & (random.random(faster.shape) < runs[chosen])
    return float(np.mean(np.any(better, axis=1)))


def front_of(points: Points) -> Points:
    """Those of the points (n x 2) that no other is at least as small as in both, by the first objective."""
    order = np.lexsort((points[:, 1], points[:, 0]))
    return points[falling(order.tolist(), lambda index: float(points[index, 1]))]


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


def measured_front(times: FloatColumn, peaks: FloatColumn, log_capacity: float) -> Front | None:
    """The front of the measured plans; None while no peak is known."""
    known = np.isfinite(peaks)
    if not np.any(known):
        return None
    reference = np.array([float(np.min(times)) + SLOWEST, log_capacity])
    return Front(front_of(np.stack([times[known], peaks[known]], axis=1)), reference)


def log_expected_growth(front: Front, outlook: Outlook, seed: int) -> FloatColumn:
    grown = added_area(front.points, front.reference, _draws(outlook, FRONT_DRAWS, seed))
    logs: FloatColumn = np.log(np.mean(grown, axis=0) + LEAST)
    return logs


def chance_of_growth(front: Front, outlook: Outlook, runs: FloatColumn, tolerance: float, seed: int) -> float:
    """The probability that any of the plans runs and extends the area by more than `tolerance` of it, the plans taken
    as independent, which makes it larger than it is."""
    promising = np.argsort(-(log_expected_growth(front, outlook, seed) + np.log(runs)), kind="stable")[:FRONT_PLANS]
    few = Outlook(*(getattr(outlook, name)[promising] for name in Outlook.__slots__))
    area = dominated_area(front.points, front.reference)
    grown = added_area(front.points, front.reference, _draws(few, 4 * FRONT_DRAWS, seed)) > tolerance * area
    return float(1.0 - np.prod(1.0 - np.mean(grown, axis=0) * runs[promising]))


def _draws(outlook: Outlook, count: int, seed: int) -> Points:
    """count x plans x 2."""
    normal = np.random.default_rng(seed).standard_normal((count, 1, 2))
    times = outlook.time + outlook.time_sd * normal[..., 0]
    return np.stack([times, outlook.peak + outlook.peak_sd * normal[..., 1]], axis=-1)
