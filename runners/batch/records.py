"""What a batch scheduler's runner remembers of its jobs, in files under one root, so that a restart loses nothing.

    root/jobs/NAME/job.json      where the job's folder is and when it was sent; there before the scheduler is asked
    root/jobs/NAME/id            the scheduler's number of it, once that is known
    root/jobs/NAME/cancel        exists once we asked for the job's end
    root/jobs/NAME/status.json   its final status: schedulers forget

A submission whose answer never came is found again by its name.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from meshtune.runners.base import JobSpec, JobStatus, RunnerUnavailable
from meshtune.runners.batch.notes import read_gang
from meshtune.runners.batch.script import CLAIM_FILE
from meshtune.runners.processes.job_json import decode_status, write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One job."""

    name: str
    directory: Path
    sent_at: float
    # None while nobody knows whether it was sent.
    id: str | None = None

    @property
    def claimed_by(self) -> str | None:
        """The scheduler's number of the copy that ran, None when none has started."""
        with suppress(OSError):
            return (self.directory / CLAIM_FILE).read_text(encoding="utf-8").strip() or None
        return None

    @property
    def number(self) -> str | None:
        """What to ask the scheduler for: the copy that ran, else the one that was sent."""
        return self.claimed_by or self.id

    def job(self) -> JobSpec:
        """The job as it was sent; of one whose folder somebody cleared away, no more than the record tells."""
        try:
            return read_gang(self.directory)
        except (OSError, ValueError):
            return JobSpec(name=self.name, command=(), directory=self.directory, time_limit_s=0.0)


class Records:
    """The records under one root. Writing raises OSError; reading, only for files that nobody here wrote."""

    def __init__(self, root: Path) -> None:
        self._jobs = root / "jobs"
        self._names: dict[str, str] = {}

    def begin(self, name: str, directory: Path, now: float) -> Record:
        """Write down that a job is about to be sent; what is there of it already stays."""
        if (known := self.get(name)) is not None:
            return known
        folder = self._jobs / name
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "job.json", json.dumps({"directory": str(directory), "sent_at": now}))
        return Record(name=name, directory=directory, sent_at=now)

    def forget(self, name: str) -> None:
        """Take back `begin`, for a job that was surely not sent."""
        with suppress(OSError):
            (self._jobs / name / "job.json").unlink(missing_ok=True)
            (self._jobs / name).rmdir()

    def set_id(self, name: str, id: str) -> None:
        write_whole(self._jobs / name / "id", id)
        self._names[id] = name

    def get(self, name: str) -> Record | None:
        """The record of that name, which is fit for a file; None where nothing was begun.

        Raises RunnerUnavailable: what cannot be read may well have been sent.
        """
        try:
            document = json.loads((self._jobs / name / "job.json").read_text(encoding="utf-8"))
            id = self._id(name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise RunnerUnavailable(f"the record of {name} cannot be read: {error}") from error
        return Record(name=name, directory=Path(document["directory"]), sent_at=document["sent_at"], id=id)

    def of(self, id: str) -> Record | None:
        """The record of the job with that id, None when it is none of ours."""
        if id not in self._names:
            with suppress(FileNotFoundError, NotADirectoryError):
                found = {name: self._id(name) for name in os.listdir(self._jobs)}
                self._names = {known: name for name, known in found.items() if known is not None}
        return self.get(self._names[id]) if id in self._names else None

    def _id(self, name: str) -> str | None:
        try:
            return (self._jobs / name / "id").read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def ask_cancel(self, name: str) -> None:
        (self._jobs / name / "cancel").touch()

    def cancel_asked(self, name: str) -> bool:
        return (self._jobs / name / "cancel").exists()

    def set_final(self, name: str, status: JobStatus) -> None:
        """Keep a status that will not change; `status` gives it from now on."""
        write_whole(self._jobs / name / "status.json", json.dumps(asdict(status)))

    def final(self, name: str) -> JobStatus | None:
        try:
            text = (self._jobs / name / "status.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return decode_status(json.loads(text))
