"""Few heaps for many threads: glibc gives each thread one, up to eight for each processor, and what is free in one is
of no use to the others, so that a service of thirty threads seems to grow for hours."""

from __future__ import annotations

import ctypes
from contextlib import suppress

# Python runs one thread at a time: more heaps than this would seldom be used at once.
HEAPS = 2
# M_ARENA_MAX of <malloc.h>.
_MOST_ARENAS = -8


def share_heaps() -> None:
    """Before threads are started. Where the C library is another one, nothing."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_MOST_ARENAS, HEAPS)
