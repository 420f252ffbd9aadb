"""The memory of a batch scheduler's runner, root/jobs/NAME.json: a job is recorded before the scheduler is asked."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from meshtune.runners.base import JobSpec, JobStatus, RunnerUnavailable
from meshtune.runners.batch.notes import read_gang
from meshtune.runners.batch.script import CLAIM_FILE
from meshtune.runners.json_files import read_json_value
from meshtune.runners.processes.job_json import write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One job."""

    name: str
    directory: Path
    sent_at: float
    # The scheduler's number of it; None while it is not known whether it was sent.
    id: str | None = None
    # Once we asked for the job's end.
    cancel_asked: bool = False
    # Its final status: schedulers forget.
    final: JobStatus | None = None

    @property
    def claimed_by(self) -> str | None:
        """The scheduler's number of the copy that ran."""
        with suppress(OSError):
            return (self.directory / CLAIM_FILE).read_text(encoding="utf-8").strip() or None
        return None

    @property
    def number(self) -> str:
        """What to ask the scheduler for: the copy that ran, else the one that was sent."""
        return self.claimed_by or self.id or ""

    def job(self) -> JobSpec:
        """The job as it was sent; where its folder is gone, as much as the record tells."""
        try:
            return read_gang(self.directory)
        except (OSError, ValueError):
            return JobSpec(name=self.name, command=(), directory=self.directory, time_limit_s=0.0)


class Records:
    """The records under one root, which one process writes at a time."""

    def __init__(self, root: Path) -> None:
        self._jobs = root / "jobs"
        self._names: dict[str, str] = {}

    def save(self, record: Record) -> None:
        """Raises OSError."""
        self._jobs.mkdir(parents=True, exist_ok=True)
        document = {**asdict(record), "directory": str(record.directory)}
        write_whole(self._path(record.name), json.dumps(document))

    def forget(self, name: str) -> None:
        with suppress(OSError):
            self._path(name).unlink(missing_ok=True)

    def get(self, name: str) -> Record | None:
        """The record of that name, None where there is none. Raises RunnerUnavailable: what cannot be read may well
        have been sent."""
        try:
            return read_json_value(Record, json.loads(self._path(name).read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise RunnerUnavailable(f"the record of {name} cannot be read: {error}") from error

    def of(self, id: str) -> Record | None:
        """The record of the job with that id, None when it is none of ours. Raises RunnerUnavailable."""
        if id not in self._names:
            names = [path.stem for path in self._jobs.glob("*.json") if not path.name.startswith(".")]
            records = [record for name in names if (record := self.get(name)) is not None]
            self._names = {record.id: record.name for record in records if record.id is not None}
        return self.get(self._names[id]) if id in self._names else None

    def _path(self, name: str) -> Path:
        return self._jobs / f"{name}.json"
