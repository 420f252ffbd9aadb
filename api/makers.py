"""How many answers are made at once: few, since they share one processor, and none waits in a thread that others need.

What takes long, such as a ranking of a thousand trials, has one turn for all; what is made soon passes it by.
"""

from __future__ import annotations

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
_limiters: RunVar[dict[Turns, CapacityLimiter]] = RunVar("limiters")


async def make(turns: Turns, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns or raises, run on a thread as soon as one of its kind is free: first come, first served."""
    try:
        limiters = _limiters.get()
    except LookupError:
        limiters = {each: CapacityLimiter(threads) for each, threads in THREADS.items()}
        _limiters.set(limiters)
    return await run_sync(lambda: work(*args, **kwargs), limiter=limiters[turns])
