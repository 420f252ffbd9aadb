"""The runner of a batch scheduler: jobs are recorded before they are sent (root/jobs/NAME.json), and found again by
their names."""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from meshtune.runners.base import (
    InvalidJob,
    JobSpec,
    JobState,
    JobStatus,
    Refused,
    RunnerUnavailable,
    SubmitFailed,
)
from meshtune.runners.batch.launch_wrapper import GANG_FILE, read_gang, render_gang
from meshtune.runners.batch.script import CLAIM_FILE, BatchOptions, SubmitHost, read_setup_failure, submit_host
from meshtune.runners.failure_cause import Cause
from meshtune.runners.job_files import UnfitFile, read_document
from meshtune.runners.json_files import read_json_file, write_whole
from meshtune.runners.local.spool import is_fit, require_fit
from meshtune.runners.logs.lines import read_tail
from meshtune.runners.processes.command import Answer, call

_MAX_CLAIM_BYTES = 1000


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
        with suppress(OSError, UnfitFile):
            return read_document(self.directory / CLAIM_FILE, _MAX_CLAIM_BYTES).strip() or None
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
            return read_json_file(Record, self._path(name))
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


Options = TypeVar("Options", bound=BatchOptions)


class BatchRunner(ABC, Generic[Options]):
    """A Runner over a batch scheduler and the records under `root`; a subclass says how the scheduler is asked."""

    # Of the job script, in the job's folder.
    script_file: ClassVar[str]
    # Of the scheduler's log there.
    log_file: ClassVar[str]
    # Parts of a complaint by which the scheduler refuses a request, as it is set up now.
    refusals: ClassVar[Sequence[str]]
    # The words of the command that ends jobs, and parts of its complaint about one that has ended.
    cancel_command: ClassVar[str]
    over: ClassVar[Sequence[str]]
    # Parts of a complaint that leave open whether the request was taken.
    silences: ClassVar[Sequence[str]] = ()

    def __init__(
        self,
        root: Path,
        options: Options,
        *,
        nodes: int,
        devices_per_node: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """nodes, devices_per_node: of the campaign's cluster; a job that needs more is refused."""
        self._records = Records(root.resolve())
        self._options = options
        self._nodes, self._devices_per_node = nodes, devices_per_node
        self._clock = clock

    @staticmethod
    @abstractmethod
    def script_text(spec: JobSpec, options: Options, host: SubmitHost) -> str:
        """The job script. The job's directory is absolute."""

    @abstractmethod
    def _send(self, spec: JobSpec, script: Path) -> tuple[Answer, str | None]:
        """What the scheduler says when the script is sent, and the job's id in that. Raises RunnerUnavailable."""

    @abstractmethod
    def _search(self, record: Record) -> str | None:
        """The id by which the scheduler knows a job whose id never came back. Raises RunnerUnavailable."""

    @abstractmethod
    def _look(self, records: Mapping[str, Record]) -> Mapping[str, JobStatus]:
        """The statuses of these jobs, by id, in as few requests as can be. Raises RunnerUnavailable."""

    @abstractmethod
    def _environment(self, program: str) -> Mapping[str, str]:
        """All that a command of the scheduler sees."""

    def _placed(self, spec: JobSpec) -> JobSpec:
        """The job as the scheduler could place it. Raises InvalidJob, Refused."""
        return spec

    def submit(self, spec: JobSpec) -> str:
        require_fit(spec.name)
        refuse_wider(spec, self._nodes, self._devices_per_node, "the cluster")
        known = self.find(spec.name)
        if known is not None:
            return known
        spec = self._placed(replace(spec, directory=spec.directory.resolve()))
        try:
            spec.directory.mkdir(parents=True, exist_ok=True)
            for name, text in {**spec.files, GANG_FILE: render_gang(spec)}.items():
                write_whole(spec.directory / name, text)
            script = self._write_script(spec)
            record = self._records.get(spec.name)
            if record is None:
                record = Record(name=spec.name, directory=spec.directory, sent_at=self._clock())
                self._records.save(record)
        except OSError as error:
            raise SubmitFailed(f"{spec.name} cannot be written: {error}") from error
        try:
            answer, id = self._send(spec, script)
        except RunnerUnavailable as error:
            answer, id = Answer(0, "", str(error)), None
        if answer.code != 0 and not answer.says(self.silences):
            self._records.forget(spec.name)
            kind = Refused if answer.says(self.refusals) else SubmitFailed
            raise kind(f"{spec.name} was refused: {answer.complaint}")
        if id is not None:
            return self._keep_id(record, id)
        with suppress(RunnerUnavailable):
            id = self.find(spec.name)
        if id is None:
            raise RunnerUnavailable(f"{spec.name} may not have been sent: {answer.complaint}")
        return id

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        records = {id: record for id in ids if (record := self._records.of(id)) is not None}
        statuses = {id: record.final for id, record in records.items() if record.final is not None}
        open_ = {id: record for id, record in records.items() if record.final is None}
        for id, status in (self._look(open_) if open_ else {}).items():
            if status.state.final:
                status = explained(status, open_[id].directory, self.log_file)
            statuses[id] = status
            if status.state.final:
                with suppress(OSError):  # the next look comes to the same end
                    self._records.save(replace(open_[id], final=status))
        unknown = JobStatus(state=JobState.LOST, reason="this runner sent no such job")
        return {id: statuses.get(id, unknown) for id in ids}

    def cancel(self, id: str) -> None:
        record = self._records.of(id)
        if record is None or record.final is not None:
            return
        try:
            self._records.save(replace(record, cancel_asked=True))
        except OSError as error:
            raise RunnerUnavailable(f"{id} cannot be cancelled: {error}") from error
        answer = self._call(*self.cancel_command.split(), *dict.fromkeys((id, record.number)))
        if answer.code != 0 and not answer.says(self.over):
            raise RunnerUnavailable(f"{id} cannot be cancelled: {answer.complaint}")

    def find(self, name: str) -> str | None:
        """Asks the scheduler only for a job whose id never came back. Raises RunnerUnavailable."""
        record = self._records.get(name) if is_fit(name) else None
        if record is None or record.id is not None:
            return None if record is None else record.id
        id = record.claimed_by or self._search(record)
        return None if id is None else self._keep_id(record, id)

    def close(self) -> None:  # most schedulers hold nothing
        """There is nothing to give back."""

    def _call(self, *arguments: str) -> Answer:
        return call(arguments, time_limit_s=self._options.call_limit_s, environment=self._environment(arguments[0]))

    def _ask(self, *arguments: str) -> str:
        """The output of a command that must succeed. Raises RunnerUnavailable."""
        answer = self._call(*arguments)
        if answer.code != 0:
            raise RunnerUnavailable(f"{arguments[0]}: {answer.complaint}")
        return answer.out

    def _write_script(self, spec: JobSpec) -> Path:
        path = spec.directory / self.script_file
        write_whole(path, self.script_text(spec, self._options, submit_host()))
        return path

    def _keep_id(self, record: Record, id: str) -> str:
        """Raises RunnerUnavailable: what was sent is found again by its name, as after an answer that never came."""
        try:
            self._records.save(replace(record, id=id))
        except OSError as error:
            raise RunnerUnavailable(f"the id {id} of {record.name} cannot be written: {error.strerror}") from error
        return id


def explained(status: JobStatus, directory: Path, log_file: str) -> JobStatus:
    """A final status with what the job's folder and its scheduler's log tell of a failure that no rank told."""
    if status.state not in (JobState.FAILED, JobState.LOST, JobState.TIMED_OUT):
        return status
    with suppress(OSError):
        status = replace(status, log_tail=read_tail(directory / log_file))
    failure = read_setup_failure(directory)
    if failure and status.state is not JobState.TIMED_OUT:
        return replace(status, state=JobState.FAILED, reason=failure, cause=Cause.USER_BUG, failed_nodes=())
    if status.state is JobState.FAILED and status.exit_code is None and status.cause is None:
        lines = [line.strip() for line in status.log_tail.splitlines() if line.strip()]
        # What a launcher says last is that it ends its tasks; its first complaint says why.
        said = next((line for line in lines if _COMPLAINT.search(line)), lines[-1] if lines else "")
        return replace(status, reason=f"{status.reason}: {said}" if said else status.reason)
    return status


_COMPLAINT = re.compile(r"\b(?:error|fatal)\b", re.IGNORECASE)


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
