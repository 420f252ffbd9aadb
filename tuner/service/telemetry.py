"""What one process measures of its own work: how long ticks and asks take, how often leases changed hands.

Plain values that any thread may add to; `api.routes.metrics` shows them. What the store knows is not counted here
again.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

# From a tick that finds nothing to do to a search that thinks for a minute.
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0)


class Histogram:
    """How many values were at most as large as each bound. bounds: growing; a value above all of them counts too."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        with self._lock:
            self._counts[bisect_left(self.bounds, value)] += 1
            self._sum += value

    @property
    def sum(self) -> float:
        """Of all values until now."""
        return self._sum

    def read(self) -> tuple[list[int], float]:
        """How many values were at most each bound, then how many there were; and their sum."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        for place in range(1, len(counts)):
            counts[place] += counts[place - 1]
        return counts, total

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Observe how many seconds the body takes, also where it raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.observe(time.perf_counter() - start)


class Tally:
    """Counts by name. The names are the code's own, so that there are few."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def read(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._counts)


class Telemetry:
    """Of one service. tick_s: one tick of one campaign. ask_s: one question to a search. leases: changes by kind, as
    `tuner.service.leases` counts them."""

    def __init__(self, leases: Tally) -> None:
        self.tick_s = Histogram()
        self.ask_s = Histogram()
        self.leases = leases
