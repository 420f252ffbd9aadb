"""PBS Pro's words in ours, and what became of a job by them and by its processes' notes. Tables from OpenPBS 23.06:
src/include/job.h, src/server/req_jobobit.c, src/resmom."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus
from meshtune.runners.processes.gang import exit_words
from meshtune.runners.schedulers.batch.launch_wrapper import Note, forgotten_status, noted_end, noted_status
from meshtune.search_spaces.checks import raising

# An item of an object: its indent, its key, and its value with the comma after it.
_ITEM = re.compile(r'(\s*)"((?:[^"\\]|\\.)*)"\s*:\s*(.*)')
_OPENING, _CLOSING = re.compile(r'\s*("(?:[^"\\]|\\.)*"\s*:\s*)?[{\[]\s*'), re.compile(r"\s*[}\]]+,?\s*")


class Unreadable(ValueError):
    """Not JSON and not to be set right."""


def read_jobs(text: str) -> Mapping[str, Mapping[str, Any]]:
    """The attributes of each job that `qstat -f -F json` lists, by its id. Raises Unreadable. Servers up to 23.06 write
    numbers such as 005 (openpbs issue 1255), unescaped quotes (pull 830, issue 2541) and escapes such as \\, and \\'
    (pull 2049), one item per line."""
    try:
        document = json.loads(text)  # noqa: TID251  # the scheduler's, whose word on our jobs is taken anyway
    except ValueError:
        with raising(Unreadable, "qstat's answer is not JSON", ValueError):
            document = json.loads(_repaired(text), strict=False)  # noqa: TID251
    jobs = document.get("Jobs", {}) if isinstance(document, dict) else None
    if not isinstance(jobs, dict):
        raise Unreadable("qstat's answer must be an object with the key Jobs")
    return {id: job for id, job in jobs.items() if isinstance(job, dict)}


def _repaired(text: str) -> str:
    """Every item on a line of its own made JSON; what is no item, as the rest of a value, is left out."""
    lines = []
    for line in text.splitlines():
        item = _ITEM.fullmatch(line)
        if _OPENING.fullmatch(line) or _CLOSING.fullmatch(line):
            lines.append(line)
        elif item is not None:
            indent, key, rest = item.groups()
            value = rest.rstrip().removesuffix(",")
            comma = "," if rest.rstrip().endswith(",") else ""
            lines.append(f'{indent}"{key}":{_repaired_value(value)}{comma}')
    return "\n".join(lines)


def _repaired_value(value: str) -> str:
    try:
        json.loads(value, strict=False)  # noqa: TID251
    except ValueError:
        return json.dumps(value.removeprefix('"').removesuffix('"'))
    return value


# JOB_SUBSTATE_TERMINATED: somebody deleted it (qdel), whatever else its exit status says.
_DELETED = 91
# mom_start.c: a job script that a signal ended has 0x100 and the signal's number as its exit status.
_SIGNALLED = 256


def _status(state: JobState, reason: str = "", cause: Cause | None = None) -> JobStatus:
    return JobStatus(state=state, reason=reason, cause=cause)


# JOB_STATE_LTR_*; those of jobs that have ended are in ENDED. '0', unknown, is its placeholder and never stays.
STATES: Mapping[str, JobStatus] = {
    "B": _status(JobState.RUNNING, "an array job that has begun"),
    "E": _status(JobState.RUNNING, "exiting"),
    "H": _status(JobState.QUEUED, "held"),
    "M": _status(JobState.LOST, "PBS moved it to another server, where it is not followed", Cause.NODE_FAULT),
    "Q": _status(JobState.QUEUED),
    "R": _status(JobState.RUNNING),
    "S": _status(JobState.RUNNING, "suspended for another job"),
    "T": _status(JobState.QUEUED, "on its way to a queue"),
    "U": _status(JobState.RUNNING, "suspended while somebody uses the workstation"),
    "W": _status(JobState.QUEUED, "waits for its execution time, or for files that could not be staged in"),
    "0": _status(JobState.QUEUED, "in a state that PBS itself does not know"),
}
ENDED = frozenset("FX")


def _lost(reason: str, cause: Cause = Cause.NODE_FAULT) -> JobStatus:
    return _status(JobState.LOST, reason, cause)


# JOB_EXEC_*. There is no -8 and no -9. As we forbid it to run a job again, PBS ends one that it would have requeued.
EXITS: Mapping[int, JobStatus] = {
    -1: _lost("the node could not start it, before its files were there"),
    -2: _lost("the node could not start it, after its files were there"),
    -3: _lost("the node could not start it"),
    -4: _lost("the node's PBS daemon was restarted"),
    -5: _lost("the node's PBS daemon was restarted, after a checkpoint that stays there"),
    -6: _lost("the node's PBS daemon was restarted, after a checkpoint"),
    -7: _lost("the node could not restart it from its checkpoint"),
    -10: _lost("the node does not know the job's user or group"),
    -11: _lost("PBS took its nodes back to run it again later", Cause.PREEMPTION),
    -12: _lost("PBS took its nodes back after a checkpoint", Cause.PREEMPTION),
    -13: _status(JobState.FAILED, "PBS has no valid password of its user", Cause.USER_BUG),
    -14: _lost("one of its nodes, not the first, was lost"),
    -15: _lost("the site's epilogue took its nodes back after a checkpoint", Cause.PREEMPTION),
    -16: _lost("a hook on a node refused it for now"),
    -17: _lost("a hook on a node refused it"),
    -18: _lost("a hook on a node asked to run it again later"),
    -19: _lost("a hook on a node deleted it"),
    -20: _lost("its first node was lost"),
    -21: _lost("a node's temporary directory is not safe to use"),
    -22: _lost("a hook on a node failed"),
    -23: _status(JobState.FAILED, "there are no Kerberos credentials for it", Cause.USER_BUG),
    -24: _status(JobState.FAILED, "used more CPUs at once than its ncpus"),
    -25: _status(JobState.FAILED, "used more CPU time than its ncpus allow"),
    -26: _status(JobState.FAILED, "used more virtual memory than its vmem", Cause.OOM),
    -27: _status(JobState.FAILED, "used more memory than its mem", Cause.OOM),
    -28: _status(JobState.TIMED_OUT, "used more CPU time than its cput", Cause.TIME_LIMIT),
    -29: _status(JobState.TIMED_OUT, "ran longer than its walltime", Cause.TIME_LIMIT),
    -30: _lost("its nodes could not join each other"),
}
# The first node of a job is to blame for -20; which of the others is for -14, PBS writes to its logs alone.
_FIRST_NODE_LOST = -20


def read_status(job: Mapping[str, Any]) -> JobStatus:
    """What the attributes of a job in `qstat -f -F json` say of it. Attributes that PBS left out are unknown."""
    letter = str(job.get("job_state", ""))
    # The nodes of an exec_host, gpu7/0*8+gpu8/0*8, each once and in order.
    parts = str(job.get("exec_host", "")).split("+")
    hosts = tuple(dict.fromkeys(part.partition("/")[0].partition(":")[0] for part in parts if part))
    started_at = _seconds(job.get("stime"))
    if letter in ENDED:
        return replace(
            _end(job),
            nodes=hosts,
            failed_nodes=hosts[:1] if job.get("Exit_status") == _FIRST_NODE_LOST else (),
            started_at=started_at,
            finished_at=_seconds(job.get("obittime")) or _seconds(job.get("mtime")),
        )
    status = STATES.get(letter, _status(JobState.QUEUED, f"in PBS's state {letter!r}, which is not known here"))
    if status.state is JobState.RUNNING:
        return replace(status, started_at=started_at, nodes=hosts)
    return replace(status, reason=": ".join(filter(None, (status.reason, str(job.get("comment", ""))))))


def status_of(spec: JobSpec, seen: JobStatus | None, notes: Sequence[Note], *, cancel_asked: bool) -> JobStatus:
    """The status of a job that PBS shows as `seen`, None when it has forgotten it.

    The notes beat PBS's word on a job whose script came to its own end, or whose ranks all came to a good one."""
    end = noted_end(notes, spec)
    if seen is None:
        return forgotten_status(end, notes, "PBS", cancel_asked=cancel_asked)
    if not seen.state.final:
        return seen
    # An exit status in it is the script's own.
    if end is not None and (seen.exit_code is not None or end.state is JobState.SUCCEEDED):
        return noted_status(end, notes, seen.nodes)
    if seen.state is JobState.CANCELLED and not cancel_asked:
        return replace(seen, reason="cancelled from outside")
    return seen


