"""One process of a job on a node that a batch scheduler gave, started by srun, mpiexec or a pod; standard library only.

Starts the job's command as the local runner would, ends it at its time limit or when told to, and leaves a note in the
job's folder; the notes of all processes tell how the job ended. A process that failed waits a moment before it tells
the launcher, so that its peers can say what they saw."""

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
from pathlib import Path

from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus
from meshtune.runners.job_files import list_entries
from meshtune.runners.json_files import encode_job, read_json_file, write_whole
from meshtune.runners.outcome import RESULT_FILE
from meshtune.runners.processes.gang import (
    FIRST_PORT,
    GRACE_S,
    JOB_MARK,
    PERIOD_S,
    Gang,
    Meeting,
    first_death,
    gang_end,
    kill_marked,
    log_path,
)
from meshtune.search_spaces.checks import StrEnum

# The job as its processes read it: command, environment, time limit.
GANG_FILE = "gang.json"
MAX_NAMED = 5
_MAX_NOTE_BYTES = 16 << 10  # notes are read at each look, and a job may leave many


class End(StrEnum):
    ITSELF = "itself"
    TIME_LIMIT = "time_limit"
    TOLD = "told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The note of one process, `rank-<rank>.json`. Times are seconds since the epoch, by the node's own clock.
    elapsed_s: between the two, by a clock that nobody sets."""

    rank: int
    host: str
    started_at: float
    finished_at: float | None = None
    elapsed_s: float | None = None
    # None: it had started, and nothing was heard since.
    end: End | None = None
    # Of a process that ended by itself, negative for the signal.
    exit_code: int | None = None


def render_gang(spec: JobSpec) -> str:
    return json.dumps(encode_job(spec), indent=1) + "\n"


def read_gang(directory: Path) -> JobSpec:
    """The job as it was sent. Raises OSError and ValueError."""
    return read_json_file(JobSpec, directory / GANG_FILE)


def write_note(directory: Path, note: Note) -> None:
    """A note that cannot be written (a full disk) must not end the process: the scheduler's word is left."""
    with suppress(OSError):
        write_whole(directory / f"rank-{note.rank}.json", json.dumps(asdict(note)))


def read_notes(directory: Path) -> list[Note]:
    """The notes in a job's directory, by rank. What cannot be read (yet) is left out."""
    notes = []
    with suppress(OSError):
        for name in list_entries(directory):
            if name.startswith("rank-") and name.endswith(".json"):
                with suppress(OSError, ValueError):
                    notes.append(read_json_file(Note, directory / name, _MAX_NOTE_BYTES))
    return sorted(notes, key=lambda note: note.rank)


def noted_end(notes: Sequence[Note], spec: JobSpec) -> JobStatus | None:
    """How the job ended, by its processes' own notes; None where they do not tell."""
    ended = sorted((note for note in notes if note.end is End.ITSELF), key=lambda note: note.finished_at or 0.0)
    deaths = [(note.rank, note.exit_code or 0) for note in ended]
    late = any(note.end is End.TIME_LIMIT for note in notes)
    if first_death(deaths) is None and not late and len(deaths) < spec.processes:
        return None
    return gang_end(spec, deaths, JobState.TIMED_OUT if late and first_death(deaths) is None else None)


def doubted(status: JobStatus, directory: Path) -> JobStatus:
    """The status of an ended job; with a warning where it left a result, and a rank never said how it ended."""
    if not status.state.final or not (directory / RESULT_FILE).exists():
        return status
    with suppress(OSError, ValueError):
        heard = {note.rank for note in read_notes(directory) if note.end is not None}
        silent = [str(rank) for rank in range(read_gang(directory).processes) if rank not in heard]
        more = f" and {len(silent) - MAX_NAMED} more" if len(silent) > MAX_NAMED else ""
        if silent:
            return replace(
                status, warning=f"suspect: rank {', '.join(silent[:MAX_NAMED])}{more} never reported its end"
            )
    return status


def noted_hosts(notes: Sequence[Note]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note.host for note in notes))


def noted_start(notes: Sequence[Note], otherwise: float | None = None) -> float | None:
    return min((note.started_at for note in notes), default=otherwise)


def noted_elapsed_s(notes: Sequence[Note]) -> float | None:
    """How long the longest of the processes ran, None where none told."""
    return max((note.elapsed_s for note in notes if note.elapsed_s is not None), default=None)


