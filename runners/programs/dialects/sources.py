"""Reads a named file (a launch script, a configuration or a log) or one command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from meshtune.runners.programs.capture.stand_in import NAMES
from meshtune.runners.programs.dialects import programs
from meshtune.runners.programs.dialects.base import CannotRead, Imported
from meshtune.runners.programs.dialects.bash.launch import find_launch
from meshtune.runners.programs.dialects.job_script import with_job
from meshtune.runners.untrusted_text import SLOW_LIMITS

# Programs print their arguments when they start; before that come a cluster's own words, of each of many ranks.
_MAX_LOG = 16_000_000
_LOGS = (".log", ".out", ".err")
_STEPS = re.compile(r"(?m)^.{0,80}\b(?:iteration|step)[ :=]+\d+.*\bloss\b")


def read_source(path: Path, *, given: Mapping[str, str], number: int = 0, dialect: str = "") -> Imported:
    """What the file says. given: variables that a script finds. number: which of several starts, from 1; 0 where there
    is one. dialect: of `programs.DIALECTS`, "" by what recognises it. Raises OSError, CannotRead."""
    with path.open("rb") as file:
        content = file.read(_MAX_LOG)
    text = content.decode("utf-8", errors="replace")
    small = len(content) <= SLOW_LIMITS.max_bytes
    if path.suffix == ".py" or not (text.startswith("#!") or path.suffix in NAMES["scripts"]):
        if small and (path.suffix in NAMES["configurations"] or dialect or programs.is_file(path.name, text)):
            # What a dialect was named for and does not know as a configuration is a script or a log of it.
            try:
                return programs.read_file(str(path), text, dialect)
            except CannotRead:
                if not dialect or path.suffix in NAMES["configurations"]:
                    raise
                if programs.is_log(text):
                    return programs.read_log(text, dialect)
                return read_script(text, path=path, given={}, dialect=dialect)
        if path.suffix in _LOGS or programs.is_log(text):
            return programs.read_log(text, dialect)
        if _STEPS.search(text):
            told = "has steps of a training without the arguments that stand at the start of a log"
            raise CannotRead(
                f"{told}. Next: meshtune import RUN.log, of the whole log; or import the script that started it"
            )
    if path.suffix == ".py":
        told = "is a program in Python, and no script of a shell"
        raise CannotRead(f"{told}. Next: meshtune import --command 'torchrun {path.name} ARGUMENTS'")
    if not small:
        raise CannotRead(f"has more than {SLOW_LIMITS.max_bytes:,} bytes, and is no log of a program that is known")
    return read_script(text, path=path, given=given, number=number, dialect=dialect)


def read_script(text: str, *, path: Path, given: Mapping[str, str], number: int = 0, dialect: str = "") -> Imported:
    """What a launch script says, and the head of it that is the scheduler's. Raises CannotRead."""
    launch = find_launch(text, path=path, given=given, number=number)
    return with_job(programs.read_start(launch, dialect), text, launch)


def read_command(text: str, *, given: Mapping[str, str], number: int = 0, dialect: str = "") -> Imported:
    """What one command line says, as if typed in the present folder; no shell runs. Raises CannotRead."""
    return read_script(text, path=Path("command"), given=given, number=number, dialect=dialect)
