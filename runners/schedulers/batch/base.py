"""The runner of a batch scheduler, over records of its jobs: what is the same for all that are asked by commands."""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, TypeVar

from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus, Refused, RunnerUnavailable
from meshtune.runners.command import Answer, call
from meshtune.runners.json_files import write_files, write_new
from meshtune.runners.log_lines import read_tail
from meshtune.runners.schedulers.batch.launch_wrapper import noted_status, read_notes
from meshtune.runners.schedulers.batch.records import JobRecord, RecordingRunner
from meshtune.runners.schedulers.batch.script import (
    CANCELLED,
    CLAIM_FILE,
    REQUEUED_FILE,
    BatchOptions,
    SubmitHost,
    read_setup_failure,
    submit_host,
)

Options = TypeVar("Options", bound=BatchOptions)


class BatchRunner(RecordingRunner[Options]):
    """A Runner over a batch scheduler and the records under `root`; a subclass says how the scheduler is asked."""

    # Of the job script, in the job's folder.
    script_file: ClassVar[str]
    # Of the scheduler's log there.
    log_file: ClassVar[str]
    # The words of the command that ends jobs, and parts of its complaint about one that has ended.
    cancel_command: ClassVar[str]
    over: ClassVar[Sequence[str]]
    # The variables that say where the scheduler is, and how it is reached.
    connection: ClassVar[Sequence[str]] = ()
    # Parts of a complaint that leave open whether the request was taken.
    silences: ClassVar[Sequence[str]] = ()

    @staticmethod
    @abstractmethod
    def script_text(spec: JobSpec, options: Options, host: SubmitHost) -> str:
        """The job script. The job's directory is absolute."""

    @abstractmethod
    def _send(self, spec: JobSpec, script: Path) -> tuple[Answer, str | None]:
        """What the scheduler says when the script is sent, and the job's id in that. Raises RunnerUnavailable."""

    @abstractmethod
    def _search(self, record: JobRecord) -> str | None:
        """The id by which the scheduler knows a job whose id never came back. Raises RunnerUnavailable."""

    @abstractmethod
    def _look(self, records: Mapping[str, JobRecord]) -> Mapping[str, JobStatus]:
        """The statuses of these jobs, by id, in as few requests as can be. Raises RunnerUnavailable."""

    def _environment(self, program: str) -> Mapping[str, str]:
        """All that a command of the scheduler sees: none of our secrets, and where the scheduler is."""
        named = {name: os.environ[name] for name in self.connection if name in os.environ}
        return {**submit_host().environment, **named, "LC_ALL": "C"}

    def _more_files(self, spec: JobSpec) -> Mapping[str, str]:
        return {self.script_file: self.script_text(spec, self._options, submit_host())}

    def _write_script(self, spec: JobSpec) -> Path:
        [script] = write_files(spec.directory, self._more_files(spec))
        return script

    def _deliver(self, spec: JobSpec) -> str:
        answer, id = self._send(spec, spec.directory / self.script_file)
        if answer.code != 0 and not answer.says(self.silences):
            raise Refused(f"{spec.name} was refused: {answer.complaint}")
        if id is None:
            raise RunnerUnavailable(answer.complaint)
        return id

    def _find_sent(self, record: JobRecord) -> str | None:
        return record.claimed_by or self._search(record)

    def _statuses(self, records: Mapping[str, JobRecord]) -> Mapping[str, JobStatus]:
        # Before the look: who claims its folder during it may be shown as waiting, or be another copy.
        claimed = {id for id, record in records.items() if record.claimed_by is not None}
        looks = self._look(records).items()
        seen = {id: self._begun(id, records[id], status, before=id in claimed) for id, status in looks}
        return {
            id: explained(status, records[id].directory, self.log_file) if status.state.final else status
            for id, status in seen.items()
        }

    def _begun(self, id: str, record: JobRecord, status: JobStatus, *, before: bool) -> JobStatus:
        """A job has begun when its script has claimed its folder. A scheduler says so once it has nodes, and puts it
        back into its queue where these do not start it, however much we ask for no second run. before: it had begun
        when the scheduler was asked."""
        if (claimed := record.claimed_by) is not None:
            if not before and claimed != id:
                return JobStatus(state=JobState.QUEUED, reason="another copy of it has just started")
            back = before and status.state is JobState.QUEUED
            if back:  # its second run would end at once, and take its nodes from others till then
                self._call(*self.cancel_command.split(), record.number)
            if back or (status.state is JobState.FAILED and (record.directory / REQUEUED_FILE).exists()):
                return noted_status(_REQUEUED, read_notes(record.directory), cause=Cause.PREEMPTION)
            return status
        if read_notes(record.directory):
            return status
        if record.cancel_asked and status.state is JobState.FAILED:  # its script found that
            return replace(status, state=JobState.CANCELLED, reason="cancelled", started_at=None, elapsed_s=0.0)
        # PBS says that it runs before it says since when.
        moved = status.state is JobState.QUEUED or record.given_at not in (None, status.started_at)
        again = bool(record.given) and not status.state.final and moved
        if status.state is JobState.TIMED_OUT or (again and not record.cancel_asked):
            self._call(*self.cancel_command.split(), id)
            nodes = record.given or status.nodes
            lost = JobStatus(state=JobState.LOST, nodes=nodes, failed_nodes=nodes[:1], cause=Cause.NODE_FAULT)
            return replace(lost, reason=f"its nodes did not start it: {', '.join(nodes)}")
        if status.state is JobState.RUNNING:
            if not record.given or record.given_at is None:
                with suppress(OSError):  # the next look sees it again
                    self._records.save(replace(record, given=status.nodes, given_at=status.started_at))
            starts = f"its nodes have not started it yet: {', '.join(status.nodes)}"
            return JobStatus(state=JobState.QUEUED, reason=status.reason or starts)
        return replace(status, started_at=None, elapsed_s=0.0) if status.state.final else status

    def cancel(self, id: str) -> None:
        record = self._records.of(id)
        if record is None or record.final is not None:
            return
        self._note_cancel(id, record)
        with suppress(OSError):
            write_new(record.directory, CLAIM_FILE, CANCELLED)
        answer = self._call(*self.cancel_command.split(), *dict.fromkeys((id, record.number)))
        answer.output(f"{id} cannot be cancelled", self.over)

    def close(self) -> None:  # most schedulers hold nothing
        """There is nothing to give back."""

    def _call(self, *arguments: str, stdin: str = "") -> Answer:
        limit_s, environment = self._options.call_limit_s, self._environment(arguments[0])
        return call(arguments, time_limit_s=limit_s, stdin=stdin, environment=environment)

    def _ask(self, *arguments: str) -> str:
        """The output of a command that must succeed. Raises RunnerUnavailable."""
        return self._call(*arguments).output(arguments[0])


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


_REQUEUED = JobStatus(state=JobState.LOST, reason="requeued from outside after it had started")
_COMPLAINT = re.compile(r"\b(?:error|fatal)\b", re.IGNORECASE)
