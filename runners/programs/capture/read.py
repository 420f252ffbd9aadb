"""Reads what a launcher called: the one training that it starts, by the dialect of the program."""

from __future__ import annotations

import shlex
from dataclasses import replace

from meshtune.runners.programs.capture.session import Captured
from meshtune.runners.programs.capture.stand_in import BARRED, CONTAINERS
from meshtune.runners.programs.dialects.base import CannotRead, Imported, Question
from meshtune.runners.programs.dialects.bash.launch import find_call
from meshtune.runners.programs.dialects.call import Call, choose, launch_of, starts_a_program
from meshtune.runners.programs.dialects.job_script import with_devices, with_job
from meshtune.runners.programs.dialects.programs import read_start

_MAX_TOLD = 20
_ANSWER = "capture where the training would run, or write it into the spec"


def read_captured(captured: Captured, number: int = 0, dialect: str = "") -> Imported:
    """What the start says. number: which of several different ones, from 1; 0 where there is one. Raises CannotRead."""
    calls = [_inside(found) for found in captured.calls]
    starts = [found for found in calls if starts_a_program(found)]
    if not starts:
        raise CannotRead(_nothing(captured))
    if captured.unset:
        asked = " ".join(f"--set {name}=VALUE" for name in captured.unset)
        raise CannotRead(
            f"the script reads {', '.join(captured.unset)}, which nothing sets, and bash takes as empty. "
            f"Next: the same command with {asked} (nothing after the `=` where it is to be empty)"
        )
    chosen, place = choose(starts, number)
    launch = with_devices(launch_of(chosen, place), captured.text)
    imported = with_job(read_start(launch, dialect), captured.text, ())
    failed = [
        # Where a `cd` led nowhere, the folder that the start was met in is not the program's.
        Question(
            "workload.directory" * (": cd: " in line),
            f"bash told: {line}. What it would have done is missing: {_ANSWER}",
        )
        for line in captured.failed
    ]
    return replace(imported, notes=(*captured.notes, *imported.notes), questions=(*failed, *imported.questions))


def _inside(found: Call) -> Call:
    """The call that a container's words hold; any other call as it is."""
    if found.tool not in CONTAINERS:
        return found
    inner = find_call((found.tool, *found.words))
    if inner is None:
        return found
    around = replace(inner, cwd=found.cwd, environment=found.environment, changed=found.changed, files=found.files)
    return replace(around, under=(*found.under, *inner.under))


def _nothing(captured: Captured) -> str:
    """Why nothing was captured, and the next command."""
    for found in captured.calls:
        if found.tool in (*BARRED, *CONTAINERS):
            script = next((word for word in found.words if not word.startswith("-")), "")
            given = f"`{found.written}` was met and not run"
            if found.tool in ("sbatch", "salloc", "qsub", "bsub"):
                return f"{given}. Next: meshtune import --capture -- bash {shlex.quote(script or 'SCRIPT')}"
            return f"{given}. Next: meshtune import --capture -- COMMAND, with the command that it would run there"
    seen = "".join(f"; met: {found.written}" for found in captured.calls[:_MAX_TOLD])
    return (
        f"the launcher started no training by torchrun, deepspeed, accelerate, composer, srun, mpirun or python{seen}; "
        f"it {captured.end}. Programs called by their whole path (/opt/conda/bin/torchrun) are met only where they are "
        f"there. Next: write `torchrun` in a copy of the script, or read it as it stands: meshtune import SCRIPT"
    )
