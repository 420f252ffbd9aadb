"""What became of a job: Slurm's word, its ranks' notes, and the state of its nodes, judged together. The notes beat
Slurm's word on a job whose script came to its own end; where Slurm ended the job, its word stands."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from meshtune.runners.base import JobSpec, JobState, JobStatus
from meshtune.runners.batch.notes import End, Note, forgotten_status, noted_end, noted_start, noted_status
from meshtune.runners.failure_cause import Cause


def suspects(spec: JobSpec, seen: JobStatus, notes: Sequence[Note]) -> tuple[str, ...]:
    """The nodes whose state would tell more about the end of this job."""
    if seen.cause is Cause.NODE_FAULT:
        return seen.nodes
    unexplained = seen.state is JobState.FAILED and noted_end(notes, spec) is None
    return _silent(spec, seen.nodes, notes) if unexplained else ()


def status_of(
    spec: JobSpec, seen: JobStatus | None, notes: Sequence[Note], *, cancel_asked: bool, bad_nodes: Collection[str]
) -> JobStatus:
    """The status of a job that Slurm shows as `seen` (None: forgotten). bad_nodes: suspects that are down or silent."""
    end = noted_end(notes, spec)
    if seen is None:
        return forgotten_status(end, notes, "Slurm", cancel_asked=cancel_asked)
    if seen.state is JobState.QUEUED:
        return seen
    if end is not None and seen.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.TIMED_OUT):
        cause = seen.cause if end.state is JobState.FAILED else None
        reason = f"{end.reason}; out of host memory, by Slurm's word" if cause is Cause.OOM else end.reason
        return replace(noted_status(end, notes, seen.nodes, cause), reason=reason)
    status = _timed(seen, notes)
    if seen.state is JobState.CANCELLED:
        return replace(status, reason="cancelled") if cancel_asked else status
    if seen.cause is Cause.NODE_FAULT:
        return _lost(status, _blamed(spec, seen, notes, bad_nodes))
    if seen.state in (JobState.RUNNING, JobState.LOST, JobState.SUCCEEDED):
        return status
    if bad_nodes:
        return _lost(replace(status, reason="a node failed"), tuple(node for node in seen.nodes if node in bad_nodes))
    if seen.state is JobState.FAILED and [note.end for note in notes] == [End.TOLD] * spec.processes:
        # Preemption with a grace time: all have ended before Slurm did it.
        return replace(status, state=JobState.LOST, reason="told to end before its time", cause=Cause.PREEMPTION)
    return status


def _timed(seen: JobStatus, notes: Sequence[Note]) -> JobStatus:
    """Started when its notes say so: Slurm's clock counts whole seconds, theirs parts of them."""
    if seen.state is JobState.CANCELLED and not seen.nodes:
        return seen
    started_at, finished_at = noted_start(notes, seen.started_at), seen.finished_at
    if finished_at is not None and started_at is not None:
        finished_at = max(finished_at, started_at)
    return replace(seen, started_at=started_at, finished_at=finished_at)


def _lost(status: JobStatus, failed_nodes: tuple[str, ...]) -> JobStatus:
    names = f": {', '.join(failed_nodes)}" if failed_nodes else ""
    reason = status.reason + names
    return replace(status, state=JobState.LOST, reason=reason, failed_nodes=failed_nodes, cause=Cause.NODE_FAULT)


def _blamed(spec: JobSpec, seen: JobStatus, notes: Sequence[Note], bad_nodes: Collection[str]) -> tuple[str, ...]:
    """The nodes that are down; has the one come back already, those that were not heard of; or the only one."""
    if seen.failed_nodes:
        return seen.failed_nodes
    bad = tuple(node for node in seen.nodes if node in bad_nodes)
    silent = _silent(spec, seen.nodes, notes)
    if bad or len(seen.nodes) == 1:
        return bad or seen.nodes
    return silent if notes and len(silent) < len(seen.nodes) else ()


def _silent(spec: JobSpec, nodes: tuple[str, ...], notes: Sequence[Note]) -> tuple[str, ...]:
    """The nodes with a process that did not say how it ended. srun fills the nodes in their order."""
    heard = {note.rank for note in notes if note.end is not None}
    missing = {rank // spec.processes_per_node for rank in range(spec.processes) if rank not in heard}
    return tuple(node for position, node in enumerate(nodes) if position in missing)
