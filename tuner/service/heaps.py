"""Memory that a service does not use goes back to the system, so that one that runs for weeks does not seem to grow.

glibc gives each thread a heap, up to eight for each processor, and what is free in one is of no use to the others. A
heap stays as large as it ever was while something small lies at its end. And large blocks are the system's own until
one of that size was freed, maybe hours after the start, and make the heaps grow then: here they do from the start on.
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
# The most that glibc comes to by itself, and twice that: blocks from a heap need no new pages each time, which halves
# the time of an ask; what is free goes back once a minute.
LARGE_BYTES = 32 * 2**20
# M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of <malloc.h>.
_MOST_ARENAS, _LARGE, _FREE_AT_END = -8, -3, -1


def share_heaps() -> None:
    """Before threads are started. Where the C library is another one, nothing."""
    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        for option, value in ((_MOST_ARENAS, HEAPS), (_LARGE, LARGE_BYTES), (_FREE_AT_END, 2 * LARGE_BYTES)):
            libc.mallopt(option, value)


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
