"""Several clocks: ours on the wall, which people read and which may be set anew; those of runners and databases, which
may differ from it; and one that nobody sets. Durations are measured by the last alone, or by a runner's own.

What a runner tells of happened between two moments that we know: the job was sent, and it was looked at. A time outside
is moved to the nearer of the two, and its distance is how far the clocks are apart, at the least.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from prometheus_client import Gauge

from meshtune.runners.base import JobStatus

# Clocks that NTP keeps differ by less.
TOLERATED_S = 5.0
_log = logging.getLogger(__name__)


def uptime() -> float:
    """Seconds on a clock that nobody sets; where the system has one, it goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Presence:
    """For how long this process was there and had its database, by a clock that nobody sets. `confirm` says that it is,
    every few seconds; what is longer than `most_s` from one to the next was an absence. Any thread may call."""

    def __init__(self, most_s: float, clock: Callable[[], float]) -> None:
        self._most_s, self._clock = most_s, clock
        # When it was confirmed last; the seconds of presence by then, and at the end of the last absence.
        self._known = clock(), 0.0, 0.0

    def look(self) -> tuple[float, float]:
        """The seconds of presence, and those of them since the last absence; 0 in one."""
        at, seconds, returned = self._known
        since_s = self._clock() - at
        return (seconds, 0.0) if since_s > self._most_s else (seconds + since_s, seconds + since_s - returned)

    def confirm(self) -> None:
        seconds, unbroken_s = self.look()
        self._known = self._clock(), seconds, seconds - unbroken_s


def by_our_clock(status: JobStatus, sent_at: float | None, now: float) -> JobStatus:
    """The status with times between these two."""

    def moved(at: float | None) -> float | None:
        return None if at is None else min(now, at if sent_at is None else max(sent_at, at))

    return replace(status, started_at=moved(status.started_at), finished_at=moved(status.finished_at))


def skew_s(status: JobStatus, sent_at: float | None, now: float) -> float | None:
    """How far the runner's clock is ahead of ours (behind: negative), at the least; None where the status has no time,
    or ours went back since the job was sent."""
    times = [at for at in (status.started_at, status.finished_at) if at is not None]
    if not times or sent_at is None or sent_at > now:
        return None
    return max((max(at - now, 0.0) + min(at - sent_at, 0.0) for at in times), key=abs)


class Skews:
    """How far other clocks are ahead of this process's, by their names, as last measured. Any thread may call."""

    def __init__(self) -> None:
        self.gauge = Gauge(
            "meshtune_clock_skew_seconds", "How far a clock is ahead of this process's.", ("clock",), registry=None
        )
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}

    def note(self, clock: str, seconds: float) -> None:
        """Keep a measurement; the first of several that is too large, and the next that is not, are logged."""
        with self._lock:
            before, self._seconds[clock] = self._seconds.get(clock, 0.0), seconds
        self.gauge.labels(clock).set(seconds)
        if abs(seconds) > TOLERATED_S >= abs(before):
            _log.warning("%s", _sentence(clock, seconds), extra={"clock": clock, "skew_s": seconds})
        elif abs(before) > TOLERATED_S >= abs(seconds):
            _log.info("the clock of %s agrees with ours again", clock, extra={"clock": clock, "skew_s": seconds})

    def troubles(self) -> Mapping[str, str]:
        """The clocks that are too far from ours, each with a sentence for people."""
        with self._lock:
            return {clock: _sentence(clock, s) for clock, s in self._seconds.items() if abs(s) > TOLERATED_S}


def _sentence(clock: str, seconds: float) -> str:
    return (
        f"the clock of {clock} is {abs(seconds):.0f} s or more {'ahead of' if seconds > 0 else 'behind'} ours; "
        "set both by NTP"
    )
