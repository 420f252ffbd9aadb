"""One process of a job on a node that a batch scheduler gave: `python -m meshtune.runners.batch.launch_wrapper`,
started by srun or mpiexec.

It takes its rank from the launcher's variables, starts the job's command as the local runner would (log, environment,
session of its own), ends it at its time limit or when it is told to, and leaves a note for whoever judges the job.
A process that failed waits a moment before it says so to the launcher, so that its peers can say what they saw.
Standard library only: it starts on every device.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import FrameType

from meshtune.runners.base import JobSpec, JobState
from meshtune.runners.processes.gang import (
    JOB_MARK,
    Meeting,
    exit_text,
    first_death,
    kill_marked,
    kill_tree,
    start_rank,
)
from meshtune.runners.processes.job_json import decode_job, encode_job, write_whole

GANG_FILE = "gang.json"
GRACE_S = 0.5
PERIOD_S = 0.02
# A scheduler ends a job by a signal to all its processes, ours and what we started, in no order.
SETTLE_S = 0.3
# The launchers' names of a process's number, among all and on its node: Slurm, PALS (PBS Pro on Cray), Hydra, Open MPI.
_RANK_VARIABLES = ("SLURM_PROCID", "PALS_RANKID", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


class End(StrEnum):
    """How a process came to its end."""

    ITSELF = "itself"
    TIME_LIMIT = "time_limit"
    TOLD = "told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a process of a job leaves in `rank-<rank>.json`. end None: it had started, and nothing was heard since.

    exit_code: of a process that ended by itself, negative for the signal. Times are seconds since the epoch, by the
    node's own clock.
    """

    rank: int
    host: str
    started_at: float
    finished_at: float | None = None
    end: End | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class GangEnd:
    """What the notes of all processes say together."""

    state: JobState
    reason: str
    exit_code: int | None


def render_gang(spec: JobSpec) -> str:
    """The text of the gang file, which `main` reads in the job's directory."""
    return json.dumps(encode_job(spec), indent=1) + "\n"


def read_notes(directory: Path) -> list[Note]:
    """The notes in a job's directory, by rank. What cannot be read (yet) is left out."""
    notes = []
    for path in directory.glob("rank-*.json"):
        with suppress(OSError, ValueError, TypeError, KeyError):
            document = json.loads(path.read_text(encoding="utf-8"))
            end = document["end"]
            notes.append(Note(**{**document, "end": None if end is None else End(end)}))
    return sorted(notes, key=lambda note: note.rank)


def gang_end(notes: Sequence[Note], spec: JobSpec) -> GangEnd | None:
    """How the job ended, by its processes' own notes; None where they do not tell: the scheduler's word counts then."""
    died = sorted((note for note in notes if note.end is End.ITSELF), key=lambda note: note.finished_at or 0.0)
    first = first_death([(note.rank, note.exit_code or 0) for note in died])
    late = [note for note in notes if note.end is End.TIME_LIMIT]
    if first is not None:
        return GangEnd(JobState.FAILED, exit_text(*first), first[1])
    if late:
        return GangEnd(JobState.TIMED_OUT, f"ran longer than its time limit of {spec.time_limit_s:g} s", None)
    if len(died) == spec.processes:
        return GangEnd(JobState.SUCCEEDED, "", 0)
    return None


def rank_of(environment: Mapping[str, str]) -> int:
    """The number of this process among the job's, as its launcher counts. Raises LookupError."""
    for name in _RANK_VARIABLES:
        if name in environment:
            return int(environment[name])
    raise LookupError(f"none of {', '.join(_RANK_VARIABLES)} is set: start this with srun or mpiexec")


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Run one process of the job whose gang file is in the current directory; return its exit status."""
    spec = decode_job(json.loads(Path(GANG_FILE).read_text(encoding="utf-8")))
    rank = rank_of(environment)
    # The script has made this environment from nothing: what it and its setup lines set, and the scheduler's word on
    # which devices are ours.
    spec = replace(spec, env={**environment, **spec.env, JOB_MARK: f"{spec.directory}#{rank}"})
    meeting = Meeting(environment.get("MASTER_ADDR", "127.0.0.1"), int(environment.get("MASTER_PORT", "20000")))
    told: list[int] = []

    def tell(number: int, _: FrameType | None) -> None:
        told.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, tell)
    started_at = time.time()
    host = environment.get("SLURMD_NODENAME", socket.gethostname())
    note = Note(rank=rank, host=host, started_at=started_at)
    _write(spec.directory, note)
    pid = start_rank(spec, rank, meeting, None)
    note = _watch(note, pid, spec, told)
    kill_marked(spec.env[JOB_MARK])
    _write(spec.directory, note)
    if note.end is End.ITSELF and note.exit_code == 0:
        return 0
    if not told:
        time.sleep(GRACE_S)
    return 1


def _watch(note: Note, pid: int, spec: JobSpec, told: Sequence[int]) -> Note:
    """Wait for the process, and end it when it must end."""
    deadline = note.started_at + spec.time_limit_s
    end = End.ITSELF
    while True:
        ended, wait_status = os.waitpid(pid, os.WNOHANG)
        now = time.time()
        if ended:
            code = os.waitstatus_to_exitcode(wait_status)
            if end is End.ITSELF and code != 0:
                time.sleep(SETTLE_S)
                end = End.TOLD if told else End.ITSELF
            return replace(note, finished_at=now, end=end, exit_code=code if end is End.ITSELF else None)
        if end is End.ITSELF and (told or now >= deadline):
            end = End.TOLD if told else End.TIME_LIMIT
            kill_tree(pid)
        time.sleep(PERIOD_S)


def _write(directory: Path, note: Note) -> None:
    """A note that cannot be written (a full disk) must not end the process: the scheduler's word is left."""
    with suppress(OSError):
        write_whole(directory / f"rank-{note.rank}.json", json.dumps(asdict(note)))


if __name__ == "__main__":
    sys.exit(main())
