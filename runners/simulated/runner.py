"""The simulated runner: a cluster of any size in some files, for campaigns on a laptop that need no device.

What becomes of a job is settled by arithmetic when it is sent (`runners.simulated.ground_truth`) and told when its time
is over. Files hold everything, and a job's state follows from them and the clock, so whoever asks may die at any
moment:

    root/jobs/NAME        the job: when it was sent, how long it takes, how it ends; there whole, and never changed
    root/cancelled/NAME   when somebody asked for its end
    root/begun/NAME       when it began, for one that had to wait for a slot
    root/over/NAME        how it ended; the files above are gone then
    root/lock             held while anything is looked at or changed, so that nothing seen is ever taken back

What has happened is written down, so that what is to come follows from the jobs that are not over: a look costs the
same however many there were. The result file appears in the job's folder once it has ended, as any job's: a search gets
to see nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any, ClassVar

from meshtune.runners.base import InvalidJob, JobSpec, JobState, JobStatus, RunnerUnavailable, SubmitFailed
from meshtune.runners.documents import plain, read_value
from meshtune.runners.local.spool import require_fit
from meshtune.runners.outcome import RESULT_FILE, write_result
from meshtune.runners.processes.job_json import write_whole
from meshtune.runners.simulated.ground_truth import Conditions, Ending, run
from meshtune.runners.workloads.simulated import JOB_FILE, JobMalformed, SimulatedJob, parse_job
from meshtune.search_spaces.checks import CLOSED, Checks
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.physics.unknown_speeds import missing

JOBS, CANCELLED, BEGUN, OVER = "jobs", "cancelled", "begun", "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedOptions:
    """seed: which hidden cluster. noise: of step times, relative. fault_rate: share of the jobs that lose a node.
    seconds_per_trial: how long a job takes on the clock on the wall. slots: how many jobs run at once."""

    __pydantic_config__: ClassVar[Any] = CLOSED

    seed: int = 0
    noise: float = 0.02
    fault_rate: float = 0.0
    seconds_per_trial: float = 0.0
    slots: int = 4

    def __post_init__(self) -> None:
        checks = Checks()
        checks.at_least(0, seed=self.seed)
        checks.at_least(1, slots=self.slots)
        checks.require(0 <= self.noise < 1, "noise", f"must be at least 0 and below 1, not {self.noise}")
        checks.require(0 <= self.fault_rate <= 1, "fault_rate", f"must lie between 0 and 1, not {self.fault_rate}")
        took = self.seconds_per_trial
        checks.require(0 <= took < inf, "seconds_per_trial", f"must be finite, at least 0, not {took}")
        checks.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A job as it was sent. number: higher than that of any before that is not over. submitted_at: seconds since the
    epoch. run_s: on the clock on the wall. slots: how many jobs may run at once while it runs, it included."""

    name: str
    number: int
    directory: Path
    submitted_at: float
    run_s: float
    slots: int
    ending: Ending


@dataclass(frozen=True, slots=True)
class Span:
    """When a job runs, if nobody cancels it."""

    starts_at: float
    ends_at: float


