"""What Slurm's words mean, and what became of a job by them, its ranks' notes and the state of its nodes together:
states, reasons, refusals, and the lines of squeue and sacct. States: job_state_string (22.05) and
slurm.schedmd.com/job_state_codes.html."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus
from meshtune.runners.log_lines import read_tail
from meshtune.runners.schedulers.batch.launch_wrapper import (
    End,
    Note,
    forgotten_status,
    noted_elapsed_s,
    noted_end,
    noted_start,
    noted_status,
)
from meshtune.runners.schedulers.slurm.nodes import expand_hosts


def _status(state: JobState, cause: Cause | None = None, reason: str = "") -> JobStatus:
    return JobStatus(state=state, cause=cause, reason=reason)


_QUEUED, _RUNNING = _status(JobState.QUEUED), _status(JobState.RUNNING)
_LOST_NODE = _status(JobState.LOST, Cause.NODE_FAULT, "a node failed")
# Flags that Slurm shows instead of a state (COMPLETING ...) are among them. A job that is requeued, against our
# --no-requeue, comes back to the queue; its second run would find the folder claimed and end.
STATES: Mapping[str, JobStatus] = {
    **dict.fromkeys(("PENDING", "EXPEDITING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"), _QUEUED),
    "CONFIGURING": _status(JobState.QUEUED, reason="its nodes are being prepared"),
    "POWER_UP_NODE": _status(JobState.QUEUED, reason="its nodes are being powered up"),
    "RESV_DEL_HOLD": _status(JobState.QUEUED, reason="held because its reservation was deleted"),
    **dict.fromkeys(("RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "UPDATE_DB"), _RUNNING),
    "STOPPED": _status(JobState.RUNNING, reason="stopped by SIGSTOP"),
    "SUSPENDED": _status(JobState.RUNNING, reason="suspended"),
    "COMPLETED": _status(JobState.SUCCEEDED),
    "FAILED": _status(JobState.FAILED, reason="the job script failed; see slurm.log"),
    "OUT_OF_MEMORY": _status(JobState.FAILED, Cause.OOM, "out of host memory, by Slurm's word"),
    "TIMEOUT": _status(JobState.TIMED_OUT, reason="ended by Slurm at its time limit"),
    "DEADLINE": _status(JobState.CANCELLED, reason="could not start by its deadline"),
    "CANCELLED": _status(JobState.CANCELLED, reason="cancelled from outside"),
    "NODE_FAIL": _LOST_NODE,
    "BOOT_FAIL": _status(JobState.LOST, Cause.NODE_FAULT, "a node did not boot"),
    "LAUNCH_FAILED": _status(JobState.LOST, Cause.NODE_FAULT, "a node could not start it"),
    "RECONFIG_FAIL": _status(JobState.LOST, Cause.NODE_FAULT, "a node could not be configured"),
    "PREEMPTED": _status(JobState.LOST, Cause.PREEMPTION, "preempted by another job"),
    "REVOKED": _status(JobState.LOST, reason="revoked: another cluster of the federation took it"),
}
# Reasons that make of a FAILED job one that a node failed.
_FAILED_BY: Mapping[str, JobStatus] = {
    # Slurm says so as well of a launcher that was killed; see `status_of`.
    "JobLaunchFailure": _status(JobState.LOST, Cause.NODE_FAULT, "its first node could not start it"),
    "NodeDown": _LOST_NODE,
    "SystemFailure": _LOST_NODE,
    "FrontEndDown": _LOST_NODE,
}
# Of a job that the controller has forgotten.
UNKNOWN_JOB = ("Invalid job id",)
# The controller did not answer, or not in time: whether it took the request is not known.
SILENCES = (
    *("Unable to contact slurm controller", "Socket timed out", "Connection refused", "Connection timed out"),
    *("Communication connection failure", "Message send failure", "Message receive failure", "Zero Bytes were"),
    *("Unexpected missing socket error", "Transport endpoint", "standby mode", "Rate limit exceeded"),
    *("Slurm temporarily unable to accept job", "Protocol authentication error", "Insane message length"),
)


# srun's words of a node that could not start, or run any longer, its part of a step.
_NODE_FAILED = re.compile(r"^srun: error: (?:Task launch for \S+ failed on node|Node failure on) ([\w.,\[\]-]+)", re.M)


def read_failed_nodes(log: Path) -> tuple[str, ...]:
    """The nodes that failed by the words of srun at the end of a log."""
    said = ""
    with suppress(OSError):
        said = read_tail(log)
    return tuple(dict.fromkeys(node for names in _NODE_FAILED.findall(said) for node in expand_hosts(names)))


def meaning_of(word: str, reason: str = "") -> JobStatus:
    """What a state of Slurm's is to us. A word that nobody knows is no end: the job is looked at again."""
    if word == "FAILED" and reason in _FAILED_BY:
        return _FAILED_BY[reason]
    return STATES.get(word, _status(JobState.RUNNING, reason=f"in Slurm's state {word}"))


