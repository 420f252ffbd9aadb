"""The statistics of one measurement: the median of step times and how sure it is.

The interval is the exact, distribution-free one from order statistics: for n independent samples the number below
the median is binomial(n, 1/2), so the j-th smallest and j-th largest enclose it with a known probability (David and
Nagaraja 2003, section 7.1). Step times are skewed and have outliers; no normality is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

CONFIDENCE = 0.95
MIN_SAMPLES = 6  # 1 - 2 / 2**6 = 0.969; with 5 samples even the full range covers the median with 0.9375 only


@dataclass(frozen=True, slots=True)
class Interval:
    """[low, high] in the unit of the samples; coverage is the true confidence, at least 0.95 from 6 samples on."""

    low: float
    high: float
    coverage: float


def median_interval(samples: Sequence[float]) -> Interval:
    """The narrowest order-statistic interval around the median with at least 95 % coverage.

    With fewer than 6 samples no such interval exists: the full range comes back with the coverage it has.
    Raises ValueError for no samples.
    """
    if not samples:
        raise ValueError("no samples, so no interval")
    ordered = sorted(samples)
    n = len(ordered)
    # Of the 2^n ways in which the samples fall on the two sides of the median, `outside` have at most `candidate` below
    # it: exact integers, since 2^-n is no float from 1075 samples on.
    outside, ways = 0, 1
    rank, coverage = 0, max(0.0, 1.0 - 2 / 2**n)
    for candidate in range((n - 1) // 2 + 1):
        outside += ways
        if 1.0 - 2 * outside / 2**n < CONFIDENCE:
            break
        rank, coverage = candidate, 1.0 - 2 * outside / 2**n
        ways = ways * (n - candidate) // (candidate + 1)
    return Interval(ordered[rank], ordered[n - 1 - rank], coverage)


def is_tight(samples: Sequence[float], precision: float) -> bool:
    """True when the 95 % interval of the median lies within +- `precision` (relative) of the median."""
    if len(samples) < MIN_SAMPLES:
        return False
    interval, middle = median_interval(samples), median(samples)
    return max(interval.high - middle, middle - interval.low) <= precision * middle
