"""Memory that a service does not use goes back to the system, so that one that runs for weeks does not seem to grow.

glibc gives each thread a heap, up to eight for each processor, and what is free in one is of no use to the others. And
a heap stays as large as it ever was while something small lies at its end.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Python runs one thread at a time: more heaps than this would seldom be used at once.
HEAPS = 2
# To have what is free looked for takes milliseconds, and as long to get some of it again.
TRIM_EVERY_S = 60.0
# M_ARENA_MAX of <malloc.h>.
_MOST_ARENAS = -8


def share_heaps() -> None:
    """Before threads are started. Where the C library is another one, nothing."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_MOST_ARENAS, HEAPS)


@contextmanager
def trimmed_heaps(every_s: float = TRIM_EVERY_S) -> Iterator[None]:
    """Give back what is free now and then, meanwhile. Where the C library is another one, nothing."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        yield
        return
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(every_s):
            trim(0)

    thread = threading.Thread(target=run, name="heaps", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
