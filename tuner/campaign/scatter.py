"""How far runs of one plan lie apart: what a kind of device lets expect, and what a campaign has shown.

The logarithm of the standard deviation of a run's log speed has a prior: half normal, by the kind of device, and half
flat, so that the runs alone tell where a cluster is not of its kind. Its posterior on a grid, with a normal
distribution of a mean of runs at each point, tells what is likely of that mean (docs/decisions/choosing.md#d0072).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import erfc, log, pi, sqrt

import numpy as np

from meshtune.search_spaces.cluster import DeviceKind

# The median, and the scale of the logarithm. GPUs: the repeats of 109 settings in MLPerf Training 5.1, which scatter by
# 0.09 % in the median and 90 % of them by less than 0.4 %. CPU: cores that others use too, 5 to 15 %.
_GPU = (0.001, 0.85)
PRIORS: Mapping[DeviceKind, tuple[float, float]] = {
    DeviceKind.CUDA: _GPU,
    DeviceKind.XPU: _GPU,
    DeviceKind.CPU: (0.1, 0.6),
}
_LOGS = np.linspace(log(1e-4), log(2.0), 100)
_GRID = np.exp(_LOGS)


@dataclass(frozen=True, slots=True)
class Scatter:
    """squares: the sum of squared residuals of log speeds, with so many degrees of freedom."""

    kind: DeviceKind
    degrees: int
    squares: float

    @property
    def typical(self) -> float:
        """The median of what the standard deviation may be."""
        weights, sds = zip(*_posterior(self), strict=True)
        return float(sds[np.searchsorted(np.cumsum(weights), 0.5)])

    def chance(self, value: float, least: float, z: float, rounds: int, last: int) -> float:
        """The probability that the mean of `last` differences of two runs is at least `least`, and `z` standard
        deviations. value: their mean over the first `rounds`."""
        further, end = sqrt(2 / rounds - 2 / last), z * sqrt(2 / last)
        return sum(weight * _above((max(least, end * sd) - value) / (further * sd)) for weight, sd in _posterior(self))


@lru_cache(maxsize=256)
def _posterior(scatter: Scatter) -> list[tuple[float, float]]:
    """Weights, of which the negligible are left out, and standard deviations."""
    median, scale = PRIORS[scatter.kind]
    normal = np.exp(-(((_LOGS - log(median)) / scale) ** 2) / 2)
    logs = np.log(normal / np.sum(normal) + 1 / _LOGS.size) - scatter.degrees * _LOGS - scatter.squares / (2 * _GRID**2)
    weights = np.exp(logs - np.max(logs))
    weights = np.where(weights < 1e-8, 0.0, weights)
    return [pair for pair in zip((weights / np.sum(weights)).tolist(), _GRID.tolist(), strict=True) if pair[0]]


@lru_cache(maxsize=256)
def reach(scatter: Scatter, tail: float) -> float:
    """What the error of one run exceeds with this probability."""
    low, high = 1e-5, 20.0
    for _ in range(20):
        middle = sqrt(low * high)
        above = sum(weight * _above(middle / sd) for weight, sd in _posterior(scatter))
        low, high = (middle, high) if above > tail else (low, middle)
    return high


def _above(z: float) -> float:
    """The share of a normal distribution above this many standard deviations."""
    return erfc(z / sqrt(2)) / 2


@lru_cache(maxsize=64)
def bounds(error: float, looks: int) -> tuple[float, ...]:
    """How many standard deviations above zero the mean of equal plans' differences comes with this probability at any
    of the looks: alpha spending (Lan and DeMets 1983), at each look an even part of it. By integration over what the
    sum of the differences may be that has not come so high before."""
    sums = np.linspace(-1, 1, 2001) * (6 * sqrt(looks) + 2)
    step = float(sums[1] - sums[0])
    normal = np.exp(-(sums**2) / 2) / sqrt(2 * pi)
    density, found = normal, list[float]()
    for look in range(1, looks + 1):
        above = np.cumsum(density[::-1])[::-1] * step
        end = float(np.interp(-error / looks, -above, sums))
        found.append(end / sqrt(look))
        density = np.convolve(np.where(sums < end, density, 0.0), normal, mode="same") * step
    return tuple(found)
