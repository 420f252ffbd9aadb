"""One process of a job on a node that a batch scheduler gave, started by srun or mpiexec; standard library only.

Starts the job's command as the local runner would, ends it at its time limit or when told to, and leaves a note. A
process that failed waits a moment before it tells the launcher, so that its peers can say what they saw."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from meshtune.runners.base import JobState
from meshtune.runners.batch.notes import End, Note, read_gang, write_note
from meshtune.runners.processes.gang import FIRST_PORT, GRACE_S, JOB_MARK, PERIOD_S, Gang, Meeting, kill_marked

# A scheduler ends a job by a signal to all its processes, ours and what we started, in no order.
SETTLE_S = 0.3
# The launchers' names of a process's number, among all and on its node: Slurm, PALS (PBS Pro on Cray), Hydra, Open MPI.
_RANK_VARIABLES = ("SLURM_PROCID", "PALS_RANKID", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


def rank_of(environment: Mapping[str, str]) -> int:
    """The number of this process among the job's, as its launcher counts. Raises LookupError."""
    for name in _RANK_VARIABLES:
        if name in environment:
            return int(environment[name])
    raise LookupError(f"none of {', '.join(_RANK_VARIABLES)} is set: start this with srun or mpiexec")


def main(environment: Mapping[str, str] = os.environ, *, grace_s: float = GRACE_S) -> int:
    """Run one process of the job whose gang file is in the current directory; return its exit status."""
    spec = read_gang(Path())
    rank = rank_of(environment)
    mark = f"{spec.directory}#{rank}"
    # The script has made this environment from nothing: what it and its setup lines set, and the scheduler's word on
    # which devices are ours.
    spec = replace(spec, env={**environment, **spec.env, JOB_MARK: mark})
    address = environment.get("MASTER_ADDR", "127.0.0.1")
    meeting = Meeting(address, int(environment.get("MASTER_PORT", FIRST_PORT)))
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: signals.append(received))
    started_at = time.time()
    host = environment.get("SLURMD_NODENAME", socket.gethostname())
    note = Note(rank=rank, host=host, started_at=started_at)
    write_note(spec.directory, note)
    gang = Gang(spec, started_at)
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
        now = time.time()
        gang.step(now)
        if not gang.alive:
            break
        if signals:
            gang.end(JobState.CANCELLED, now)
        time.sleep(PERIOD_S)
    code = gang.deaths[0][1] if gang.deaths else None
    if gang.ending is None and code != 0:
        time.sleep(SETTLE_S)
    end = End.TIME_LIMIT if gang.ending is JobState.TIMED_OUT else End.TOLD if gang.ending else End.ITSELF
    if end is End.ITSELF and code != 0 and signals:
        end = End.TOLD
    return replace(note, finished_at=now, end=end, exit_code=code if end is End.ITSELF else None)


if __name__ == "__main__":
    sys.exit(main())
