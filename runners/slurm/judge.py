"""What became of a job: Slurm's word, what its ranks noted, and the state of its nodes, judged together. Pure.

The notes beat Slurm's word on a job whose script came to its own end: they know the rank, the signal and the time
limit. Where Slurm ended the job (cancelled, preempted, a node lost), its word stands.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from meshtune.runners.base import JobSpec, JobState, JobStatus
from meshtune.runners.batch.launch_wrapper import End, GangEnd, Note, gang_end
from meshtune.runners.failure_cause import Cause
from meshtune.runners.slurm.vocabulary import Sighting

FORGOTTEN = "Slurm does not know this job any more, and its processes did not say how they ended"


def suspects(spec: JobSpec, sighting: Sighting, notes: Sequence[Note]) -> tuple[str, ...]:
    """The nodes whose state would tell more about the end of this job."""
    meaning = sighting.meaning
    if meaning.cause is Cause.NODE_FAULT:
        return sighting.nodes
    unexplained = meaning.state is JobState.FAILED and gang_end(notes, spec) is None
    return _silent(spec, sighting.nodes, notes) if unexplained else ()


def status_of(
    spec: JobSpec, sighting: Sighting | None, notes: Sequence[Note], *, cancel_asked: bool, bad_nodes: Collection[str]
) -> JobStatus:
    """The status of a job that Slurm shows as `sighting`, None when it has forgotten it.

    bad_nodes: of the suspects, those that are down or silent.
    """
    end = gang_end(notes, spec)
    if sighting is None:
        return _ended(end, notes, tuple(dict.fromkeys(note.host for note in notes)))
    meaning, nodes = sighting.meaning, sighting.nodes
    started_at = min((note.started_at for note in notes), default=sighting.started_at)
    if meaning.state is JobState.QUEUED:
        return JobStatus(state=JobState.QUEUED, reason=meaning.words or _waits(sighting))
    if meaning.state is JobState.RUNNING:
        return JobStatus(state=JobState.RUNNING, reason=meaning.words, started_at=started_at, nodes=nodes)
    if meaning.state is JobState.CANCELLED:
        reason = "cancelled" if cancel_asked else meaning.words
        # Slurm says of a job that never started that it started when it was cancelled.
        return _final(sighting, JobState.CANCELLED, reason, started_at if nodes else None)
    if meaning.state is JobState.LOST:
        failed = _blamed(spec, sighting, notes, bad_nodes) if meaning.cause is Cause.NODE_FAULT else ()
        reason = meaning.words + (f": {', '.join(failed)}" if failed else "")
        return _final(sighting, JobState.LOST, reason, started_at, failed, meaning.cause)
    if end is not None:
        return _ended(end, notes, nodes, meaning.cause if end.state is JobState.FAILED else None)
    if meaning.state is JobState.SUCCEEDED:
        return _final(sighting, JobState.SUCCEEDED, "", started_at, exit_code=0)
    if bad_nodes:
        failed = tuple(node for node in nodes if node in bad_nodes)
        reason = f"a node failed: {', '.join(failed)}"
        return _final(sighting, JobState.LOST, reason, started_at, failed, Cause.NODE_FAULT)
    if meaning.state is JobState.FAILED and [note.end for note in notes] == [End.TOLD] * spec.processes:
        # Preemption with a grace time: all have ended before Slurm did it.
        return _final(sighting, JobState.LOST, "told to end before its time", started_at, cause=Cause.PREEMPTION)
    reason = meaning.words + (f" ({sighting.reason})" if sighting.reason else "")
    return _final(sighting, meaning.state, reason, started_at, cause=meaning.cause)


def _waits(sighting: Sighting) -> str:
    return f"waits in Slurm's queue: {sighting.reason}" if sighting.reason else "waits in Slurm's queue"


def _ended(end: GangEnd | None, notes: Sequence[Note], nodes: tuple[str, ...], cause: Cause | None = None) -> JobStatus:
    """By the notes alone."""
    if end is None:
        end = GangEnd(JobState.LOST, FORGOTTEN, None)
    reason = f"{end.reason}; out of host memory, by Slurm's word" if cause is Cause.OOM else end.reason
    return JobStatus(
        state=end.state,
        reason=reason,
        exit_code=end.exit_code,
        started_at=min((note.started_at for note in notes), default=None),
        finished_at=max((note.finished_at for note in notes if note.finished_at is not None), default=None),
        nodes=nodes,
        cause=cause,
    )


def _final(
    sighting: Sighting,
    state: JobState,
    reason: str,
    started_at: float | None,
    failed_nodes: tuple[str, ...] = (),
    cause: Cause | None = None,
    exit_code: int | None = None,
) -> JobStatus:
    """By Slurm's word. Its clock counts whole seconds, those of the notes parts of them."""
    finished_at = sighting.finished_at
    if finished_at is not None and started_at is not None:
        finished_at = max(finished_at, started_at)
    return JobStatus(
        state=state,
        reason=reason,
        exit_code=exit_code,
        started_at=started_at,
        finished_at=finished_at,
        nodes=sighting.nodes,
        failed_nodes=failed_nodes,
        cause=cause,
    )


def _blamed(spec: JobSpec, sighting: Sighting, notes: Sequence[Note], bad_nodes: Collection[str]) -> tuple[str, ...]:
    """The nodes that are down; has the one come back already, those that were not heard of; or the only one."""
    if sighting.never_started:
        return sighting.nodes[:1]
    bad = tuple(node for node in sighting.nodes if node in bad_nodes)
    silent = _silent(spec, sighting.nodes, notes)
    if bad or len(sighting.nodes) == 1:
        return bad or sighting.nodes
    return silent if notes and len(silent) < len(sighting.nodes) else ()


def _silent(spec: JobSpec, nodes: tuple[str, ...], notes: Sequence[Note]) -> tuple[str, ...]:
    """The nodes with a process that did not say how it ended. srun fills the nodes in their order."""
    told = {note.rank for note in notes if note.end is not None}
    missing = {rank // spec.processes_per_node for rank in range(spec.processes) if rank not in told}
    return tuple(node for position, node in enumerate(nodes) if position in missing)
