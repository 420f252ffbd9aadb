"""Flux's words in ours: the states and results of a job (RFC 21), and what became of one by them and by its processes'
notes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus
from meshtune.runners.processes.gang import exit_words
from meshtune.runners.schedulers.batch.launch_wrapper import Note, forgotten_status, noted_end, noted_status


class Unreadable(ValueError):
    """Not what `flux jobs --json` prints."""


def read_jobs(text: str) -> Mapping[str, Mapping[str, Any]]:
    """The jobs that `flux jobs --json` lists, by their ids; one job that was asked for stands alone. Raises
    Unreadable."""
    try:
        document = json.loads(text) if text.strip() else {"jobs": []}
        jobs = document.get("jobs", [document])
        return {plain_id(job["jobid"]): job for job in jobs}
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise Unreadable(f"flux jobs --json gave another form: {error!r}") from None


def plain_id(id: str) -> str:
    """An id (RFC 19, F58) in ASCII letters, as Flux takes it too."""
    return "f" + id.removeprefix("\N{LATIN SMALL LETTER F WITH HOOK}") if not id.isascii() else id


# RFC 21. INACTIVE is in RESULTS.
STATES: Mapping[str, JobStatus] = {
    "DEPEND": JobStatus(state=JobState.QUEUED, reason="waits for what it depends on"),
    "PRIORITY": JobStatus(state=JobState.QUEUED, reason="waits for its priority"),
    "SCHED": JobStatus(state=JobState.QUEUED),
    "RUN": JobStatus(state=JobState.RUNNING),
    "CLEANUP": JobStatus(state=JobState.RUNNING, reason="ending"),
}
RESULTS: Mapping[str, JobState] = {
    "COMPLETED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
    "CANCELED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMED_OUT,
}
# An exception, and its note (src/modules/job-exec/bgexec.c).
_NODE, _NODE_FAILURE = "node-failure", re.compile(r"node failure on (\S+) ")
# By which Flux says that it, not the job, ended the job: it could not be placed, started or followed.
_OF_FLUX: Mapping[str, Cause | None] = {
    "alloc": None,
    "dependency": None,
    "exec": Cause.NODE_FAULT,
    _NODE: Cause.NODE_FAULT,
    "prolog": Cause.NODE_FAULT,
    "epilog": Cause.NODE_FAULT,
    "start": Cause.NODE_FAULT,
}


def read_status(job: Mapping[str, Any]) -> JobStatus:
    """What Flux says of a job. Keys that it left out are unknown."""
    state = str(job.get("state", ""))
    started_at = job.get("t_run")
    hosts = tuple(expand_hosts(str(job.get("nodelist", ""))))
    if state != "INACTIVE":
        unknown = JobStatus(state=JobState.QUEUED, reason=f"in Flux's state {state!r}, which is not known here")
        status = STATES.get(state, unknown)
        if status.state is JobState.RUNNING:
            return replace(status, started_at=started_at, nodes=hosts)
        return replace(status, reason=_held(job) or status.reason)
    status = replace(_end(job), started_at=started_at, nodes=hosts)
    return replace(status, finished_at=job.get("t_cleanup", job.get("t_inactive")))


def status_of(spec: JobSpec, seen: JobStatus | None, notes: Sequence[Note], *, cancel_asked: bool) -> JobStatus:
    """The status of a job that Flux shows as `seen`, None when it has forgotten it. The notes beat Flux's word on a job
    that neither a user nor its time limit ended; ranks that died of a node that Flux lost do not."""
    end = noted_end(notes, spec)
    if seen is None:
        return forgotten_status(end, notes, "Flux", cancel_asked=cancel_asked)
    if not seen.state.final:
        return seen
    by_itself = seen.state in (JobState.FAILED, JobState.LOST, JobState.SUCCEEDED) and not seen.failed_nodes
    if end is not None and (by_itself or end.state is JobState.SUCCEEDED):
        return noted_status(end, notes, seen.nodes)
    if seen.state is JobState.CANCELLED and not cancel_asked:
        return replace(seen, reason="cancelled from outside")
    return seen


def _held(job: Mapping[str, Any]) -> str:
    """Why a job waits, where Flux tells."""
    if job.get("state") == "SCHED" and job.get("urgency") == 0:
        return "held: its urgency is 0"
    reason = (job.get("annotations", {}).get("sched") or {}).get("reason_pending", "")
    return str(reason or ", ".join(job.get("dependencies", ())))


def _end(job: Mapping[str, Any]) -> JobStatus:
    result = RESULTS.get(str(job.get("result", "")), JobState.LOST)
    raised = job.get("exception", {})
    note = str(raised.get("note", ""))
    if result is JobState.SUCCEEDED:
        return JobStatus(state=result, exit_code=0)
    if result is JobState.CANCELLED:
        return JobStatus(state=result, reason="cancelled")
    if result is JobState.TIMED_OUT:
        return JobStatus(state=result, reason=f"Flux ended it: {note or 'time limit'}", cause=Cause.TIME_LIMIT)
    kind = str(raised.get("type", ""))
    # That of a node is not fatal (severity 2) as long as the job's first one lives.
    if raised.get("occurred") and (raised.get("severity") == 0 or kind == _NODE):
        return JobStatus(
            state=JobState.LOST,
            reason=f"Flux ended it: {kind}: {note}",
            cause=_OF_FLUX.get(kind),
            failed_nodes=tuple(_NODE_FAILURE.findall(note)),
        )
    code = job.get("returncode")
    if result is JobState.LOST or not isinstance(code, int):
        return JobStatus(state=JobState.LOST, reason="Flux does not say how it ended", cause=Cause.NODE_FAULT)
    return JobStatus(state=JobState.FAILED, reason=f"the job script {exit_words(code)}", exit_code=code)


# A name up to a comma that is in no bracket; and its brackets: "rack[1-2]node[01,03]".
_PART = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_BRACKET = re.compile(r"(.*?)\[([^\]]*)\](.*)")


def expand_hosts(text: str) -> list[str]:
    """The hosts of a list in the form of RFC 29, "gpu[01-03,7],login1", each once and in order."""
    hosts: list[str] = []
    for part in _PART.findall(text):
        bracket = _BRACKET.fullmatch(part)
        if bracket is None:
            hosts.append(part)
            continue
        head, inside, tail = bracket.groups()
        hosts += [host for number in _numbers(inside) for host in expand_hosts(f"{head}{number}{tail}")]
    return list(dict.fromkeys(hosts))


def _numbers(text: str) -> list[str]:
    """Of "01-03,7": 01, 02, 03 and 7."""
    found: list[str] = []
    for item in text.split(","):
        low, dash, high = item.partition("-")
        found += [f"{number:0{len(low)}}" for number in range(int(low), int(high) + 1)] if dash else [item]
    return found
