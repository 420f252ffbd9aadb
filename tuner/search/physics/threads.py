"""Linear algebra in one thread: matrices of some hundred rows gain nothing from more.

Threads of BLAS wait for each other in a loop. On two processors that others use too, an ask with 300 observations took
5 to 13 times as long with two of them, and 10 times the processor time (docs/log.md). An environment variable would do,
but jobs would inherit it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock

import numpy as np  # noqa: F401  # its library must be loaded before it is looked for
from threadpoolctl import ThreadpoolController


@contextmanager
def one_thread() -> Iterator[None]:
    """Meanwhile the linear algebra of the whole process has one thread; once nobody is inside, as many as before."""
    _LIMIT.enter()
    try:
        yield
    finally:
        _LIMIT.leave()


@dataclass(slots=True)
class _Limit:
    """Campaigns ask at the same time: the first sets the limit and the last lifts it, whoever leaves first."""

    lock: Lock = field(default_factory=Lock)
    inside: int = 0
    lifted: ExitStack = field(default_factory=ExitStack)

    def enter(self) -> None:
        with self.lock:
            if self.inside == 0:
                # Looked for each time: what another search imports meanwhile may bring a library of its own.
                self.lifted.enter_context(ThreadpoolController().limit(limits=1, user_api="blas"))
            self.inside += 1

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self.lifted.close()


_LIMIT = _Limit()