@dataclass(slots=True)
class Book:
    """What the files of one cluster say of the jobs that are not filed as over, each read once, since they are there
    whole and never change. All runners of a process that look at this cluster share it, and read it while they are
    alone at the files.

    orders: by name. cancelled_at: when their ends were asked for. begun_at: of those that had waited. spans: when they
    run."""

    orders: dict[str, Order] = field(default_factory=dict)
    cancelled_at: dict[str, float] = field(default_factory=dict)
    begun_at: dict[str, float] = field(default_factory=dict)
    spans: Mapping[str, Span] = field(default_factory=dict)

    @property
    def next_number(self) -> int:
        return max((order.number for order in self.orders.values()), default=-1) + 1

    def read(self, root: Path) -> None:
        """Take in what is new there. Raises OSError and ValueError."""
        jobs, cancelled, begun = root / JOBS, root / CANCELLED, root / BEGUN
        sent = _names(jobs)
        ended = _names(cancelled) & sent
        if sent == self.spans.keys() and ended == self.cancelled_at.keys():
            return
        self.spans = {}
        self.orders = {
            name: self.orders.get(name) or read_value(Order, json.loads((jobs / name).read_text(encoding="utf-8")))
            for name in sent
        }
        self.cancelled_at = _times(cancelled, ended, self.cancelled_at)
        self.begun_at = _times(begun, _names(begun) & sent, self.begun_at)
        self.spans = self._spans()

    def ended_at(self, name: str) -> float:
        """When its slot is free, as far as is known."""
        return min(self.spans[name].ends_at, self.cancelled_at.get(name, inf))

    def status(self, name: str, now: float) -> JobStatus:
        """The job's state now."""
        ending, span, cancelled_at = self.orders[name].ending, self.spans[name], self.cancelled_at.get(name, inf)
        if cancelled_at < span.ends_at:
            began = span.starts_at if span.starts_at < cancelled_at else None
            return JobStatus(state=JobState.CANCELLED, reason="cancelled", started_at=began, finished_at=cancelled_at)
        if now < span.starts_at:
            return JobStatus(state=JobState.QUEUED)
        if now < span.ends_at:
            return JobStatus(state=JobState.RUNNING, started_at=span.starts_at)
        return JobStatus(
            state=ending.state,
            reason=ending.reason,
            exit_code=ending.exit_code,
            started_at=span.starts_at,
            finished_at=span.ends_at,
        )

    def _spans(self) -> Mapping[str, Span]:
        """First come, first served, each as soon as fewer than its slots are taken. A job that was cancelled frees its
        slot at that moment."""
        spans: dict[str, Span] = {}
        ends: list[float] = []
        for order in sorted(self.orders.values(), key=lambda order: order.number):
            free_at = ends[-order.slots] if len(ends) >= order.slots else 0.0
            starts_at = self.begun_at.get(order.name, max(order.submitted_at, free_at))
            spans[order.name] = Span(starts_at, starts_at + order.run_s)
            insort(ends, min(starts_at + order.run_s, self.cancelled_at.get(order.name, inf)))
        return spans


@lru_cache(maxsize=64)
def _book_of(root: Path) -> Book:
    return Book()


