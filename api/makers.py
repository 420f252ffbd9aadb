"""How many answers are made at once: few, since they share one processor, and none waits in a thread that others need.

What takes long, such as a ranking of a thousand trials, has one turn for all; what is made soon passes it by. What is
made ahead, for nobody who waits, gives way to both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

P = ParamSpec("P")
T = TypeVar("T")


class Turns(Enum):
    """Each kind of work has threads of its own."""

    LONG = auto()
    SHORT = auto()
    # What another process computes for seconds: its thread waits.
    ANALYSIS = auto()
    # Looks at how new the store is, which every request waits for.
    LOOK = auto()


THREADS: Mapping[Turns, int] = {Turns.LONG: 1, Turns.SHORT: 3, Turns.ANALYSIS: 1, Turns.LOOK: 2}
# What requests wait for now; looks are no work worth giving way to.
AWAITED = (Turns.LONG, Turns.SHORT)
_limiters: RunVar[dict[Turns, CapacityLimiter]] = RunVar("limiters")


class Awaited:
    """Counts what is being made for requests. Thread-safe."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def add(self, count: int) -> None:
        with self._changed:
            self._count += count
            self._changed.notify_all()

    def give_way(self, limit_s: float) -> None:
        """Return when no request waits for anything, at the latest after so long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._count, limit_s)


awaited = Awaited()


async def make(turns: Turns, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns or raises, run on a thread as soon as one of its kind is free: first come, first served."""
    try:
        limiters = _limiters.get()
    except LookupError:
        limiters = {each: CapacityLimiter(threads) for each, threads in THREADS.items()}
        _limiters.set(limiters)
    count = int(turns in AWAITED)
    awaited.add(count)
    try:
        return await run_sync(lambda: work(*args, **kwargs), limiter=limiters[turns])
    finally:
        awaited.add(-count)
