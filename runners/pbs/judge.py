"""What became of a job: PBS's word and what its ranks noted, judged together. Pure.

The notes beat PBS's word on a job whose script came to its own end: they know the rank, the signal and the time limit.
Where PBS ended the job, or lost its nodes, its word stands, unless every rank had come to a good end before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshtune.runners.base import JobSpec, JobState, JobStatus
from meshtune.runners.batch.launch_wrapper import GangEnd, Note, gang_end

FORGOTTEN = "PBS does not know this job any more, and its processes did not say how they ended"


def status_of(spec: JobSpec, seen: JobStatus | None, notes: Sequence[Note], *, cancel_asked: bool) -> JobStatus:
    """The status of a job that PBS shows as `seen`, None when it has forgotten it."""
    end = gang_end(notes, spec)
    if seen is None:
        if end is not None:
            return _ended(end, notes, tuple(dict.fromkeys(note.host for note in notes)))
        if cancel_asked:
            return JobStatus(state=JobState.CANCELLED, reason="cancelled")
        return JobStatus(state=JobState.LOST, reason=FORGOTTEN)
    if not seen.state.final:
        return seen
    # An exit status in it is the script's own.
    if end is not None and (seen.exit_code is not None or end.state is JobState.SUCCEEDED):
        return _ended(end, notes, seen.nodes)
    if seen.state is JobState.CANCELLED and not cancel_asked:
        return replace(seen, reason="cancelled from outside")
    return seen


def _ended(end: GangEnd, notes: Sequence[Note], nodes: tuple[str, ...]) -> JobStatus:
    """By the notes alone."""
    return JobStatus(
        state=end.state,
        reason=end.reason,
        exit_code=end.exit_code,
        started_at=min((note.started_at for note in notes), default=None),
        finished_at=max((note.finished_at for note in notes if note.finished_at is not None), default=None),
        nodes=nodes,
    )