def noted_status(
    end: JobStatus, notes: Sequence[Note], nodes: tuple[str, ...] | None = None, cause: Cause | None = None
) -> JobStatus:
    """The status by the notes alone. nodes: where the scheduler names them; else the hosts in the notes."""
    return replace(
        end,
        started_at=noted_start(notes),
        finished_at=max((note.finished_at for note in notes if note.finished_at is not None), default=None),
        elapsed_s=noted_elapsed_s(notes),
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


# A scheduler ends a job by a signal to all its processes, ours and what we started, in no order.
SETTLE_S = 0.3


@dataclass(frozen=True, slots=True)
class Launcher:
    """The variables in which a launcher tells a process its number in the job, its number on its node, and its node's
    number; empty: it does not tell."""

    rank: str
    local_rank: str
    node: str = ""


_LAUNCHERS = (
    # Set by the job script, where the launcher is none of those below, and by runners/schedulers/kubernetes/pod.py.
    Launcher("MESHTUNE_RANK", "MESHTUNE_LOCAL_RANK", "MESHTUNE_NODE_RANK"),
    Launcher("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    Launcher("PALS_RANKID", "PALS_LOCAL_RANKID", "PALS_NODEID"),  # PBS Pro on Cray
    Launcher("PMI_RANK", "MPI_LOCALRANKID"),  # Hydra
    Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
)


def rank_of(environment: Mapping[str, str], processes_per_node: int) -> int:
    """The rank of this process: ranks of one node are consecutive, as tensor parallelism needs them, however the
    launcher numbers its processes (`srun --distribution=cyclic` deals them out to the nodes in turn). Raises
    LookupError where no launcher tells its number, or the place that it tells is not one of the job's."""
    launcher = next((known for known in _LAUNCHERS if known.rank in environment), None)
    if launcher is None:
        names = ", ".join(known.rank for known in _LAUNCHERS)
        raise LookupError(f"none of {names} is set: start this with srun or mpiexec")
    number = int(environment[launcher.rank])
    local_rank = int(environment.get(launcher.local_rank, number % processes_per_node))
    if local_rank >= processes_per_node:
        more = f"{launcher.local_rank} is {local_rank}, but the job has {processes_per_node} processes on each node"
        raise LookupError(f"the launcher started too many processes on this node: {more}")
    if launcher.node in environment:
        return int(environment[launcher.node]) * processes_per_node + local_rank
    if local_rank != number % processes_per_node:
        place = f"process {number} is number {local_rank} of its node"
        raise LookupError(f"the launcher must fill one node after the other, {processes_per_node} on each, but {place}")
    return number


def main(environment: Mapping[str, str] = os.environ, prefix: Sequence[str] = (), *, grace_s: float = GRACE_S) -> int:
    """Run one process of the job whose gang file is in the current directory; return its exit status. prefix: put
    before the job's command."""
    spec = read_gang(Path())
    try:
        rank = rank_of(environment, spec.processes_per_node)
    except LookupError as error:
        with suppress(OSError), log_path(spec.directory, 0).open("a", encoding="utf-8") as log:
            log.write(f"{error.args[0]}\n")
        raise SystemExit(error.args[0]) from None
    mark = f"{spec.directory}#{rank}"
    # The script has made this environment from nothing: what it and its setup lines set, and the scheduler's word on
    # which devices are ours.
    spec = replace(spec, command=(*prefix, *spec.command), env={**environment, **spec.env, JOB_MARK: mark})
    address = environment.get("MASTER_ADDR", "127.0.0.1")
    meeting = Meeting(address, int(environment.get("MASTER_PORT", FIRST_PORT)))
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: signals.append(received))
    started_at = time.time()
    # A pod's own host name is not its node's.
    host = environment.get("MESHTUNE_NODE_NAME") or environment.get("SLURMD_NODENAME", socket.gethostname())
    note = Note(rank=rank, host=host, started_at=started_at)
    write_note(spec.directory, note)
    gang = Gang(spec, time.monotonic())
    gang.start([rank], meeting, None)
    note = _watch(note, gang, signals)
    kill_marked(mark)
    write_note(spec.directory, note)
    if note.end is End.ITSELF and note.exit_code == 0:
        return 0
    if not signals:
        time.sleep(grace_s)
    return 1


def _watch(note: Note, gang: Gang, signals: Sequence[int]) -> Note:
    """Wait for the process, and end it when it must end."""
    while True:
        now = time.monotonic()
        gang.step(now)
        if not gang.alive:
            break
        if signals:
            gang.end(JobState.CANCELLED, now)
        time.sleep(PERIOD_S)
    finished_at = time.time()
    code = gang.deaths[0][1] if gang.deaths else None
    if gang.ending is None and code != 0:
        time.sleep(SETTLE_S)
    end = End.TIME_LIMIT if gang.ending is JobState.TIMED_OUT else End.TOLD if gang.ending else End.ITSELF
    if end is End.ITSELF and code != 0 and signals:
        end = End.TOLD
    return replace(
        note,
        finished_at=finished_at,
        elapsed_s=now - gang.started_at,
        end=end,
        exit_code=code if end is End.ITSELF else None,
    )


if __name__ == "__main__":
    sys.exit(main(prefix=sys.argv[1:]))
