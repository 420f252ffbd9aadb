"""How well each kind of runner answers this process: fed where runners are polled, shown to people and to monitoring.

Only what this process saw since it started; another service on the same database has counts of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from meshtune.runners.base import RunnerError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerHealth:
    """polls: all, poll_errors: those without an answer. answered_at: when the last answer came, epoch seconds; None
    before the first. trouble: why the last poll got none; empty after one that did."""

    polls: int = 0
    poll_errors: int = 0
    answered_at: float | None = None
    trouble: str = ""


class Health:
    """The counts of all kinds of runners. Methods may be called from several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._runners: dict[str, RunnerHealth] = {}

    def runners(self) -> Mapping[str, RunnerHealth]:
        """By kind, those that were polled."""
        with self._lock:
            return dict(self._runners)

    @contextmanager
    def polling(self, kind: str) -> Iterator[None]:
        """Counts the poll that its body makes; what the body raises goes on."""
        try:
            yield
        except RunnerError as error:
            self._count(kind, str(error))
            raise
        self._count(kind, "")

    def _count(self, kind: str, trouble: str) -> None:
        with self._lock:
            known = self._runners.get(kind, RunnerHealth())
            self._runners[kind] = replace(
                known,
                polls=known.polls + 1,
                poll_errors=known.poll_errors + bool(trouble),
                answered_at=known.answered_at if trouble else self._clock(),
                trouble=trouble,
            )
