"""The external runner: jobs wait until a program of somebody else's claims them, and end when it says how they went.

Nothing is started here. A job's state follows from files (`schedulers.file_queue`): of a job that is not over they hold
its folder, when it was sent, and, in a file that is made once by whoever is first, who claimed it and when.

A claimed job that leaves a result (`result.json`) in its folder has succeeded, and is over at its next look. When its
time is up is for those to say who know how long somebody was there to hear of it (`tuner.service.session`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from meshtune.runners.base import JobSpec, JobState, JobStatus, WorkerLease, require_fit
from meshtune.runners.documents import read_value
from meshtune.runners.job_files import opened_folder
from meshtune.runners.outcome import MAX_STEPS, RESULT_FILE
from meshtune.runners.schedulers.file_queue import CLAIMS, FileQueue
from meshtune.search_spaces.checks import Closed
from meshtune.search_spaces.cluster import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalOptions(Closed):
    """There are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimableJob:
    """A job that is not over. Times are seconds since the epoch. command: what would run it here. claimed_by: whoever
    claims once more with the same word gets it again; empty where nobody may. claimant: whose claim it is, as the API
    knows its callers."""

    name: str
    directory: Path
    command: tuple[str, ...]
    claimed_at: float | None = None
    claimed_by: str = ""
    claimant: str = ""
    lease: WorkerLease = field(default_factory=WorkerLease)


class NotClaimed(Exception):
    """The job is not one that somebody works on, so nobody can say how it went; the message says what it is."""


class ExternalRunner:
    """A Runner over the files under `root`. clock: seconds since the epoch."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self._queue = FileQueue(root, ClaimableJob, clock)
        self.find = self._queue.find

    def submit(self, spec: JobSpec) -> str:
        require_fit(spec.name)
        return self._queue.submit(
            spec, lambda _: ClaimableJob(name=spec.name, directory=spec.directory.resolve(), command=spec.command)
        )

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        unknown = JobStatus(state=JobState.LOST, reason="the external runner does not know this job")
        if not self._queue.begun:
            return dict.fromkeys(ids, unknown)
        with self._queue.alone(f"the external jobs in {self._queue.root} cannot be read") as now:
            return {id: self._look(id, now) or unknown for id in ids}

    def cancel(self, id: str) -> None:
        if self.find(id) is None:
            return
        with self._queue.alone(f"{id} cannot be cancelled") as now:
            status, job = self._look(id, now), self._queue.job(id)
            if job is not None and status is not None and not status.state.final:
                self._queue.end(id, _ended(JobState.CANCELLED, job, now, "cancelled"))

    def close(self) -> None:
        """There is nothing to give back."""

    def claim(
        self, names: Sequence[str], most: int, by: str = "", claimant: str = "", lease: WorkerLease | None = None
    ) -> list[ClaimableJob]:
        """Of these jobs at most so many that were claimed by this word before, or else that the claimant's worker has
        and starts anew, then that wait, in their order; they run from now on, each for one claimant. by: a word of the
        request, so that it may be repeated; empty: it may not. Raises RunnerUnavailable."""
        if not self._queue.begun:
            return []
        with self._queue.alone(f"the external jobs in {self._queue.root} cannot be claimed") as now:
            there = [name for name in names if (status := self._look(name, now)) and not status.state.final]
            open_ = [job for name in there if (job := self._queue.job(name)) is not None]
            if own := [job for job in open_ if by and job.claimed_by == by]:
                return own
            lease = lease or WorkerLease()
            held = [job for job in open_ if (job.claimant, job.lease.worker) == (claimant, lease.worker or None)][:most]
            again = [replace(job, claimed_by=by, lease=replace(lease, heard=job.lease.heard + 1)) for job in held]
            for job in again:
                self._queue.write(job, CLAIMS)
            free = (job for job in open_ if job.claimed_at is None)
            claims = (replace(job, claimed_at=now, claimed_by=by, claimant=claimant, lease=lease) for job in free)
            return [*again, *islice(filter(self._queue.claim, claims), most - len(again))]

    def heartbeat(self, name: str, step_times_s: Sequence[float]) -> JobStatus | None:
        """The worker of a job that runs is there, and has timed these steps: of two reports the longer counts, so that
        they may come twice and in any order. The job's state, None for one that never was. Raises RunnerUnavailable."""
        with self._queue.alone(f"{name} cannot be reported of") as now:
            status, job = self._look(name, now), self._queue.job(name)
            if status is None or job is None or status.lease is None:
                return status
            steps = max(tuple(step_times_s)[-MAX_STEPS:], job.lease.step_times_s, key=len)
            job = replace(job, lease=replace(job.lease, heard=job.lease.heard + 1, step_times_s=steps))
            self._queue.write(job, CLAIMS)
            return replace(status, lease=job.lease)

    @contextmanager
    def telling(self, name: str) -> Iterator[str]:
        """The body tells how the job went, which nobody ends meanwhile; its claimant, empty where that is not known or
        it was told of before. Raises NotClaimed for a job that waits or is over, RunnerUnavailable."""
        with self._queue.alone(f"{name} cannot be told of") as now:
            status, job = self._look(name, now), self._queue.job(name)
            if status is None or status.state is JobState.QUEUED:
                raise NotClaimed("nobody has claimed it: ask for it first (`:suggest`)")
            if status.state.final and status.state is not JobState.SUCCEEDED:
                raise NotClaimed(f"its job is {status.state}: {status.reason}")
            yield "" if job is None else job.claimant

    def _look(self, id: str, now: float) -> JobStatus | None:
        """Its state, written down where it is over; None for one that never was. Raises OSError, ValueError."""
        if (ended := self._queue.ended(id)) is not None:
            return ended
        if self.find(id) is None or (job := self._queue.job(id)) is None:
            return None
        if job.claimed_at is None:
            return JobStatus(state=JobState.QUEUED, reason="waits for a program that claims it")
        reported_at = None
        with suppress(FileNotFoundError), opened_folder(job.directory) as folder:
            reported_at = os.stat(RESULT_FILE, dir_fd=folder, follow_symlinks=False).st_mtime
        if reported_at is not None:
            ended_at = min(now, max(job.claimed_at, reported_at))
            return self._queue.end(id, _ended(JobState.SUCCEEDED, job, ended_at, "", exit_code=0))
        return JobStatus(state=JobState.RUNNING, started_at=job.claimed_at, lease=job.lease)


def _ended(state: JobState, job: ClaimableJob, at: float, reason: str, exit_code: int | None = None) -> JobStatus:
    return JobStatus(state=state, reason=reason, exit_code=exit_code, started_at=job.claimed_at, finished_at=at)


def create(root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> ExternalRunner:
    read_value(ExternalOptions, dict(options))
    return ExternalRunner(root)
