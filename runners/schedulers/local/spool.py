"""The spool: how the local runner and its server speak, through files alone, so that either may die at any moment.

root/jobs/NAME/spec.json      the job; its directory is renamed into place
root/jobs/NAME/status.json    its state, written by the server alone, by rename; none means queued
root/jobs/NAME/cancel         somebody asked for the job's end
root/server.lock, server.log  the lock of the living server; its output"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from meshtune.runners.base import JobSpec, JobState, JobStatus, is_fit, require_fit
from meshtune.runners.json_files import encode_job, read_json_file, write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledJob:
    spec: JobSpec
    # How many processes may run on this machine at once while it runs, its own included.
    slots: int
    # The devices that it may have, in order, as this variable names them; none: it is given none.
    devices: tuple[str, ...] = ()
    device_variable: str = ""
    # The name of the user whose processes they are, empty for the server's.
    run_as: str = ""
    # It starts only while its server has that many seconds left.
    needs_s: float = 0.0


class Spool:
    """The files under one root. Reading never raises for what a concurrent writer does; writing raises OSError."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.jobs = root / "jobs"
        self.lock = root / "server.lock"
        self.log = root / "server.log"

    def create(self) -> None:
        self.jobs.mkdir(parents=True, exist_ok=True)

    def take_lock(self) -> int | None:
        """The lock's descriptor, or None when a server lives. A record lock: forked ranks do not inherit it."""
        descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, (BlockingIOError, PermissionError)):
                return None
            raise
        return descriptor

    def holds(self, lock: int) -> bool:
        """False once the spool was removed: what is at its path then, if anything, is another server's."""
        try:
            return os.path.samestat(os.fstat(lock), os.stat(self.lock))
        except FileNotFoundError:
            return False
        except OSError:  # what cannot be looked at now is no less there
            return True

    def add(self, job: SpooledJob) -> bool:
        """Put a job in; False when one of that name is there already. Raises InvalidJob for a name unfit for a file."""
        name = job.spec.name
        require_fit(name)
        if self.has(name):
            return False
        draft = self.root / f"draft-{name}-{os.getpid()}"
        shutil.rmtree(draft, ignore_errors=True)
        try:
            draft.mkdir()
            document = {**asdict(job), "spec": encode_job(job.spec)}
            (draft / "spec.json").write_text(json.dumps(document), encoding="utf-8")
            # The file system's own clock ticks every few milliseconds, too coarse for the order of submission.
            os.utime(draft / "spec.json", ns=(time.time_ns(),) * 2)
            try:
                draft.rename(self.jobs / name)
            except OSError:
                if self.has(name):
                    return False
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return True

    def names(self) -> list[str]:
        """Every job, in the order of submission."""
        submitted_at: dict[str, int] = {}
        for name in os.listdir(self.jobs):
            with suppress(FileNotFoundError, NotADirectoryError):  # what somebody else put there is no job
                submitted_at[name] = (self.jobs / name / "spec.json").stat().st_mtime_ns
        return sorted(submitted_at, key=lambda name: (submitted_at[name], name))

    def has(self, name: str) -> bool:
        return is_fit(name) and (self.jobs / name).is_dir()

    def job(self, name: str) -> SpooledJob:
        """Raises ValueError for what `add` never wrote."""
        return read_json_file(SpooledJob, self.jobs / name / "spec.json")

    def status(self, name: str) -> JobStatus:
        """The job's state; LOST for one that is not in the spool."""
        if not self.has(name):
            return JobStatus(state=JobState.LOST, reason="the local runner does not know this job")
        try:
            return read_json_file(JobStatus, self.jobs / name / "status.json")
        except FileNotFoundError:
            return JobStatus(state=JobState.QUEUED)
        except ValueError as error:  # the server writes it by rename, so somebody else did
            return JobStatus(state=JobState.LOST, reason=f"its state in the spool cannot be understood: {error}")

    def set_status(self, name: str, status: JobStatus) -> None:
        write_whole(self.jobs / name / "status.json", json.dumps(asdict(status)))

    def ask_cancel(self, name: str) -> None:
        (self.jobs / name / "cancel").touch()

    def cancel_asked(self, name: str) -> bool:
        return (self.jobs / name / "cancel").exists()
