"""Warm-up is over where step times stop moving: found in the times themselves, never assumed.

A step is warm-up while the window of 6 steps that begins with it is not settled. Two rank tests, so that no shape of
noise is assumed: the first step stands out (slower than all but one of the others, or faster than all: a spike), or the
window has a trend (Kendall's S of 7 or more out of 15: a ramp; of noise alone, 1 window in 7 either way). They are
sharp on purpose: dropping a good step costs that step (half a step per run, on average), keeping a bad one costs truth.
What is within `tolerance` is no difference, so quiet machines wait for nothing. A truncation point that looks ahead is
what Geweke (1992) and MSER (White 1997) choose too; theirs compare means and variances, which one outlier moves. Not
seen: a drift that is slow against a window; it keeps the interval of the median wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median

WINDOW = 6
TREND = 7 / 15  # of all pairs, those in one order minus those in the other


def is_settled(window: Sequence[float], tolerance: float) -> bool:
    """True when the first step does not stand out by more than `tolerance`, and there is no trend larger than that."""
    if len(window) < 3:
        return True
    first, others = window[0], sorted(window[1:])
    if first > others[-2] * (1 + tolerance) or first < others[0] * (1 - tolerance):
        return False
    pairs = list(combinations(window, 2))
    order = sum((later > earlier) - (later < earlier) for earlier, later in pairs)
    half = len(window) // 2
    early, late = median(window[:half]), median(window[half:])
    return abs(order) < TREND * len(pairs) or abs(early - late) <= tolerance * late


def warmup_length(times: Sequence[float], *, most: int, window: int, tolerance: float) -> int | None:
    """How many of the first steps are warm-up, at most `most`; None while too few steps are known to say.

    An answer is final: more steps do not change it.
    """
    for start in range(most):
        view = times[start : start + window]
        if len(view) < window:
            return None
        if is_settled(view, tolerance):
            return start
    return most