class SimulatedRunner:
    """A Runner over the files under `root`. clock: seconds since the epoch."""

    def __init__(self, root: Path, options: SimulatedOptions, clock: Callable[[], float] = time.time) -> None:
        self._root = root.resolve()
        self._options = options
        self._clock = clock
        self._book = _book_of(self._root)

    def submit(self, spec: JobSpec) -> str:
        job = _read_job(spec)
        options = self._options
        conditions = Conditions(seed=options.seed, noise=options.noise, fault_rate=options.fault_rate)
        try:
            ending = run(job, spec.name, spec.time_limit_s, conditions)
        except (ValueError, ArithmeticError, LookupError) as error:
            raise InvalidJob(f"{spec.name} cannot be simulated: {error}") from error
        try:
            (self._root / JOBS).mkdir(parents=True, exist_ok=True)
            with self._alone() as now:
                if not self._there(spec.name):
                    self._book.read(self._root)
                    directory = spec.directory.resolve()
                    directory.mkdir(parents=True, exist_ok=True)
                    for name, text in spec.files.items():
                        write_whole(directory / name, text)
                    order = Order(
                        name=spec.name,
                        number=self._book.next_number,
                        directory=directory,
                        submitted_at=now,
                        run_s=options.seconds_per_trial * ending.share,
                        slots=options.slots,
                        ending=ending,
                    )
                    self._write(JOBS, spec.name, json.dumps(plain(order)))
        except (OSError, ValueError) as error:
            raise SubmitFailed(f"{spec.name} cannot be written: {error}") from error
        return spec.name

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        unknown = JobStatus(state=JobState.LOST, reason="the simulated runner does not know this job")
        if not (self._root / JOBS).is_dir():
            return dict.fromkeys(ids, unknown)
        try:
            with self._alone() as now:
                self._book.read(self._root)
                found = {id: self._status(id, now) or unknown for id in ids}
                self._write_down(now)
                return found
        except (OSError, ValueError) as error:
            raise RunnerUnavailable(f"the simulated cluster {self._root} cannot be read: {error}") from error

    def cancel(self, id: str) -> None:
        if self.find(id) is None:
            return
        try:
            with self._alone() as now:
                if (self._root / JOBS / id).exists() and not (self._root / CANCELLED / id).exists():
                    self._write(CANCELLED, id, repr(now))
        except OSError as error:
            raise RunnerUnavailable(f"{id} cannot be cancelled: {error.strerror}") from error

    def find(self, name: str) -> str | None:
        try:
            require_fit(name)
        except InvalidJob:
            return None
        return name if self._there(name) else None

    def close(self) -> None:
        """There is nothing to give back."""

    def _there(self, name: str) -> bool:
        return any((self._root / folder / name).exists() for folder in (JOBS, OVER))

    def _status(self, id: str, now: float) -> JobStatus | None:
        """The job's state now, None for one that never was. Raises OSError and ValueError."""
        if id in self._book.spans:
            return self._book.status(id, now)
        if self.find(id) is None:
            return None
        return read_value(JobStatus, json.loads((self._root / OVER / id).read_text(encoding="utf-8")))

    def _write_down(self, now: float) -> None:
        """What has happened until now: which jobs began after a wait, then which are over, their results first. Whose
        slot is free by now delays nobody who has not begun. Raises OSError."""
        book = self._book
        for name, span in book.spans.items():
            if book.orders[name].submitted_at < span.starts_at <= now and name not in book.begun_at:
                self._write(BEGUN, name, repr(span.starts_at))
                book.begun_at[name] = span.starts_at
        for name in [name for name in book.spans if book.ended_at(name) <= now]:
            status = book.status(name, now)
            if status.state is not JobState.CANCELLED:
                _leave_result(book.orders[name])
            self._write(OVER, name, json.dumps(plain(status)))
            for folder in (JOBS, CANCELLED, BEGUN):
                (self._root / folder / name).unlink(missing_ok=True)

    def _write(self, folder: str, name: str, text: str) -> None:
        (self._root / folder).mkdir(exist_ok=True)
        write_whole(self._root / folder / name, text)

    @contextmanager
    def _alone(self) -> Iterator[float]:
        """Be the only one at the files; the time at which this began, later than that of everybody before.
        Raises OSError."""
        descriptor = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield self._clock()
        finally:
            os.close(descriptor)


def _leave_result(order: Order) -> None:
    """In the job's folder, unless that was deleted or has it. Raises OSError."""
    outcome = order.ending.outcome
    if outcome is not None and order.directory.is_dir() and not (order.directory / RESULT_FILE).exists():
        write_result(order.directory, outcome, {"simulated": True})


def _names(folder: Path) -> set[str]:
    """The files of a folder, but for drafts of somebody who died; none where there is no folder."""
    return {name for name in os.listdir(folder) if not name.startswith(".")} if folder.is_dir() else set()


def _times(folder: Path, names: Set[str], known: Mapping[str, float]) -> dict[str, float]:
    """What the files of these names hold. Raises OSError and ValueError."""
    return {name: known[name] if name in known else float((folder / name).read_text()) for name in names}


def _read_job(spec: JobSpec) -> SimulatedJob:
    """What the job file says. Raises InvalidJob."""
    require_fit(spec.name)
    if JOB_FILE not in spec.files:
        raise InvalidJob(
            f"{spec.name} has no {JOB_FILE}: the simulated runner runs jobs of the simulated workload only"
        )
    try:
        job = parse_job(spec.files[JOB_FILE])
    except JobMalformed as error:
        raise InvalidJob(f"{spec.name}: {JOB_FILE}: {error}") from error
    unknown = missing(job.training)
    if unknown:
        raise InvalidJob(f"{spec.name} cannot be simulated: " + "; ".join(map(str, unknown)))
    if job.plan.world_size != spec.processes:
        raise InvalidJob(f"{spec.name} is for {job.plan.world_size} devices, but gets {spec.processes}")
    return job


def create(root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> SimulatedRunner:
    """The simulated runner of a campaign. Raises InvalidValue."""
    return SimulatedRunner(root, read_value(SimulatedOptions, dict(options)))
