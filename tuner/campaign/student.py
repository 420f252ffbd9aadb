"""Quantiles of Student's t, for whole degrees of freedom."""

from __future__ import annotations

from functools import cache
from math import atan, cos, pi, sin, sqrt


def probability_within(t: float, degrees: int) -> float:
    """The probability that Student's t lies between -t and t: Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = atan(t / sqrt(degrees))
    term = cos(angle) if degrees % 2 else 1.0
    total = term if degrees > 1 or degrees % 2 == 0 else 0.0
    for k in range(3 if degrees % 2 else 2, degrees - 1, 2):
        term *= cos(angle) ** 2 * (k - 1) / k
        total += term
    if degrees % 2 == 0:
        return sin(angle) * total
    return 2 / pi * (angle + (sin(angle) * total if degrees > 1 else 0.0))


@cache
def two_sided_quantile(level: float, degrees: int) -> float:
    """The t between minus and plus which a share `level` of the distribution lies. degrees: at least 1."""
    low, high = 0.0, 1.0
    while probability_within(high, degrees) < level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if probability_within(middle, degrees) < level else (low, middle)
    return high
