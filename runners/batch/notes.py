"""What the processes of a batch job note in its folder, and what the notes say together. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from meshtune.runners.base import JobSpec, JobState, JobStatus
from meshtune.runners.failure_cause import Cause
from meshtune.runners.json_files import read_json_value
from meshtune.runners.processes.gang import first_death, gang_end
from meshtune.runners.processes.job_json import encode_job, write_whole
from meshtune.search_spaces.checks import StrEnum

# The job as its processes read it: command, environment, time limit.
GANG_FILE = "gang.json"


class End(StrEnum):
    """How a process came to its end."""

    ITSELF = "itself"
    TIME_LIMIT = "time_limit"
    TOLD = "told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The note of one process, `rank-<rank>.json`. Times are seconds since the epoch, by the node's own clock."""

    rank: int
    host: str
    started_at: float
    finished_at: float | None = None
    # None: it had started, and nothing was heard since.
    end: End | None = None
    # Of a process that ended by itself, negative for the signal.
    exit_code: int | None = None


def render_gang(spec: JobSpec) -> str:
    """The text of the gang file."""
    return json.dumps(encode_job(spec), indent=1) + "\n"


def read_gang(directory: Path) -> JobSpec:
    """The job as it was sent. Raises OSError and ValueError."""
    return read_json_value(JobSpec, json.loads((directory / GANG_FILE).read_text(encoding="utf-8")))


def write_note(directory: Path, note: Note) -> None:
    """A note that cannot be written (a full disk) must not end the process: the scheduler's word is left."""
    with suppress(OSError):
        write_whole(directory / f"rank-{note.rank}.json", json.dumps(asdict(note)))


def read_notes(directory: Path) -> list[Note]:
    """The notes in a job's directory, by rank. What cannot be read (yet) is left out."""
    notes = []
    for path in directory.glob("rank-*.json"):
        with suppress(OSError, ValueError):
            notes.append(read_json_value(Note, json.loads(path.read_text(encoding="utf-8"))))
    return sorted(notes, key=lambda note: note.rank)


def noted_end(notes: Sequence[Note], spec: JobSpec) -> JobStatus | None:
    """How the job ended, by its processes' own notes; None where they do not tell."""
    ended = sorted((note for note in notes if note.end is End.ITSELF), key=lambda note: note.finished_at or 0.0)
    deaths = [(note.rank, note.exit_code or 0) for note in ended]
    late = any(note.end is End.TIME_LIMIT for note in notes)
    if first_death(deaths) is None and not late and len(deaths) < spec.processes:
        return None
    return gang_end(spec, deaths, JobState.TIMED_OUT if late and first_death(deaths) is None else None)


def noted_hosts(notes: Sequence[Note]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note.host for note in notes))


def noted_start(notes: Sequence[Note], otherwise: float | None = None) -> float | None:
    return min((note.started_at for note in notes), default=otherwise)


def noted_status(
    end: JobStatus, notes: Sequence[Note], nodes: tuple[str, ...] | None = None, cause: Cause | None = None
) -> JobStatus:
    """The status by the notes alone. nodes: where the scheduler names them; else the hosts in the notes."""
    return replace(
        end,
        started_at=noted_start(notes),
        finished_at=max((note.finished_at for note in notes if note.finished_at is not None), default=None),
        nodes=noted_hosts(notes) if nodes is None else nodes,
        cause=cause,
    )


def forgotten_status(end: JobStatus | None, notes: Sequence[Note], scheduler: str, *, cancel_asked: bool) -> JobStatus:
    """The status of a job that its scheduler does not know any more."""
    if end is None and cancel_asked:
        end = JobStatus(state=JobState.CANCELLED, reason="cancelled")
    if end is None:
        reason = f"{scheduler} does not know this job any more, and its processes did not say how they ended"
        end = JobStatus(state=JobState.LOST, reason=reason)
    return noted_status(end, notes)
