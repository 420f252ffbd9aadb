"""How many answers are made at once: few, since they share one processor, and none waits in a thread that others need.

What takes long, such as a ranking of a thousand trials, has one turn for all; what is made soon passes it by.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

P = ParamSpec("P")
T = TypeVar("T")


class Turns(IntEnum):
    """Each kind of work has threads of its own, so many."""

    LONG = 1
    SHORT = 3
    # Looks at how new the store is, which every request waits for.
    LOOK = 2


_limiters: RunVar[dict[Turns, CapacityLimiter]] = RunVar("limiters")


async def make(turns: Turns, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns or raises, run on a thread as soon as one of its kind is free: first come, first served."""
    try:
        limiters = _limiters.get()
    except LookupError:
        limiters = {each: CapacityLimiter(each) for each in Turns}
        _limiters.set(limiters)
    return await run_sync(lambda: work(*args, **kwargs), limiter=limiters[turns])
