"""The external runner: jobs wait until a program of somebody else's claims them, and end when it says how they went.

Nothing is started here. A job's state follows from the files and the clock, so any process may die at any moment:

    root/jobs/NAME    a job that is not over: its folder, when it was sent, who claimed it and when
    root/over/NAME    how it ended; the file above is gone then
    root/lock         held while anything is looked at or changed

A claimed job that leaves a result (`result.json`) in its folder has succeeded, and is over at its next look. One that
leaves none within its time limit has timed out: nobody can tell a setting that hangs from a program that forgot it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from meshtune.runners.base import JobSpec, JobState, JobStatus, RunnerUnavailable, SubmitFailed
from meshtune.runners.documents import plain, read_value
from meshtune.runners.job_files import opened_folder
from meshtune.runners.json_files import JOB_LIMITS, read_json_file, write_whole
from meshtune.runners.local.spool import is_fit, require_fit
from meshtune.runners.outcome import RESULT_FILE
from meshtune.runners.untrusted_text import read_json
from meshtune.search_spaces.checks import CLOSED
from meshtune.search_spaces.cluster import ClusterSpec

JOBS, OVER = "jobs", "over"
WAITS = "waits for a program that claims it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalOptions:
    """There are none."""

    __pydantic_config__: ClassVar[Any] = CLOSED


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJob:
    """A job that is not over. Times are seconds since the epoch. command: what would run it here. claimed_by: whoever
    claims once more with the same word gets it again; empty where nobody has claimed it."""

    name: str
    directory: Path
    command: tuple[str, ...]
    time_limit_s: float
    submitted_at: float
    claimed_at: float | None = None
    claimed_by: str = ""


class NotClaimed(Exception):
    """The job is not one that somebody works on, so nobody can say how it went; the message says what it is."""


class ExternalRunner:
    """A Runner over the files under `root`. clock: seconds since the epoch."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self._root = root.resolve()
        self._clock = clock

    def submit(self, spec: JobSpec) -> str:
        require_fit(spec.name)
        try:
            for folder in (JOBS, OVER):
                (self._root / folder).mkdir(parents=True, exist_ok=True)
            with self._alone() as now:
                if self._path(spec.name) is None:
                    directory = spec.directory.resolve()
                    directory.mkdir(parents=True, exist_ok=True)
                    for name, text in spec.files.items():
                        write_whole(directory / name, text)
                    self._write(
                        OpenJob(
                            name=spec.name,
                            directory=directory,
                            command=spec.command,
                            time_limit_s=spec.time_limit_s,
                            submitted_at=now,
                        )
                    )
        except (OSError, ValueError) as error:
            raise SubmitFailed(f"{spec.name} cannot be written: {error}") from error
        return spec.name

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        unknown = JobStatus(state=JobState.LOST, reason="the external runner does not know this job")
        if not (self._root / JOBS).is_dir():
            return dict.fromkeys(ids, unknown)
        try:
            with self._alone() as now:
                return {id: self._look(id, now) or unknown for id in ids}
        except (OSError, ValueError) as error:
            raise RunnerUnavailable(f"the external jobs in {self._root} cannot be read: {error}") from error

    def cancel(self, id: str) -> None:
        if self.find(id) is None:
            return
        try:
            with self._alone() as now:
                if (status := self._look(id, now)) is not None and not status.state.final:
                    job = _read(self._root / JOBS / id)
                    self._end(id, _ended(JobState.CANCELLED, job, now, "cancelled"))
        except (OSError, ValueError) as error:
            raise RunnerUnavailable(f"{id} cannot be cancelled: {error}") from error

    def find(self, name: str) -> str | None:
        return None if self._path(name) is None else name

    def close(self) -> None:
        """There is nothing to give back."""

    def claim(self, names: Sequence[str], most: int, by: str = "") -> list[OpenJob]:
        """Of these jobs at most so many that were claimed by this word before, or else wait, in their order; they run
        from now on, each for one claimant. by: a word of the request, so that it may be repeated; empty: it may not.
        Raises RunnerUnavailable."""
        if not (self._root / JOBS).is_dir():
            return []
        try:
            with self._alone() as now:
                there = [name for name in names if (status := self._look(name, now)) and not status.state.final]
                open_ = [_read(self._root / JOBS / name) for name in there]
                own = [job for job in open_ if by and job.claimed_by == by]
                if own:
                    return own
                free = [job for job in open_ if job.claimed_at is None]
                claimed = [replace(job, claimed_at=now, claimed_by=by) for job in free[:most]]
                for job in claimed:
                    self._write(job)
                return claimed
        except (OSError, ValueError) as error:
            raise RunnerUnavailable(f"the external jobs in {self._root} cannot be claimed: {error}") from error

    def require_claimed(self, name: str) -> None:
        """Raises NotClaimed for a job that waits or is over, RunnerUnavailable."""
        status = self.poll([name])[name]
        if status.state is JobState.QUEUED:
            raise NotClaimed("nobody has claimed it: ask for it first (`:suggest`)")
        if status.state.final and status.state is not JobState.SUCCEEDED:
            raise NotClaimed(f"its job is {status.state}: {status.reason}")

    def _look(self, id: str, now: float) -> JobStatus | None:
        """Its state, written down where it is over; None for one that never was. Raises OSError, ValueError."""
        path = self._path(id)
        if path is None:
            return None
        if path.parent.name == OVER:
            return read_json_file(JobStatus, path)
        job = _read(path)
        if job.claimed_at is None:
            return JobStatus(state=JobState.QUEUED, reason=WAITS)
        if (reported_at := _reported_at(job.directory)) is not None:
            ended_at = min(now, max(job.claimed_at, reported_at))
            return self._end(id, _ended(JobState.SUCCEEDED, job, ended_at, "", exit_code=0))
        if now < (late_at := job.claimed_at + job.time_limit_s):
            return JobStatus(state=JobState.RUNNING, started_at=job.claimed_at)
        reason = f"whoever claimed it told no result within its time limit of {job.time_limit_s:g} s"
        return self._end(id, _ended(JobState.TIMED_OUT, job, late_at, reason))

    def _path(self, name: str) -> Path | None:
        """Where the job is, None for one that never was."""
        paths = [self._root / folder / name for folder in (OVER, JOBS)] if is_fit(name) else []
        return next((path for path in paths if path.exists()), None)

    def _write(self, job: OpenJob) -> None:
        write_whole(self._root / JOBS / job.name, json.dumps(plain(job)))

    def _end(self, id: str, status: JobStatus) -> JobStatus:
        write_whole(self._root / OVER / id, json.dumps(plain(status)))
        (self._root / JOBS / id).unlink(missing_ok=True)
        return status

    @contextmanager
    def _alone(self) -> Iterator[float]:
        """Be the only one at the files; the time at which this began. Raises OSError."""
        descriptor = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield self._clock()
        finally:
            os.close(descriptor)


def _ended(state: JobState, job: OpenJob, at: float, reason: str, exit_code: int | None = None) -> JobStatus:
    return JobStatus(state=state, reason=reason, exit_code=exit_code, started_at=job.claimed_at, finished_at=at)


def _reported_at(directory: Path) -> float | None:
    """When the job's result was written, None while there is none. Raises OSError."""
    try:
        with opened_folder(directory) as folder:
            return os.stat(RESULT_FILE, dir_fd=folder, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return None


def _read(path: Path) -> OpenJob:
    return read_value(OpenJob, read_json(path.read_bytes(), JOB_LIMITS))


def create(root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> ExternalRunner:
    read_value(ExternalOptions, dict(options))
    return ExternalRunner(root)
