"""The PBS Pro runner: jobs sent with qsub, watched with one qstat for all, ended with qdel, remembered in files.

An answer that never came is looked up by the job's name before anything is sent again. Not covered: job arrays, jobs
that PBS moves to another server, and nodes to avoid (see `runners.pbs_script`).
"""

from __future__ import annotations

import getpass
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from runners.base import InvalidJob, JobSpec, JobState, JobStatus, RunnerUnavailable, SubmitFailed
from runners.batch import Record, Records, surroundings
from runners.commands import Answer, call
from runners.jobfile import decode_job, write_whole
from runners.paced import PacedRunner
from runners.pbs_json import Unreadable, read_jobs
from runners.pbs_script import SCRIPT_FILE, PbsOptions, render
from runners.pbs_states import read_status
from runners.pbs_status import status_of
from runners.rank import GANG_FILE, read_notes, render_gang
from runners.reading import read_value
from runners.spool import require_fit
from search_spaces.cluster import ClusterSpec

_ID = re.compile(r"[0-9]+(\.[A-Za-z0-9.-]+)?")
# pbs_messages.c: the same request would be refused again.
_NEVER = (
    *("Illegal attribute or resource value", "Undefined attribute", "Unknown resource", "Unknown queue"),
    *("Job violates queue and/or server resource limits", "Resource limit exceeds allowable", "Invalid Account"),
    *("Access to queue is denied", "Job rejected by all possible destinations", "Resource invalid in", "illegal -"),
    *("Bad UID for job execution", "Bad GID for job execution", "Cannot have", "Cannot be used with", "usage:"),
)
# Where the server is, and Kerberos's ticket for it.
_OF_PBS = ("PBS_CONF_FILE", "PBS_DEFAULT", "PBS_SERVER", "KRB5CCNAME")
_UNKNOWN = "Unknown Job Id"
_NO_HISTORY = "not configured to maintain job history"
# qdel on a job that has ended already, or is about to.
_OVER = (_UNKNOWN, "Job has finished", "Request invalid for state of job", "Delete already in progress")


