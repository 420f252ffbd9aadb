"""Spares a batch scheduler: jobs are looked at no more often than a site would like, however often somebody asks.

Schedulers answer for thousands of users, and a trial takes minutes: between two looks the last one is given again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from meshtune.runners.base import JobSpec, JobStatus, Runner


class PacedRunner:
    """Another runner, which is polled at most once in `period_s`, and besides when a job is new to us. What has ended
    is not asked for again. clock: seconds that never go back."""

    def __init__(self, runner: Runner, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.runner = runner
        self._period_s = period_s
        self._clock = clock
        self._seen: dict[str, JobStatus] = {}
        self._looked_at: float | None = None

    def submit(self, spec: JobSpec) -> str:
        return self.runner.submit(spec)

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        open_ = [id for id in ids if id not in self._seen or not self._seen[id].state.final]
        unseen = any(id not in self._seen for id in open_)
        due = self._looked_at is None or self._clock() - self._looked_at >= self._period_s
        if open_ and (due or unseen):
            self._seen |= self.runner.poll(open_)
            self._looked_at = self._clock()
        return {id: self._seen[id] for id in ids}

    def cancel(self, id: str) -> None:
        self.runner.cancel(id)

    def find(self, name: str) -> str | None:
        return self.runner.find(name)

    def close(self) -> None:
        self.runner.close()
