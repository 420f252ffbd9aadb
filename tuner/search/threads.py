"""Linear algebra in one thread: matrices of some hundred rows gain nothing from more.

Threads of BLAS wait for each other in a loop. On two processors that others use too, an ask with 300 observations took
5 to 13 times as long with two of them, and 10 times the processor time (docs/log.md). An environment variable would do,
but jobs would inherit it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np  # noqa: F401  # its library must be loaded before it is looked for
from threadpoolctl import ThreadpoolController


@contextmanager
def one_thread() -> Iterator[None]:
    """Meanwhile the linear algebra of the whole process has one thread; then as many as before."""
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
