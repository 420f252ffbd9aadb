"""Jobs that are recorded before they are sent (root/jobs/NAME.json), and found again by their names."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from meshtune.runners.base import (
    InvalidJob,
    JobSpec,
    JobState,
    JobStatus,
    Refused,
    RunnerUnavailable,
    SubmitFailed,
    is_fit,
    require_fit,
)
from meshtune.runners.job_files import UnfitFile, read_document
from meshtune.runners.json_files import read_json_file, write_files, write_whole
from meshtune.runners.schedulers.batch.launch_wrapper import GANG_FILE, doubted, read_gang, render_gang
from meshtune.runners.schedulers.batch.script import CANCELLED, CLAIM_FILE
from meshtune.search_spaces.checks import raising

_MAX_CLAIM_BYTES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    name: str
    directory: Path
    sent_at: float
    # The scheduler's number of it; None while it is not known whether it was sent.
    id: str | None = None
    # The nodes on which the scheduler first began it, and when by its clock, while no script had claimed the folder.
    given: tuple[str, ...] = ()
    given_at: float | None = None
    # Once we asked for the job's end.
    cancel_asked: bool = False
    # Its final status: schedulers forget.
    final: JobStatus | None = None

    @property
    def claimed_by(self) -> str | None:
        """The scheduler's number of the copy that ran."""
        with suppress(OSError, UnfitFile):
            claim = read_document(self.directory / CLAIM_FILE, _MAX_CLAIM_BYTES).strip()
            return claim if claim not in ("", CANCELLED) else None
        return None

    @property
    def number(self) -> str:
        """What to ask the scheduler for: the copy that ran, else the one that was sent."""
        return self.claimed_by or self.id or ""

    def job(self) -> JobSpec:
        """The job as it was sent; where its folder is gone, as much as the record tells."""
        with suppress(OSError, ValueError):
            return read_gang(self.directory)
        return JobSpec(name=self.name, command=(), directory=self.directory, time_limit_s=0.0)