# The fields of a job in the words of squeue and of sacct; both are asked for seconds since the epoch by
# SLURM_TIME_FORMAT=%s. The reason comes last: it is the only one that may hold the separator.
SQUEUE_FORMAT = "%i|%T|%N|%S|%e|%r"
SACCT_FORMAT = "JobIDRaw,State,NodeList,Start,End,Reason"


def parse_jobs(text: str) -> dict[str, JobStatus]:
    """By number, the jobs in what squeue or sacct said in the format above; other lines are left out."""
    jobs: dict[str, JobStatus] = {}
    for line in text.splitlines():
        fields = line.split("|", 5)
        if len(fields) == 6 and fields[0].isdecimal():
            id, word, nodes, start, end, reason = fields
            # sacct says "CANCELLED by 1000".
            jobs[id] = _read_job(word.partition(" ")[0], expand_hosts(nodes), _seconds(start), _seconds(end), reason)
    return jobs


def _read_job(
    word: str, nodes: tuple[str, ...], started_at: float | None, finished_at: float | None, reason: str
) -> JobStatus:
    meaning = meaning_of(word, reason)
    why = "" if reason in ("None", "(null)") else reason
    if meaning.state is JobState.QUEUED:
        waits = f"waits in Slurm's queue: {why}" if why else "waits in Slurm's queue"
        return replace(meaning, reason=meaning.reason or waits)
    if meaning.state is JobState.RUNNING:
        return replace(meaning, started_at=started_at, nodes=nodes)
    if meaning.state is JobState.CANCELLED:
        # Slurm says of a job that never started that it started when it was cancelled.
        return replace(meaning, started_at=started_at if nodes else None, finished_at=finished_at, nodes=nodes)
    tells = meaning.state in (JobState.FAILED, JobState.TIMED_OUT) and bool(why)
    return replace(
        meaning,
        reason=f"{meaning.reason} ({why})" if tells else meaning.reason,
        exit_code=0 if meaning.state is JobState.SUCCEEDED else None,
        started_at=started_at,
        finished_at=finished_at,
        nodes=nodes,
        # A job that could not be launched never started: its first node, which runs the script, is to blame.
        failed_nodes=nodes[:1] if reason == "JobLaunchFailure" and meaning.state is JobState.LOST else (),
    )


def _seconds(text: str) -> float | None:
    """Slurm says N/A, NONE, Unknown or nothing of what has not happened."""
    return float(text) if text.isdecimal() else None


def suspects(spec: JobSpec, seen: JobStatus, notes: Sequence[Note]) -> tuple[str, ...]:
    """The nodes whose state would tell more about the end of this job."""
    # Slurm cancels a job that a node's prolog fails, and drains the node.
    if seen.cause is Cause.NODE_FAULT or (seen.state is JobState.CANCELLED and not notes):
        return seen.nodes
    end = noted_end(notes, spec)
    # Ranks whose peer is gone may wait for it until their time is up.
    unexplained = seen.state is JobState.FAILED if end is None else end.state is JobState.TIMED_OUT
    return _silent(spec, seen.nodes, notes) if unexplained else ()


