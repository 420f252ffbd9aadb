"""Ends whatever a part of the kit left running: job servers and ranks have sessions of their own. Linux."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_LIMIT_S, _PERIOD_S = 3.0, 0.02


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none can leave unseen (prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def below(root: int) -> list[int]:
    """The process ids below `root`, those that have ended and wait for their parent included."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            # After the name, which may hold anything: state and parent.
            parent = int(place.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(place.parent.name))
    found, frontier = [], [root]
    while frontier:
        frontier = [child for parent in frontier for child in children.get(parent, [])]
        found += frontier
    return found


def end_descendants(spared: int | None = None) -> None:
    """Kill all descendants of this process but one, again until none is left or the time is over."""
    end = time.monotonic() + _LIMIT_S
    while time.monotonic() < end:
        alive = [pid for pid in below(os.getpid()) if pid != spared]
        if not alive:
            return
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # not a child yet, or one that its Popen has waited for
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_PERIOD_S)
