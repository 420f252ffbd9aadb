"""What the REST API shows of jobs: their files, the logs they leave, and settings in other programs' words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from meshtune.api.schemas.trials import rfc3339
from meshtune.runners.base import JobSpec
from meshtune.tuner.service.job_logs import LogFile


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    name: str
    bytes: int
    modified_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsView:
    """The logs of one attempt; none where its folder was pruned."""

    files: list[LogView]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """What a runner is given to measure a plan. files: by name, in `directory`. script: what a batch scheduler is sent;
    null for a runner that takes none."""

    name: str
    command: tuple[str, ...]
    directory: str
    script: str | None
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportView:
    """A measured setting in the words of one format. files: by name, to be put into `directory`. command: the line that
    starts it there; null for a format that starts nothing."""

    format: str
    trial: int
    directory: str
    files: Mapping[str, str]
    command: str | None


def logs_view(files: Sequence[LogFile]) -> LogsView:
    return LogsView(
        files=[LogView(name=file.name, bytes=file.size_bytes, modified_at=rfc3339(file.modified_at)) for file in files]
    )


def job_view(job: JobSpec, files: Mapping[str, str], script: str) -> JobView:
    """files: of the job, and what its runner writes beside them. script: the one that a scheduler is sent, "" where
    there is none."""
    return JobView(
        name=job.name,
        command=job.command,
        directory=str(job.directory),
        script=files.get(script),
        files=files,
    )
