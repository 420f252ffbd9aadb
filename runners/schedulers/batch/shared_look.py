"""One look at a scheduler serves all campaigns of a process: their jobs are asked for together, once in a period.

Runner objects over one root share what was seen. The shortest of their periods counts. A job that was just sent is
queued until the next look. A scheduler that was silent is not asked again at once, whoever's turn it is: each question
may take its whole time limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

from meshtune.runners.base import JobSpec, JobState, JobStatus, Runner, RunnerUnavailable

# A failed look is told again for so long, or for a period where that is shorter.
RETRY_S = 1.0
_SENT = JobStatus(state=JobState.QUEUED, reason="was sent, and not looked at since")


class SharedLook:
    """What one scheduler last said of the jobs of all `SharedRunner`s over it. One of them asks at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds that never go back."""
        self._clock = clock
        # A look holds it, so that others wait for its answer instead of asking too.
        self._lock = threading.RLock()
        # By member, the one that has looked for the others first: the jobs that it asked for last.
        self._wanted: dict[SharedRunner, set[str]] = {}
        self._seen: dict[str, JobStatus] = {}
        # When the last look began and when it ended; when one failed, and how.
        self._asked_at: float | None = None
        self._looked_at: float | None = None
        self._failed: tuple[float, str] | None = None

    @property
    def answered_ago_s(self) -> float:
        """How old the answer is that `poll` gives; 0 before the first."""
        return 0.0 if self._asked_at is None else self._clock() - self._asked_at

    def poll(self, member: SharedRunner, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        """As `Runner.poll`, for one of the members."""
        with self._lock:
            self._want(member, set(ids))
            if not all(map(self._ended, ids)) and (self._due() or any(id not in self._seen for id in ids)):
                self._look()
            return {id: self._seen[id] for id in ids}

    def sent(self, member: SharedRunner, id: str) -> None:
        """A job that the member has sent; it may have been there already."""
        with self._lock:
            self._want(member, {*self._wanted.get(member, ()), id})
            self._seen.setdefault(id, _SENT)

    def leave(self, member: SharedRunner) -> None:
        """The member asks for nothing more."""
        with self._lock:
            self._wanted.pop(member, None)

    def _want(self, member: SharedRunner, ids: set[str]) -> None:
        if self._wanted.get(member) == ids:
            return
        self._wanted[member] = ids
        wanted = set().union(*self._wanted.values())
        self._seen = {id: status for id, status in self._seen.items() if id in wanted}

    def _due(self) -> bool:
        period_s = min(member.period_s for member in self._wanted)
        return self._looked_at is None or self._failed is not None or self._clock() - self._looked_at >= period_s

    def _ended(self, id: str) -> bool:
        return id in self._seen and self._seen[id].state.final

    def _look(self) -> None:
        """Raises RunnerUnavailable."""
        ids = [id for wanted in self._wanted.values() for id in sorted(wanted) if not self._ended(id)]
        looker = next(iter(self._wanted))  # always the same one: it remembers where the records of jobs are
        begun = self._clock()
        period_s = min(member.period_s for member in self._wanted)
        if self._failed is not None and begun - self._failed[0] < min(RETRY_S, period_s):
            raise RunnerUnavailable(self._failed[1])
        try:
            self._seen |= looker.runner.poll(list(dict.fromkeys(ids)))
        except RunnerUnavailable as error:
            self._failed = (self._clock(), str(error))
            raise
        self._failed, self._asked_at, self._looked_at = None, begun, self._clock()


class SharedRunner:
    """A Runner whose looks are those of all runners over the same scheduler and records."""

    def __init__(self, runner: Runner, look: SharedLook, period_s: float) -> None:
        """period_s: it wants to know what is new so often."""
        self.runner, self.look, self.period_s = runner, look, period_s
        self.cancel, self.find, self.refusals = runner.cancel, runner.find, getattr(runner, "refusals", int)

    @property
    def answered_ago_s(self) -> float:
        return self.look.answered_ago_s

    def submit(self, spec: JobSpec) -> str:
        id = self.runner.submit(spec)
        self.look.sent(self, id)
        return id

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        return self.look.poll(self, ids)

    def close(self) -> None:
        self.look.leave(self)
        self.runner.close()


_looks: WeakValueDictionary[tuple[str, Path], SharedLook] = WeakValueDictionary()
_lock = threading.Lock()


def share(runner: Runner, scheduler: str, root: Path, period_s: float) -> SharedRunner:
    """The runner as one of those of this process that look at a scheduler together. scheduler: its name, which differs
    where one may not be asked for the other's jobs. root: of the records that they have in common."""
    with _lock:
        look = _looks.setdefault((scheduler, root.resolve()), SharedLook())
    return SharedRunner(runner, look, period_s)
