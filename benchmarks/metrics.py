"""How well predictions match measurements: relative errors, ranks, and the ROC curve's area. None: not defined."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def absolute_relative_errors(predicted: Floats, measured: Floats) -> Floats:
    """|predicted - measured| / measured, as a fraction, where something was measured (not NaN)."""
    known = np.isfinite(measured)
    errors: Floats = np.abs(predicted[known] - measured[known]) / measured[known]
    return errors


def mean(values: Floats) -> float | None:
    return float(np.mean(values)) if len(values) else None


def median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None


def ranks(values: Floats) -> Floats:
    """1 for the smallest; equal values share the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Floats = (last - (counts - 1) / 2)[which]
    return shared


def spearman(first: Floats, second: Floats) -> float | None:
    """The rank correlation; None for fewer than two values, or where either has but one value."""
    if len(first) < 2:
        return None
    one, other = (ranks(values) - (len(values) + 1) / 2 for values in (first, second))
    norm = np.sqrt(np.sum(one**2) * np.sum(other**2))
    return float(np.sum(one * other) / norm) if norm > 0 else None


def area_under_roc(score: Floats, positive: Bools) -> float | None:
    """The chance that a positive case scores higher than a negative one, half of it where they score the same.

    Mann and Whitney's U over the number of pairs (Hanley & McNeil 1982). None where a class is empty.
    """
    positives, negatives = int(np.sum(positive)), int(np.sum(~positive))
    if not positives or not negatives:
        return None
    above = np.sum(ranks(score)[positive]) - positives * (positives + 1) / 2
    return float(above / (positives * negatives))