class PbsRunner:
    """A Runner over the PBS server that qsub speaks to, and the records under `root`.

    nodes, devices_per_node: of the campaign's cluster; a job that needs more is invalid.
    """

    def __init__(
        self,
        root: Path,
        options: PbsOptions,
        *,
        nodes: int,
        devices_per_node: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._records = Records(root.resolve())
        self._options = options
        self._nodes, self._devices_per_node = nodes, devices_per_node
        self._clock = clock
        self._keeps_history = True

    def submit(self, spec: JobSpec) -> str:
        self._refuse_invalid(spec)
        if (known := self.find(spec.name)) is not None:
            return known
        spec = replace(spec, directory=spec.directory.resolve())
        try:
            spec.directory.mkdir(parents=True, exist_ok=True)
            texts = {GANG_FILE: render_gang(spec), SCRIPT_FILE: render(spec, self._options, surroundings())}
            for name, text in {**spec.files, **texts}.items():
                write_whole(spec.directory / name, text)
            self._records.begin(spec.name, spec.directory, self._clock())
        except OSError as error:
            raise SubmitFailed(f"{spec.name} cannot be written: {error}") from error
        # No answer in time: it may have been sent, and `find` will tell.
        answer = self._call("qsub", str(spec.directory / SCRIPT_FILE))
        if answer.code != 0:
            self._records.forget(spec.name)
            kind = InvalidJob if any(message in answer.complaint for message in _NEVER) else SubmitFailed
            raise kind(f"{spec.name} was refused: {answer.complaint}")
        # A site's own words may come before the id.
        id = (answer.out.split() or [""])[-1]
        if not _ID.fullmatch(id):
            raise RunnerUnavailable(f"qsub gave no id of {spec.name}: {answer.complaint}")
        self._keep_id(spec.name, id)
        return id

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        unknown = JobStatus(state=JobState.LOST, reason="this runner sent no such job")
        try:
            records = {id: self._records.of(id) for id in ids}
            statuses = {
                id: unknown if record is None else self._records.final(record.name) for id, record in records.items()
            }
        except (OSError, ValueError) as error:
            raise RunnerUnavailable(f"the records of jobs cannot be read: {error}") from error
        open_ = {id: record for id, record in records.items() if record is not None and statuses[id] is None}
        jobs = self._qstat([record.number or id for id, record in open_.items()])
        for id, record in open_.items():
            statuses[id] = self._settled(record, jobs.get(record.number or id))
        return {id: status for id, status in statuses.items() if status is not None}

    def cancel(self, id: str) -> None:
        record = self._records.of(id)
        if record is None or self._records.final(record.name) is not None:
            return
        try:
            self._records.ask_cancel(record.name)
        except OSError as error:
            raise RunnerUnavailable(f"{id} cannot be cancelled: {error.strerror}") from error
        answer = self._call("qdel", *dict.fromkeys((id, record.number or id)))
        if answer.code != 0 and not any(message in answer.complaint for message in _OVER):
            raise RunnerUnavailable(f"{id} cannot be cancelled: {answer.complaint}")

    def find(self, name: str) -> str | None:
        """Asks PBS only for a job that was about to be sent when the answer was lost. Raises RunnerUnavailable."""
        try:
            require_fit(name)
        except InvalidJob:
            return None
        record = self._records.get(name)
        if record is None or record.id is not None:
            return None if record is None else record.id
        id = record.claimed_by or self._select(name)
        if id is not None:
            self._keep_id(name, id)
        return id

    def close(self) -> None:
        """There is nothing to give back."""

    def _refuse_invalid(self, spec: JobSpec) -> None:
        require_fit(spec.name)
        if not 1 <= spec.nodes <= self._nodes:
            raise InvalidJob(f"{spec.name} needs {spec.nodes} nodes, but the cluster has {self._nodes}")
        if not 1 <= spec.devices_per_node <= self._devices_per_node:
            told = f"{spec.devices_per_node} devices on a node, but the cluster has {self._devices_per_node}"
            raise InvalidJob(f"{spec.name} needs {told}")
        if not spec.command:
            raise InvalidJob(f"{spec.name} has an empty command")

    def _keep_id(self, name: str, id: str) -> None:
        """Raises RunnerUnavailable: what was sent is found again by its name, as after an answer that never came."""
        try:
            self._records.set_id(name, id)
        except OSError as error:
            raise RunnerUnavailable(f"the id {id} of {name} cannot be written: {error.strerror}") from error

    def _call(self, *arguments: str) -> Answer:
        return call(arguments, time_limit_s=self._options.call_limit_s, environment=_environment())

    def _with_history(self, *arguments: str) -> Answer:
        """Ask a command that takes -x, for ended jobs too, of which a server may keep no history."""
        program, *rest = arguments
        if self._keeps_history:
            answer = self._call(program, "-x", *rest)
            if _NO_HISTORY not in answer.err:
                return answer
            self._keeps_history = False
        return self._call(program, *rest)

    def _qstat(self, numbers: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """What PBS lists of these jobs, by its numbers; one that is not there it does not know (any more)."""
        if not numbers:
            return {}
        # -E asks the server once for all of them; without, some versions print the first one only (openpbs issue 2672).
        answer = self._with_history("qstat", "-E", "-f", "-F", "json", *numbers)
        try:
            jobs = read_jobs(answer.out)
        except Unreadable as error:
            raise RunnerUnavailable(f"{error}; {answer.err.strip()}") from None
        # It lists what it knows of them, and says so only where that is none.
        if not jobs and _UNKNOWN not in answer.err:
            raise RunnerUnavailable(f"qstat listed no job: {answer.err.strip() or f'exit status {answer.code}'}")
        return jobs

    def _select(self, name: str) -> str | None:
        answer = self._with_history("qselect", "-u", getpass.getuser(), "-N", name)
        if answer.code != 0:
            raise RunnerUnavailable(answer.complaint)
        return min(answer.out.split(), key=lambda id: int(id.partition(".")[0]), default=None)

    def _settled(self, record: Record, job: Mapping[str, Any] | None) -> JobStatus:
        """The job's status, kept when it is its last one."""
        seen = None if job is None else read_status(job)
        asked = self._records.cancel_asked(record.name)
        status = status_of(_spec(record), seen, read_notes(record.directory), cancel_asked=asked)
        if status.state.final:
            with suppress(OSError):  # the next look comes to the same end
                self._records.set_final(record.name, status)
        return status


def _environment() -> dict[str, str]:
    """What a PBS command sees: none of our secrets, which a site may have told qsub to pass on, and the server."""
    named = {name: os.environ[name] for name in _OF_PBS if name in os.environ}
    return {**surroundings().environment, **named, "LC_ALL": "C"}


def _spec(record: Record) -> JobSpec:
    """The job as it was sent; of one whose folder somebody cleared away, no more than the record tells."""
    try:
        return decode_job(json.loads((record.directory / GANG_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return JobSpec(name=record.name, command=(), directory=record.directory, time_limit_s=0.0)


def create(root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> PacedRunner:
    """The PBS runner of a campaign. Raises InvalidValue."""
    chosen = read_value(PbsOptions, dict(options))
    runner = PbsRunner(root, chosen, nodes=cluster.nodes, devices_per_node=cluster.devices_per_node)
    return PacedRunner(runner, chosen.poll_s)
