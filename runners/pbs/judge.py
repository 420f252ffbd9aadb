"""What became of a job: PBS's word and what its ranks noted, judged together. Pure.

The notes beat PBS's word on a job whose script came to its own end: they know the rank, the signal and the time limit.
Where PBS ended the job, or lost its nodes, its word stands, unless every rank had come to a good end before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshtune.runners.base import JobSpec, JobState, JobStatus
from meshtune.runners.batch.notes import Note, forgotten_status, noted_end, noted_status


def status_of(spec: JobSpec, seen: JobStatus | None, notes: Sequence[Note], *, cancel_asked: bool) -> JobStatus:
    """The status of a job that PBS shows as `seen`, None when it has forgotten it."""
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
