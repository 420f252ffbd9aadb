"""Rate limits: a token bucket for each of a bounded number of callers.

The strategies of `limits` count in windows: they have neither a burst with a steady refill, nor fractions of a request
a second, nor a monotonic clock, nor a bound on how many callers they remember.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

# The caller that was not seen for longest is forgotten, with a full bucket.
MAX_CALLERS = 10_000


class TokenBuckets:
    """rate_per_s: how fast a bucket fills; burst: how much it holds. Thread-safe."""

    def __init__(self, rate_per_s: float, burst: int) -> None:
        self._rate_per_s = rate_per_s
        self._burst = float(burst)
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = Lock()

    def take(self, caller: str, now: float) -> float:
        """0 where the caller may go on now, else the seconds to wait; then nothing was taken. now: monotonic."""
        with self._lock:
            level, seen_at = self._levels.pop(caller, (self._burst, now))
            level = min(self._burst, level + (now - seen_at) * self._rate_per_s)
            wait_s = 0.0 if level >= 1.0 else (1.0 - level) / self._rate_per_s
            self._levels[caller] = (level if wait_s else level - 1.0, now)
            if len(self._levels) > MAX_CALLERS:
                self._levels.popitem(last=False)
        return wait_s