class Records:
    """The records under one root, which one process writes at a time."""

    def __init__(self, root: Path) -> None:
        self._jobs = root / "jobs"
        self._names: dict[str, str] = {}

    def save(self, record: JobRecord) -> None:
        """Raises OSError."""
        self._jobs.mkdir(parents=True, exist_ok=True)
        document = {**asdict(record), "directory": str(record.directory)}
        write_whole(self._path(record.name), json.dumps(document))

    def forget(self, name: str) -> None:
        with suppress(OSError):
            self._path(name).unlink(missing_ok=True)

    def get(self, name: str) -> JobRecord | None:
        """The record of that name, None where there is none. Raises RunnerUnavailable: what cannot be read may well
        have been sent."""
        try:
            return read_json_file(JobRecord, self._path(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise RunnerUnavailable(f"the record of {name} cannot be read: {error}") from error

    def of(self, id: str) -> JobRecord | None:
        """The record of the job with that id, None when it is none of ours. Raises RunnerUnavailable."""
        if id not in self._names:
            names = [path.stem for path in self._jobs.glob("*.json") if not path.name.startswith(".")]
            records = [record for name in names if (record := self.get(name)) is not None]
            self._names = {record.id: record.name for record in records if record.id is not None}
        return self.get(self._names[id]) if id in self._names else None

    def _path(self, name: str) -> Path:
        return self._jobs / f"{name}.json"


Options = TypeVar("Options")


class RecordingRunner(ABC, Generic[Options]):
    """The part of a Runner that is the records under `root`; a subclass says how its jobs are sent and looked at."""

    def __init__(
        self, root: Path, options: Options, *, nodes: int, devices_per_node: int, clock: Callable[[], float] = time.time
    ) -> None:
        """nodes, devices_per_node: of the campaign's cluster; a job that needs more is refused."""
        self._records, self._options = Records(root.resolve()), options
        self._nodes, self._devices_per_node = nodes, devices_per_node
        self._clock = clock

    def _placed(self, spec: JobSpec) -> JobSpec:
        """The job as the scheduler could place it; its directory is absolute. Raises InvalidJob, Refused."""
        return spec

    def _more_files(self, spec: JobSpec) -> Mapping[str, str]:
        """What the scheduler needs in the job's folder, by name."""
        return {}

    @abstractmethod
    def _deliver(self, spec: JobSpec) -> str:
        """Send a job whose files are written; its id. Raises Refused and SubmitFailed where nothing was sent,
        RunnerUnavailable where nobody knows."""

    @abstractmethod
    def _find_sent(self, record: JobRecord) -> str | None:
        """The id of a job whose id never came back; None: it was not sent. Raises RunnerUnavailable."""

    @abstractmethod
    def _statuses(self, records: Mapping[str, JobRecord]) -> Mapping[str, JobStatus]:
        """The statuses of these jobs, by id, in as few requests as can be. Raises RunnerUnavailable."""

    def submit(self, spec: JobSpec) -> str:
        require_fit(spec.name)
        refuse_wider(spec, self._nodes, self._devices_per_node, "the cluster")
        if (known := self.find(spec.name)) is not None:
            return known
        spec = self._placed(replace(spec, directory=spec.directory.resolve()))
        earlier, record = self._records.get(spec.name), self._write(spec)
        try:
            id = self._deliver(spec)
        except (Refused, SubmitFailed):
            # The earlier request may have been taken by now, and be why.
            if earlier is not None and (known := self.find(spec.name)) is not None:
                return known
            self._records.forget(spec.name)
            raise
        except RunnerUnavailable as error:
            # It may have been taken all the same. If it is later, it will be there already.
            with suppress(RunnerUnavailable):
                if (known := self.find(spec.name)) is not None:
                    return known
            raise RunnerUnavailable(f"{spec.name} may not have been sent: {error}") from None
        return self._keep_id(record, id)

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        records = {id: record for id in ids if (record := self._records.of(id)) is not None}
        statuses = {id: record.final for id, record in records.items() if record.final is not None}
        open_ = {id: record for id, record in records.items() if record.final is None}
        for id, seen in (self._statuses(open_) if open_ else {}).items():
            statuses[id] = status = doubted(seen, open_[id].directory)
            if status.state.final:
                with suppress(OSError):  # the next look comes to the same end
                    self._records.save(replace(open_[id], final=status))
        unknown = JobStatus(state=JobState.LOST, reason="this runner sent no such job")
        return {id: statuses.get(id, unknown) for id in ids}

    def find(self, name: str) -> str | None:
        """Asks only for a job whose id never came back. Raises RunnerUnavailable."""
        record = self._records.get(name) if is_fit(name) else None
        if record is None or record.id is not None:
            return None if record is None else record.id
        id = self._find_sent(record)
        return None if id is None else self._keep_id(record, id)

    def _write(self, spec: JobSpec) -> JobRecord:
        """Write the job's files, and then its record. Raises SubmitFailed."""
        with raising(SubmitFailed, f"{spec.name} cannot be written", OSError):
            write_files(spec.directory, {**spec.files, GANG_FILE: render_gang(spec), **self._more_files(spec)})
            record = self._records.get(spec.name)
            if record is None:
                record = JobRecord(name=spec.name, directory=spec.directory, sent_at=self._clock())
                self._records.save(record)
        return record

    def _note_cancel(self, id: str, record: JobRecord) -> None:
        """Raises RunnerUnavailable."""
        with raising(RunnerUnavailable, f"{id} cannot be cancelled", OSError):
            self._records.save(replace(record, cancel_asked=True))

    def _keep_id(self, record: JobRecord, id: str) -> str:
        """Raises RunnerUnavailable: what was sent is found again by its name, as after an answer that never came."""
        try:
            self._records.save(replace(record, id=id))
        except OSError as error:
            raise RunnerUnavailable(f"the id {id} of {record.name} cannot be written: {error.strerror}") from error
        return id


def refuse_wider(spec: JobSpec, nodes: int, devices_per_node: int, owner: str) -> None:
    """Raises InvalidJob for a job that is empty, Refused for one that needs more than its owner has."""
    for wanted, has, what in (
        (spec.nodes, nodes, "nodes"),
        (spec.devices_per_node, devices_per_node, "devices on a node"),
    ):
        if wanted < 1:
            raise InvalidJob(f"{spec.name} needs {wanted} {what}")
        if wanted > has:
            raise Refused(f"{spec.name} needs {wanted} {what}, but {owner} has {has}")
    if not spec.command:
        raise InvalidJob(f"{spec.name} has an empty command")
