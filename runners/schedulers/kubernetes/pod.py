"""The first process of a pod: starts a launch wrapper for every process that the job has on this node, and ends all of
them with the first that fails, as srun does; standard library only. A pod's part of a job runs once: of a second pod
(Kueue suspended the job and resumed it, a controller counted wrongly), nothing is started."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from meshtune.runners.base import Start
from meshtune.runners.schedulers.batch.launch_wrapper import read_gang
from meshtune.runners.schedulers.batch.script import CLAIMED_CODE

_WRAPPER = "meshtune.runners.schedulers.batch.launch_wrapper"


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Run one pod of the job whose gang file is in the current directory; return its exit status."""
    try:
        spec = read_gang(Path())
    except OSError as error:
        print(f"{Path().absolute()} is not the job's folder: {error}; is its volume the pods'?", file=sys.stderr)  # noqa: T201
        return 1
    index = int(environment.get("JOB_COMPLETION_INDEX", "0"))
    try:
        with Path(f"pod-{index}.claim").open("x", encoding="utf-8") as file:
            file.write(environment.get("MESHTUNE_POD_UID", ""))
    except FileExistsError:
        print(f"another pod has run part {index} of this job, which does not run twice", file=sys.stderr)  # noqa: T201
        return CLAIMED_CODE
    local_ranks = range(1 if spec.start is Start.JOB else spec.processes_per_node)
    alive: set[int] = set()
    ending = False

    def end_all(*_: object) -> None:
        nonlocal ending
        ending = True
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    # Process 1 of a container gets no signal that it does not ask for.
    signal.signal(signal.SIGTERM, end_all)
    for local_rank in local_ranks:
        rank = index * spec.processes_per_node + local_rank
        own = {**environment, "MESHTUNE_RANK": str(rank), "MESHTUNE_LOCAL_RANK": str(local_rank)}
        if not ending:
            alive.add(os.posix_spawn(sys.executable, [sys.executable, "-m", _WRAPPER], own))
    if ending:
        end_all()
    worst = 0
    while alive:
        # Orphans of the container come to its first process as well.
        pid, status = os.wait()
        if pid not in alive:
            continue
        alive.discard(pid)
        if (code := os.waitstatus_to_exitcode(status)) != 0:
            worst = worst or (code if code > 0 else 128 - code)
            end_all()
    return worst or int(ending)


if __name__ == "__main__":
    sys.exit(main())
