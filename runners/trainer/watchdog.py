"""A rank in which nothing moves any more says so itself and ends, long before a time limit ends it for it.

A thread of its own, so it is started in the rank, after the fork. It sees no difference between a rank that hangs and
one that waits for a peer that does: all of them say so at about the same time, and the one that says nothing is to
blame. It needs the interpreter's lock: code that hangs while holding it is left to the runner's time limit. Time for
which the whole process was stopped, as by a scheduler that suspends the job for another one, does not count.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import Verdict
from meshtune.runners.trainer.failure import Progress, RankFailure, write_failure

LOOKS = 20  # per stall_s; ranks that stall together thus give up within stall_s / 20 of each other
LONGEST_PERIOD_S = 0.2  # below the time that a runner leaves to the peers of a dead rank
LATEST_LOOK = 5  # periods: a look that comes later was kept from coming, and so were the steps


def start_watchdog(progress: Progress, stall_s: float, rank: int, directory: Path) -> None:
    """End this process with a failure file once `progress` has had no beat for `stall_s`."""
    period_s = min(stall_s / LOOKS, LONGEST_PERIOD_S)

    def watch() -> None:
        still_s, looked_at = 0.0, time.monotonic()
        while still_s < stall_s:
            time.sleep(period_s)
            before, looked_at = looked_at, time.monotonic()
            still_s = stillness(still_s, looked_at - before, looked_at - progress.moved_at, period_s)
        _give_up(progress, stall_s, rank, directory)

    threading.Thread(target=watch, name="watchdog", daemon=True).start()


def stillness(before_s: float, since_look_s: float, since_beat_s: float, period_s: float) -> float:
    """For how many seconds nothing moved while the process could run. before_s: what the look before found;
    since_look_s, since_beat_s: by the clock, since that look and the last beat; period_s: planned between looks."""
    return min(since_beat_s, before_s + min(since_look_s, LATEST_LOOK * period_s))


def _give_up(progress: Progress, stall_s: float, rank: int, directory: Path) -> None:
    reason = f"no step finished for {stall_s:g} s"
    failure = RankFailure(
        rank=rank,
        at=time.time(),
        verdict=Verdict.TIMED_OUT,
        phase=progress.phase,
        reason=reason,
        traceback=_all_tracebacks(),
        cause=Cause.HANG,
    )
    with suppress(OSError):
        write_failure(directory, failure)
        sys.stderr.write(f"rank {rank} gave up in {failure.phase}: {reason}\n{failure.traceback}\n")
        sys.stderr.flush()
    os._exit(1)


def _all_tracebacks() -> str:
    """Every thread's stack, the newest call first. faulthandler writes to a file descriptor only."""
    with suppress(OSError), tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode("utf-8", errors="replace")
    return ""
