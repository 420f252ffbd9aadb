"""How long schedulers have owed an answer, also while a question is still open: by then its thread cannot tell."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from prometheus_client import Metric
from prometheus_client.registry import Collector

from meshtune.runners.base import JobSpec, JobStatus, Runner, RunnerUnavailable
from meshtune.tuner.service.telemetry import gauge

# A scheduler that has not answered for so long is said to be silent.
SILENT_S = 10.0


class SchedulerSilence(Collector):
    """Of all schedulers that this process asks, by name. Any thread may call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds that never go back."""
        self._clock = clock
        self._lock = threading.Lock()
        # Since when an answer is owed: the first question after the last answer.
        self._owed: dict[str, float] = {}
        # How old the answer was that was used last.
        self._age_s: dict[str, float] = {}

    @contextmanager
    def asking(self, scheduler: str, age_s: Callable[[], float | None]) -> Iterator[None]:
        """The body asks the scheduler. RunnerUnavailable is no answer; any other end is one.

        age_s: how old the answer is that the body had; None where it may have had it from our own files."""
        begun = self._clock()
        with self._lock:
            first = self._owed.setdefault(scheduler, begun)
        try:
            yield
        except RunnerUnavailable:
            raise
        except BaseException:
            self._end(scheduler, first, begun, 0.0)
            raise
        self._end(scheduler, first, begun, age_s())

    def silence_s(self, scheduler: str) -> float:
        """For how long the scheduler has owed an answer, 0 where it owes none."""
        with self._lock:
            return self._clock() - self._owed[scheduler] if scheduler in self._owed else 0.0

    def ages_s(self) -> Mapping[str, float]:
        """How old the answers are that campaigns go by, by scheduler."""
        with self._lock:
            now = self._clock()
            return self._age_s | {name: now - since for name, since in self._owed.items()}

    def forget(self, scheduler: str) -> None:
        """Nobody asks it any more."""
        with self._lock:
            self._owed.pop(scheduler, None)
            self._age_s.pop(scheduler, None)

    def collect(self) -> Iterator[Metric]:
        words = "Age of the answer by which campaigns go; of one that is owed, since it was asked for."
        yield gauge("scheduler_answer_age_seconds", words, "scheduler", dict(sorted(self.ages_s().items())))

    def _end(self, scheduler: str, first: float, begun: float, age_s: float | None) -> None:
        with self._lock:
            # An answer that is older than the first failed question leaves that question open.
            if first == begun or (age_s is not None and self._clock() - age_s >= first):
                self._owed.pop(scheduler, None)
            if age_s is not None:
                self._age_s[scheduler] = age_s


class WatchedRunner:
    """A Runner whose scheduler's answers are noted."""

    def __init__(self, runner: Runner, scheduler: str, answers: SchedulerSilence) -> None:
        self.scheduler = scheduler
        self._runner, self._answers = runner, answers
        self.close = runner.close
        # How often the scheduler refused what `poll` sent, such as a pilot, since this was asked last.
        self.refusals: Callable[[], int] = getattr(runner, "refusals", int)

    @property
    def answered_ago_s(self) -> float:
        """How old the answer is that `poll` gave; see `SharedRunner`."""
        return getattr(self._runner, "answered_ago_s", 0.0)

    def submit(self, spec: JobSpec) -> str:
        with self._answers.asking(self.scheduler, lambda: 0.0):
            return self._runner.submit(spec)

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        with self._answers.asking(self.scheduler, lambda: self.answered_ago_s):
            return self._runner.poll(ids)

    def cancel(self, id: str) -> None:
        with self._answers.asking(self.scheduler, lambda: None):
            self._runner.cancel(id)

    def find(self, name: str) -> str | None:
        with self._answers.asking(self.scheduler, lambda: None):
            return self._runner.find(name)
