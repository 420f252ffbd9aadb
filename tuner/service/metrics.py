"""Prometheus metrics of one service, and the state of its runners: what this process saw since it started.

The metrics belong to no registry; `api.routes.metrics` adds them to its own. What the store knows is not counted here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from prometheus_client import Counter, Histogram, disable_created_metrics

from meshtune.runners.base import RunnerError

# Bounds of the histograms: from a tick that finds nothing to do to a search that takes a minute.
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0)
# Else each counter has one more series, the time of its start; the process's start time is a metric of its own.
disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerHealth:
    """One kind of runner, as this process polled it."""

    poll_errors: int = 0
    # Epoch seconds of the last answer; None before the first.
    answered_at: float | None = None
    # Why the last poll failed; empty after one that did not.
    trouble: str = ""


class ServiceMetrics:
    """lease_changes: of the service's `Holder`. clock: epoch seconds. Methods may be called from several threads."""

    def __init__(self, lease_changes: Counter, clock: Callable[[], float]) -> None:
        self.lease_changes = lease_changes
        self.tick_s = Histogram("meshtune_tick_seconds", "One step of one campaign.", buckets=SECONDS, registry=None)
        self.ask_s = Histogram(
            "meshtune_ask_seconds", "One question to a search for new plans.", buckets=SECONDS, registry=None
        )
        self.polls = Counter("meshtune_polls", "Looks at running jobs.", ("runner",), registry=None)
        self.poll_errors = Counter("meshtune_poll_errors", "Looks without an answer.", ("runner",), registry=None)
        self._clock = clock
        self._lock = threading.Lock()
        self._runners: dict[str, RunnerHealth] = {}

    def runners(self) -> Mapping[str, RunnerHealth]:
        """By kind, those that were polled."""
        with self._lock:
            return dict(self._runners)

    @contextmanager
    def polling(self, kind: str) -> Iterator[None]:
        """Counts the poll in its body. Only a RunnerError counts as the runner's; every error is raised again."""
        try:
            yield
        except RunnerError as error:
            self._count(kind, str(error))
            raise
        self._count(kind, "")

    def _count(self, kind: str, trouble: str) -> None:
        self.polls.labels(kind).inc()
        self.poll_errors.labels(kind).inc(bool(trouble))
        with self._lock:
            known = self._runners.get(kind, RunnerHealth())
            answered_at = known.answered_at if trouble else self._clock()
            errors = known.poll_errors + bool(trouble)
            self._runners[kind] = replace(known, poll_errors=errors, answered_at=answered_at, trouble=trouble)
