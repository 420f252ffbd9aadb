"""What the runners of batch schedulers share: jobs are recorded before they are sent, and found again by their names.

A scheduler's own runner says by four methods how it is asked; the contract of `Runner` is kept here.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from meshtune.runners.base import InvalidJob, JobSpec, JobState, JobStatus, RunnerUnavailable
from meshtune.runners.batch.launch_wrapper import GANG_FILE
from meshtune.runners.batch.records import Record, Records
from meshtune.runners.local.spool import require_fit
from meshtune.runners.processes.job_json import decode_job


class BatchRunner(ABC):
    """A Runner over a batch scheduler and the records under `root`.

    nodes, devices_per_node: of the campaign's cluster; a job that needs more is invalid.
    """

    def __init__(
        self, root: Path, *, nodes: int, devices_per_node: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._records = Records(root.resolve())
        self._nodes, self._devices_per_node = nodes, devices_per_node
        self._clock = clock

    @abstractmethod
    def _send(self, spec: JobSpec) -> str:
        """Record the job and send it; its id. Raises what `Runner.submit` raises."""

    @abstractmethod
    def _search(self, record: Record) -> str | None:
        """The id by which the scheduler knows a job whose id never came back. Raises RunnerUnavailable."""

    @abstractmethod
    def _withdraw(self, numbers: Sequence[str]) -> str:
        """Ask for the end of one job's copies; why that failed, empty where it did not, or they had ended."""

    @abstractmethod
    def _look(self, records: Mapping[str, Record]) -> Mapping[str, JobStatus]:
        """The statuses of these jobs, by id, in as few requests as can be. Raises RunnerUnavailable, OSError."""

    def submit(self, spec: JobSpec) -> str:
        self._refuse_invalid(spec)
        known = self.find(spec.name)
        return known if known is not None else self._send(replace(spec, directory=spec.directory.resolve()))

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        unknown = JobStatus(state=JobState.LOST, reason="this runner sent no such job")
        try:
            records = {id: self._records.of(id) for id in ids}
            known = {
                id: unknown if record is None else self._records.final(record.name) for id, record in records.items()
            }
            open_ = {id: record for id, record in records.items() if record is not None and known[id] is None}
            statuses = self._look(open_) if open_ else {}
        except (OSError, ValueError) as error:
            raise RunnerUnavailable(f"the records of jobs cannot be read: {error}") from error
        for id, status in statuses.items():
            if status.state.final:
                with suppress(OSError):  # the next look comes to the same end
                    self._records.set_final(open_[id].name, status)
        return {id: statuses.get(id) or known[id] or unknown for id in ids}

    def cancel(self, id: str) -> None:
        try:
            record = self._records.of(id)
            if record is None or self._records.final(record.name) is not None:
                return
            self._records.ask_cancel(record.name)
        except OSError as error:
            raise RunnerUnavailable(f"{id} cannot be cancelled: {error}") from error
        complaint = self._withdraw(list(dict.fromkeys((id, record.number or id))))
        if complaint:
            raise RunnerUnavailable(f"{id} cannot be cancelled: {complaint}")

    def find(self, name: str) -> str | None:
        """Asks the scheduler only for a job that was about to be sent when the answer was lost.
        Raises RunnerUnavailable."""
        try:
            require_fit(name)
        except InvalidJob:
            return None
        record = self._records.get(name)
        if record is None or record.id is not None:
            return None if record is None else record.id
        id = record.claimed_by or self._search(record)
        if id is not None:
            self._keep_id(name, id)
        return id

    def close(self) -> None:  # noqa: B027  # most schedulers hold nothing
        """There is nothing to give back."""

    def _keep_id(self, name: str, id: str) -> None:
        """Raises RunnerUnavailable: what was sent is found again by its name, as after an answer that never came."""
        try:
            self._records.set_id(name, id)
        except OSError as error:
            raise RunnerUnavailable(f"the id {id} of {name} cannot be written: {error.strerror}") from error

    def _refuse_invalid(self, spec: JobSpec) -> None:
        require_fit(spec.name)
        if not 1 <= spec.nodes <= self._nodes:
            raise InvalidJob(f"{spec.name} needs {spec.nodes} nodes, but the cluster has {self._nodes}")
        if not 1 <= spec.devices_per_node <= self._devices_per_node:
            told = f"{spec.devices_per_node} devices on a node, but the cluster has {self._devices_per_node}"
            raise InvalidJob(f"{spec.name} needs {told}")
        if not spec.command:
            raise InvalidJob(f"{spec.name} has an empty command")


def sent_job(record: Record) -> JobSpec:
    """The job as it was sent; of one whose folder somebody cleared away, no more than the record tells."""
    try:
        return decode_job(json.loads((record.directory / GANG_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return JobSpec(name=record.name, command=(), directory=record.directory, time_limit_s=0.0)
