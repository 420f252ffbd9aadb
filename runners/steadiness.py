"""Warm-up is over where step times stop moving: found in the times themselves, never assumed.

A step is warm-up while the window of steps that begins with it is not settled. Two rank tests, so that no shape of
noise is assumed: its first step lies outside the range of the others (a first-step spike; by chance in 1 of 3 windows
of 6, which costs that one step), or the whole first half lies above or below the whole second half (a ramp; by chance
in 1 of 10). What is within `tolerance` is no difference, so quiet machines are not made to wait for nothing. A
truncation point that looks ahead is what Geweke (1992) and MSER (White 1997) choose as well; theirs compare means and
variances, which one outlier moves. Not seen: a drift that is slow against a window; it keeps the interval wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

WINDOW = 6  # two halves of 3: the fewest whose complete separation is rarer than 1 in 20 either way


def is_settled(window: Sequence[float], tolerance: float) -> bool:
    """True when neither the first step nor the first half stands out from what follows by more than `tolerance`."""
    if len(window) < 2:
        return True
    first, rest = window[0], window[1:]
    if first > max(rest) * (1 + tolerance) or first < min(rest) * (1 - tolerance):
        return False
    half = len(window) // 2
    early, late = window[:half], window[half:]
    separate = min(early) > max(late) or max(early) < min(late)
    return not (separate and abs(median(early) - median(late)) > tolerance * median(late))


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
