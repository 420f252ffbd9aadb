"""The PBS Pro runner: qsub, one qstat for all jobs, qdel. Not covered: job arrays, jobs that PBS moves to another
server, and nodes to avoid."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshtune.runners.base import JobSpec, JobStatus, RunnerUnavailable
from meshtune.runners.batch.base import BatchRunner, Record, ThrottledRunner
from meshtune.runners.batch.launch_wrapper import read_notes
from meshtune.runners.batch.script import submit_host
from meshtune.runners.documents import read_value
from meshtune.runners.pbs.script import PbsOptions
from meshtune.runners.pbs.script import render as render_script_of
from meshtune.runners.pbs.vocabulary import Unreadable, read_jobs, read_status, status_of
from meshtune.runners.processes.command import Answer
from meshtune.search_spaces.cluster import ClusterSpec

_ID = re.compile(r"[0-9]+(\.[A-Za-z0-9.-]+)?")
# pbs_messages.c: the same request would be refused again.
_REFUSALS = (
    *("Illegal attribute or resource value", "Undefined attribute", "Unknown resource", "Unknown queue"),
    *("Job violates queue and/or server resource limits", "Resource limit exceeds allowable", "Invalid Account"),
    *("Access to queue is denied", "Job rejected by all possible destinations", "Resource invalid in", "illegal -"),
    *("Bad UID for job execution", "Bad GID for job execution", "Cannot have", "Cannot be used with", "usage:"),
)
# Where the server is, and Kerberos's ticket for it.
_OF_PBS = ("PBS_CONF_FILE", "PBS_DEFAULT", "PBS_SERVER", "KRB5CCNAME")
_UNKNOWN = "Unknown Job Id"
_NO_HISTORY = "not configured to maintain job history"


class PbsRunner(BatchRunner[PbsOptions]):
    script_file = "pbs.sh"
    refusals = _REFUSALS
    cancel_command = "qdel"
    over = (_UNKNOWN, "Job has finished", "Request invalid for state of job", "Delete already in progress")

    render = staticmethod(render_script_of)
    # Until the server says otherwise.
    _keeps_history = True

    def _send(self, spec: JobSpec, script: Path) -> tuple[Answer, str | None]:
        answer = self._call("qsub", str(script))
        # A site's own words may come before the id.
        id = (answer.out.split() or [""])[-1]
        return answer, id if _ID.fullmatch(id) else None

    def _search(self, record: Record) -> str | None:
        answer = self._with_history("qselect", "-u", getpass.getuser(), "-N", record.name)
        if answer.code != 0:
            raise RunnerUnavailable(answer.complaint)
        return min(answer.out.split(), key=lambda id: int(id.partition(".")[0]), default=None)

    def _look(self, records: Mapping[str, Record]) -> Mapping[str, JobStatus]:
        numbers = {id: record.number for id, record in records.items()}
        # -E asks the server once for all of them; without, some versions print the first one only (openpbs issue 2672).
        answer = self._with_history("qstat", "-E", "-f", "-F", "json", *numbers.values())
        try:
            jobs = read_jobs(answer.out)
        except Unreadable as error:
            raise RunnerUnavailable(f"{error}; {answer.err.strip()}") from None
        # It lists what it knows of them, and says so only where that is none.
        if not jobs and _UNKNOWN not in answer.err:
            raise RunnerUnavailable(f"qstat listed no job: {answer.err.strip() or f'exit status {answer.code}'}")
        return {
            id: status_of(
                record.job(),
                read_status(jobs[numbers[id]]) if numbers[id] in jobs else None,
                read_notes(record.directory),
                cancel_asked=record.cancel_asked,
            )
            for id, record in records.items()
        }

    def _environment(self, program: str) -> Mapping[str, str]:
        """None of our secrets, and where the server is."""
        named = {name: os.environ[name] for name in _OF_PBS if name in os.environ}
        return {**submit_host().environment, **named, "LC_ALL": "C"}

    def _with_history(self, *arguments: str) -> Answer:
        """Ask a command that takes -x, for ended jobs too, of which a server may keep no history."""
        program, *rest = arguments
        if self._keeps_history:
            answer = self._call(program, "-x", *rest)
            if _NO_HISTORY not in answer.err:
                return answer
            self._keeps_history = False
        return self._call(program, *rest)


def create(root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> ThrottledRunner:
    chosen = read_value(PbsOptions, dict(options))
    runner = PbsRunner(root, chosen, nodes=cluster.nodes, devices_per_node=cluster.devices_per_node)
    return ThrottledRunner(runner, chosen.poll_s)