def _end(job: Mapping[str, Any]) -> JobStatus:
    if job.get("substate") == _DELETED:
        return _status(JobState.CANCELLED, "cancelled")
    code = job.get("Exit_status")
    if not isinstance(code, int):
        return _lost("PBS gives it no exit status")
    if code < 0:
        return EXITS.get(code, _lost(f"PBS could not run it: exit status {code}"))
    if code == 0:
        return JobStatus(state=JobState.SUCCEEDED, exit_code=0)
    used, granted = (_duration_s((job.get(key) or {}).get("walltime")) for key in ("resources_used", "Resource_List"))
    if used is not None and granted is not None and used >= granted:
        # Servers before 22.05 know no -29: they give what the script, told to end, made of it.
        return EXITS[-29]
    code = code if code < _SIGNALLED else _SIGNALLED - code
    return JobStatus(state=JobState.FAILED, reason=f"the job script {exit_words(code)}", exit_code=code)


def _duration_s(text: object) -> float | None:
    """Of PBS's [[hours:]minutes:]seconds, None for anything else."""
    parts = str(text).split(":")
    if not all(part.isdecimal() for part in parts):
        return None
    total = 0
    for part in parts:
        total = 60 * total + int(part)
    return float(total)


def _seconds(text: object) -> float | None:
    """Since the epoch, of a time as qstat writes it; None for anything else."""
    try:
        return time.mktime(time.strptime(str(text), "%a %b %d %H:%M:%S %Y"))
    except (ValueError, OverflowError):
        return None
