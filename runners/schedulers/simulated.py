"""The simulated runner: a cluster of any size in some files, for campaigns on a laptop that need no device.

What becomes of a job is settled when it is sent (`ground_truth`) and told when its time is over.
A job's state follows from files (`file_queue`) and the clock: of a job that is not over they hold when it was sent,
how long it takes and how it ends.

Looks cost the same however many jobs there were."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from meshtune.runners.base import InvalidJob, JobSpec, JobState, JobStatus, require_fit
from meshtune.runners.documents import read_value
from meshtune.runners.outcome import RESULT_FILE, write_result
from meshtune.runners.programs.workloads.simulated import JOB_FILE, SimulatedJob, parse_job
from meshtune.runners.schedulers.file_queue import FileQueue
from meshtune.runners.schedulers.ground_truth import Ending, HiddenClusterOptions, run
from meshtune.search_spaces.checks import raising
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.physics.training import missing


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedJob:
    """A job that is not over. Times are seconds since the epoch."""

    name: str
    # Higher than that of any before that is not over.
    number: int
    directory: Path
    submitted_at: float
    # How long it takes on the clock on the wall.
    run_s: float
    # How many jobs may run at once while it runs, it included.
    slots: int
    ending: Ending
    # None while it is in the queue, as far as anybody has looked.
    began_at: float | None = None
    cancelled_at: float = inf

    def status(self, starts_at: float, now: float) -> JobStatus:
        """Its state now, for a job that starts then."""
        ends_at = starts_at + self.run_s
        if self.cancelled_at < ends_at:
            began_at = starts_at if starts_at < self.cancelled_at else None
            return JobStatus(
                state=JobState.CANCELLED, reason="cancelled", started_at=began_at, finished_at=self.cancelled_at
            )
        if now < starts_at:
            return JobStatus(state=JobState.QUEUED)
        if now < ends_at:
            return JobStatus(state=JobState.RUNNING, started_at=starts_at)
        return JobStatus(
            state=self.ending.state,
            reason=self.ending.reason,
            exit_code=self.ending.exit_code,
            started_at=starts_at,
            finished_at=ends_at,
        )


def start_times(jobs: Iterable[PlayedJob]) -> dict[str, float]:
    """First come, first served, each as soon as fewer than its slots are taken. A job that was cancelled frees its slot
    at that moment."""
    times: dict[str, float] = {}
    ends: list[float] = []
    for job in sorted(jobs, key=lambda job: job.number):
        free_at = ends[-job.slots] if len(ends) >= job.slots else 0.0
        starts_at = max(job.submitted_at, free_at) if job.began_at is None else job.began_at
        times[job.name] = starts_at
        insort(ends, min(starts_at + job.run_s, job.cancelled_at))
    return times


class SimulatedRunner:
    """A Runner over the files under `root`. clock: seconds since the epoch."""

    def __init__(self, root: Path, options: HiddenClusterOptions, clock: Callable[[], float] = time.time) -> None:
        self._queue, self._options = FileQueue(root, PlayedJob, clock), options
        self.find = self._queue.find

    def submit(self, spec: JobSpec) -> str:
        job = _read_job(spec)
        options = self._options
        with raising(InvalidJob, f"{spec.name} cannot be simulated", ValueError, ArithmeticError, LookupError):
            ending = run(job, spec.name, spec.time_limit_s, options)
        return self._queue.submit(
            spec,
            lambda now: PlayedJob(
                name=spec.name,
                number=max((job.number for job in self._queue.jobs()), default=-1) + 1,
                directory=spec.directory.resolve(),
                submitted_at=now,
                run_s=options.seconds_per_trial * ending.share,
                slots=options.slots,
                ending=ending,
            ),
        )

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        unknown = JobStatus(state=JobState.LOST, reason="the simulated runner does not know this job")
        if not self._queue.begun:
            return dict.fromkeys(ids, unknown)
        with self._queue.alone(f"the simulated cluster {self._queue.root} cannot be read") as now:
            open_ = self._look(now)
            return {id: open_.get(id) or self._queue.ended(id) or unknown for id in ids}

    def cancel(self, id: str) -> None:
        if self.find(id) is None:
            return
        with self._queue.alone(f"{id} cannot be cancelled") as now:
            if (job := self._queue.job(id)) is not None:
                self._queue.write(replace(job, cancelled_at=min(job.cancelled_at, now)))

    def close(self) -> None:
        """There is nothing to give back."""

    def _look(self, now: float) -> dict[str, JobStatus]:
        """The jobs that were not over at the last look, and write down what has happened since: which jobs began after
        a wait, and which are over, their results first. Raises OSError and ValueError."""
        jobs = {job.name: job for job in self._queue.jobs()}
        starts_at = start_times(jobs.values())
        statuses = {name: job.status(starts_at[name], now) for name, job in jobs.items()}
        for name, job in jobs.items():
            if job.began_at is None and job.submitted_at < starts_at[name] <= now:
                self._queue.write(replace(job, began_at=starts_at[name]))
        for name, status in statuses.items():
            if status.state.final:
                if status.state is not JobState.CANCELLED:
                    _leave_result(jobs[name])
                self._queue.end(name, status)
        return statuses


def _leave_result(job: PlayedJob) -> None:
    """In the job's folder, unless that was deleted or has it. Raises OSError."""
    outcome = job.ending.outcome
    if outcome is not None and job.directory.is_dir() and not (job.directory / RESULT_FILE).exists():
        write_result(job.directory, outcome, {"simulated": True})


def _read_job(spec: JobSpec) -> SimulatedJob:
    """Raises InvalidJob."""
    require_fit(spec.name)
    if JOB_FILE not in spec.files:
        raise InvalidJob(
            f"{spec.name} has no {JOB_FILE}: the simulated runner runs jobs of the simulated workload only"
        )
    with raising(InvalidJob, f"{spec.name}: {JOB_FILE}", ValueError):
        job = parse_job(spec.files[JOB_FILE])
    unknown = missing(job.training)
    if unknown:
        raise InvalidJob(f"{spec.name} cannot be simulated: " + "; ".join(map(str, unknown)))
    if job.plan.world_size != spec.processes:
        raise InvalidJob(f"{spec.name} is for {job.plan.world_size} devices, but gets {spec.processes}")
    return job


def create(root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> SimulatedRunner:
    return SimulatedRunner(root, read_value(HiddenClusterOptions, dict(options)))
