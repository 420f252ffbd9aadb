"""The runner of a batch scheduler: jobs are recorded before they are sent, and found again by their names."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from meshtune.runners.base import (
    InvalidJob,
    JobSpec,
    JobState,
    JobStatus,
    Runner,
    RunnerUnavailable,
    SubmitFailed,
)
from meshtune.runners.batch.notes import GANG_FILE, render_gang
from meshtune.runners.batch.records import Record, Records
from meshtune.runners.local.spool import is_fit, require_fit
from meshtune.runners.processes.command import Answer, call
from meshtune.runners.processes.job_json import write_whole


class BatchRunner(ABC):
    """A Runner over a batch scheduler and the records under `root`; a subclass says how the scheduler is asked."""

    # Of the job script, in the job's folder.
    script_file: ClassVar[str]
    # Parts of a complaint by which the scheduler refuses a request for good.
    refusals: ClassVar[Sequence[str]]
    # The command that ends jobs, and parts of its complaint about one that has ended.
    cancel_command: ClassVar[str]
    over: ClassVar[Sequence[str]]
    # Parts of a complaint that leave open whether the request was taken.
    silences: ClassVar[Sequence[str]] = ()

    def __init__(
        self,
        root: Path,
        *,
        nodes: int,
        devices_per_node: int,
        call_limit_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """nodes, devices_per_node: of the campaign's cluster; a job that needs more is invalid."""
        self._records = Records(root.resolve())
        self._nodes, self._devices_per_node = nodes, devices_per_node
        self._call_limit_s = call_limit_s
        self._clock = clock

    @abstractmethod
    def _render(self, spec: JobSpec) -> str:
        """The job script."""

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
        """The job as the scheduler could place it. Raises InvalidJob."""
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
            kind = InvalidJob if answer.says(self.refusals) else SubmitFailed
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
        answer = self._call(self.cancel_command, *dict.fromkeys((id, record.number)))
        if answer.code != 0 and not answer.says(self.over):
            raise RunnerUnavailable(f"{id} cannot be cancelled: {answer.complaint}")

    def find(self, name: str) -> str | None:
        """Asks the scheduler only for a job whose id never came back. Raises RunnerUnavailable."""
        record = self._records.get(name) if is_fit(name) else None
        if record is None or record.id is not None:
            return None if record is None else record.id
        id = record.claimed_by or self._search(record)
        return None if id is None else self._keep_id(record, id)

    def close(self) -> None:  # noqa: B027  # most schedulers hold nothing
        """There is nothing to give back."""

    def _call(self, *arguments: str) -> Answer:
        return call(arguments, time_limit_s=self._call_limit_s, environment=self._environment(arguments[0]))

    def _ask(self, *arguments: str) -> str:
        """The output of a command that must succeed. Raises RunnerUnavailable."""
        answer = self._call(*arguments)
        if answer.code != 0:
            raise RunnerUnavailable(f"{arguments[0]}: {answer.complaint}")
        return answer.out

    def _write_script(self, spec: JobSpec) -> Path:
        path = spec.directory / self.script_file
        write_whole(path, self._render(spec))
        return path

    def _keep_id(self, record: Record, id: str) -> str:
        """Raises RunnerUnavailable: what was sent is found again by its name, as after an answer that never came."""
        try:
            self._records.save(replace(record, id=id))
        except OSError as error:
            raise RunnerUnavailable(f"the id {id} of {record.name} cannot be written: {error.strerror}") from error
        return id


def refuse_wider(spec: JobSpec, nodes: int, devices_per_node: int, owner: str) -> None:
    """Raises InvalidJob for a job that is empty or needs more than its owner has."""
    for wanted, has, what in (
        (spec.nodes, nodes, "nodes"),
        (spec.devices_per_node, devices_per_node, "devices on a node"),
    ):
        if not 1 <= wanted <= has:
            raise InvalidJob(f"{spec.name} needs {wanted} {what}, but {owner} has {has}")
    if not spec.command:
        raise InvalidJob(f"{spec.name} has an empty command")


class ThrottledRunner:
    """Polls another runner at most once in `period_s`, and whenever a job is new; ended jobs are not asked for
    again."""

    def __init__(self, runner: Runner, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds that never go back."""
        self.runner = runner
        self.submit, self.cancel = runner.submit, runner.cancel
        self.find, self.close = runner.find, runner.close
        self._period_s = period_s
        self._clock = clock
        self._seen: dict[str, JobStatus] = {}
        self._looked_at: float | None = None

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        open_ = [id for id in ids if id not in self._seen or not self._seen[id].state.final]
        unseen = any(id not in self._seen for id in open_)
        due = self._looked_at is None or self._clock() - self._looked_at >= self._period_s
        if open_ and (due or unseen):
            self._seen |= self.runner.poll(open_)
            self._looked_at = self._clock()
        return {id: self._seen[id] for id in ids}