def status_of(
    spec: JobSpec, seen: JobStatus | None, notes: Sequence[Note], *, cancel_asked: bool, bad_nodes: Collection[str]
) -> JobStatus:
    """The status of a job that Slurm shows as `seen` (None: forgotten). The notes beat Slurm's word on a job whose
    script came to its own end; where Slurm ended the job, its word stands. bad_nodes: those of any job that are down
    or silent."""
    end = noted_end(notes, spec)
    if seen is None:
        return forgotten_status(end, notes, "Slurm", cancel_asked=cancel_asked)
    if seen.state is JobState.QUEUED:
        return seen
    bad_nodes = tuple(node for node in seen.nodes if node in bad_nodes)
    if end is not None and end.state is JobState.TIMED_OUT and set(bad_nodes) & {*_silent(spec, seen.nodes, notes)}:
        end = None
    if end is not None and seen.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.TIMED_OUT):
        cause = seen.cause if end.state is JobState.FAILED else None
        reason = f"{end.reason}; out of host memory, by Slurm's word" if cause is Cause.OOM else end.reason
        return replace(noted_status(end, notes, seen.nodes, cause), reason=reason)
    status = _timed(seen, notes)
    if seen.state is JobState.CANCELLED and (cancel_asked or notes or not bad_nodes):
        return replace(status, reason="cancelled") if cancel_asked else status
    if seen.cause is Cause.NODE_FAULT and seen.failed_nodes and notes and not bad_nodes:
        reason = "its launcher ended, while its nodes answer and its ranks had started"
        return replace(status, state=JobState.LOST, reason=reason, failed_nodes=(), cause=None)
    if seen.cause is Cause.NODE_FAULT:
        return _lost(status, _blamed(spec, seen, notes, bad_nodes))
    if seen.state in (JobState.RUNNING, JobState.LOST, JobState.SUCCEEDED):
        return status
    if bad_nodes:
        return _lost(replace(status, reason="a node failed"), bad_nodes)
    if seen.state is JobState.FAILED and [note.end for note in notes] == [End.TOLD] * spec.processes:
        # Preemption with a grace time: all have ended before Slurm did it.
        return replace(status, state=JobState.LOST, reason="told to end before its time", cause=Cause.PREEMPTION)
    return status


def _timed(seen: JobStatus, notes: Sequence[Note]) -> JobStatus:
    """Started when its notes say so: Slurm's clock counts whole seconds, theirs parts of them, and nodes' clocks differ
    from the controller's: how long it ran is the notes' word, or Slurm's alone."""
    if seen.state is JobState.CANCELLED and not seen.nodes:
        return seen
    started_at, finished_at = noted_start(notes, seen.started_at), seen.finished_at
    if finished_at is not None and started_at is not None:
        finished_at = max(finished_at, started_at)
    elapsed_s = noted_elapsed_s(notes)
    if elapsed_s is None and seen.started_at is not None and seen.finished_at is not None:
        elapsed_s = max(0.0, seen.finished_at - seen.started_at)
    return replace(seen, started_at=started_at, finished_at=finished_at, elapsed_s=elapsed_s)


def _lost(status: JobStatus, failed_nodes: tuple[str, ...]) -> JobStatus:
    names = f": {', '.join(failed_nodes)}" if failed_nodes else ""
    reason = status.reason + names
    return replace(status, state=JobState.LOST, reason=reason, failed_nodes=failed_nodes, cause=Cause.NODE_FAULT)


def _blamed(spec: JobSpec, seen: JobStatus, notes: Sequence[Note], bad_nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes that are down; has the one come back already, those that were not heard of; or the only one."""
    if seen.failed_nodes and not notes:
        return seen.failed_nodes
    silent = _silent(spec, seen.nodes, notes)
    if bad_nodes or len(seen.nodes) == 1:
        return bad_nodes or seen.nodes
    return silent if notes and len(silent) < len(seen.nodes) else ()


def _silent(spec: JobSpec, nodes: tuple[str, ...], notes: Sequence[Note]) -> tuple[str, ...]:
    """The nodes with a process that did not say how it ended. The ranks of a node are consecutive."""
    heard = {note.rank for note in notes if note.end is not None}
    missing = {rank // spec.processes_per_node for rank in range(spec.processes) if rank not in heard}
    return tuple(node for position, node in enumerate(nodes) if position in missing)
