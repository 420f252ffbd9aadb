"""Latency and bandwidth of a link from the times of messages: the alpha-beta model, fitted by relative least squares.

Relative, because the times span five decades: a large message's noise does not drown a small one's latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, inf


class NoFit(ValueError):
    """The times do not say what the link does; measuring longer may help."""


@dataclass(frozen=True, slots=True)
class LinkFit:
    """alpha_s: seconds per hop. bandwidth_bytes_per_s: per device and direction. worst_residual: the largest
    |fitted - measured| / measured of all sizes."""

    alpha_s: float
    bandwidth_bytes_per_s: float
    worst_residual: float


def fit_all_reduce(sizes_bytes: Sequence[int], times_s: Sequence[float], ranks: int) -> LinkFit:
    """The link under a ring all-reduce of S bytes over n ranks: t = 2 (n - 1) alpha + 2 (n - 1) / n * S / B.

    Source: Thakur, Rabenseifner and Gropp 2005, section 4.5, without the time of adding. Raises NoFit.
    """
    if ranks < 2:
        raise NoFit(f"an all-reduce over {ranks} rank uses no link")
    steps = 2 * (ranks - 1)
    return _fit(float(steps), [steps / ranks * size for size in sizes_bytes], times_s)


def fit_point_to_point(sizes_bytes: Sequence[int], times_s: Sequence[float]) -> LinkFit:
    """The link under one message of S bytes: t = alpha + S / B. Raises NoFit."""
    return _fit(1.0, [float(size) for size in sizes_bytes], times_s)


def _fit(hops: float, loads_bytes: Sequence[float], times_s: Sequence[float]) -> LinkFit:
    """hops * alpha + load / B = t, in the least squares of (fitted - t) / t; a negative alpha becomes 0, and B is then
    fitted alone."""
    if len(set(loads_bytes)) < 2:
        raise NoFit(f"two sizes at least are needed, not {len(set(loads_bytes))}")
    wrong = [time for time in times_s if not 0 < time < inf]
    if wrong:
        raise NoFit(f"times must be positive and finite, not {wrong[0]}")
    latency = [hops / time for time in times_s]
    load = [size / time for size, time in zip(loads_bytes, times_s, strict=True)]
    # The normal equations. The columns differ by ten decades, so each is scaled to a largest value of 1.
    scale = max(latency), max(load)
    first, second = [each / scale[0] for each in latency], [each / scale[1] for each in load]
    aa, ab, bb = _dot(first, first), _dot(first, second), _dot(second, second)
    determinant = aa * bb - ab * ab
    if determinant <= 0:
        raise NoFit("the times do not tell latency and bandwidth apart")
    alpha = (bb * sum(first) - ab * sum(second)) / determinant / scale[0]
    per_byte = (aa * sum(second) - ab * sum(first)) / determinant / scale[1]
    if alpha < 0:
        alpha, per_byte = 0.0, sum(load) / _dot(load, load)
    if per_byte <= 0:
        raise NoFit("larger messages did not take longer")
    residuals = [abs(alpha * hop + per_byte * byte - 1) for hop, byte in zip(latency, load, strict=True)]
    return LinkFit(alpha, 1 / per_byte, max(residuals))


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return fsum(a * b for a, b in zip(left, right, strict=True))
