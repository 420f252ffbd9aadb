"""The jobs of a runner that starts no processes, in files alone, so that any process may die at any moment:

    root/jobs/NAME    a job that is not over
    root/claims/NAME  the same of one that somebody has claimed
    root/over/NAME    how it ended; the file above is gone then
    root/lock         held while anything is looked at or changed

What a job is, and when it is over, is the runner's (`runners.schedulers.simulated`, `runners.schedulers.external`)."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from meshtune.runners.base import JobSpec, JobStatus, RunnerError, RunnerUnavailable, SubmitFailed, is_fit
from meshtune.runners.documents import plain, read_value
from meshtune.runners.job_files import opened
from meshtune.runners.json_files import JOB_LIMITS, read_json_file, write_files, write_new, write_whole
from meshtune.runners.untrusted_text import read_json
from meshtune.search_spaces.checks import raising

JOBS, CLAIMS, OVER = "jobs", "claims", "over"


class Named(Protocol):
    @property
    def name(self) -> str: ...


Job = TypeVar("Job", bound=Named)


class FileQueue(Generic[Job]):
    """The jobs under `root`, each a `kind`. clock: seconds since the epoch. Methods raise OSError, and ValueError for a
    file that holds something else; all but `submit` and `find` are called within `alone`."""

    def __init__(self, root: Path, kind: type[Job], clock: Callable[[], float]) -> None:
        self.root = root.resolve()
        self._kind, self._clock = kind, clock

    @property
    def begun(self) -> bool:
        """False as long as no job was ever sent: then there is nothing to look at."""
        return (self.root / JOBS).is_dir()

    def submit(self, spec: JobSpec, job_at: Callable[[float], Job]) -> str:
        """Write the files of a job that is new, and the job as `job_at` has it for this moment. Raises SubmitFailed."""
        with self.alone(f"{spec.name} cannot be written", SubmitFailed) as now:
            for folder in (JOBS, OVER):
                (self.root / folder).mkdir(exist_ok=True)
            if self.find(spec.name) is None:
                write_files(spec.directory.resolve(), spec.files)
                self.write(job_at(now))
        return spec.name

    def find(self, name: str) -> str | None:
        """The name of a job that there is or was."""
        return name if is_fit(name) and any((self.root / folder / name).exists() for folder in (OVER, JOBS)) else None

    @contextmanager
    def alone(self, trouble: str, raised: type[RunnerError] = RunnerUnavailable) -> Iterator[float]:
        """Be the only one at the files; the time at which this began. trouble: what is told of an OSError or a
        ValueError inside, by the error that is raised then."""
        with raising(raised, trouble, OSError, ValueError):
            (self.root / CLAIMS).mkdir(parents=True, exist_ok=True)
            with opened(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o644) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield self._clock()

    def job(self, name: str) -> Job | None:
        """The job, None for one that is over or never was."""
        for folder in (CLAIMS, JOBS):
            if (path := self.root / folder / name).exists():
                return read_value(self._kind, read_json(path.read_bytes(), JOB_LIMITS))
        return None

    def jobs(self) -> list[Job]:
        """Those that are not over, in no order."""
        # A name that starts with a dot is a draft of a process that died.
        names = [path.name for path in (self.root / JOBS).iterdir() if not path.name.startswith(".")]
        return [job for name in names if (job := self.job(name)) is not None]

    def ended(self, name: str) -> JobStatus | None:
        """How the job ended, None for one that is not over or never was."""
        path = self.root / OVER / name
        return read_json_file(JobStatus, path) if is_fit(name) and path.exists() else None

    def write(self, job: Job, folder: str = JOBS) -> None:
        write_whole(self.root / folder / job.name, json.dumps(plain(job)))

    def claim(self, job: Job) -> bool:
        """Write the job with its claim; False where another was first, whom no lock may keep: it ends at a machine."""
        return write_new(self.root / CLAIMS, job.name, json.dumps(plain(job)))

    def end(self, name: str, status: JobStatus) -> JobStatus:
        """Write down how the job ended; the status."""
        write_whole(self.root / OVER / name, json.dumps(plain(status)))
        for folder in (JOBS, CLAIMS):
            (self.root / folder / name).unlink(missing_ok=True)
        return status
