"""Runs a user's own launcher with stand-ins for the programs that start a training, and reads what it called:
the one training that it starts, by the dialect of the program."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Any

from meshtune.runners.base import RunnerUnavailable
from meshtune.runners.command import call
from meshtune.runners.processes.gang import JOB_MARK, kill_marked
from meshtune.runners.programs.capture import stand_in
from meshtune.runners.programs.capture.stand_in import BARRED, CONTAINERS
from meshtune.runners.programs.dialects.base import CannotRead, Imported, Question
from meshtune.runners.programs.dialects.bash.launch import find_call
from meshtune.runners.programs.dialects.call import Call, choose, launch_of, starts_a_program
from meshtune.runners.programs.dialects.job_script import slurm_variables, with_devices, with_job
from meshtune.runners.programs.dialects.programs import read_start
from meshtune.runners.untrusted_text import SLOW_LIMITS, Limits, UnreadableText, read_file, read_json
from meshtune.search_spaces.checks import names_in

# Environments of modules take seconds to load.
TIME_LIMIT_S = 120.0
# Of a loop over many trainings no more are read.
_MAX_RECORDS = 200
_RECORD = Limits(max_bytes=10_000_000)
# A binary by its path passes by the stand-ins; a Python program does not.
_BY_PATH = re.compile(r"(?<![\w.~])[\w.~${}-]*/[\w./${}-]*\b(srun|mpirun|mpiexec|sbatch|salloc|qsub)(?=[\s\"']|$)")
_COMMENT = re.compile(r"(?m)^\s*#.*$")
# The end of `source "$(dirname "$0")/env/cluster.sh"`.
_SOURCED = re.compile(r"(?m)(?:^|[;&]|\bthen)\s*(?:source|\.)\s+\S.*?([\w./-]+)[\"']?\s*(?:$|[;&|])")
_USED = re.compile(r"\$(?:\{([A-Z][A-Z0-9_]+)\}|([A-Z][A-Z0-9_]+))")
# What bash itself sets, and awk.
_SET_ELSEWHERE = names_in("PWD OLDPWD SHLVL RANDOM SECONDS HOSTNAME UID EUID LINENO OPTARG REPLY NF NR")
_LAST_CHARACTERS = 300
# A command that failed by itself, such as a `cd` or `source` that finds nothing here.
_BASH_ERROR = re.compile(r"(?m)^(\S{1,200}: line [0-9]+: .{1,300})$")
_MAX_ERRORS = 10
_MAX_TOLD = 20
_ANSWER = "capture where the training would run, or write it into the spec"


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """script: the path of the script that the command runs, "" unknown; text: of it. calls: in order. unset: variables
    that the script reads and nothing sets, which are empty words to bash. notes: what people should look at. failed:
    what bash complained of. end: how the launcher ended, in one line."""

    script: str
    text: str
    calls: tuple[Call, ...]
    unset: tuple[str, ...]
    notes: tuple[str, ...]
    failed: tuple[str, ...]
    end: str


def capture(command: Sequence[str], given: Mapping[str, str], time_limit_s: float = TIME_LIMIT_S) -> Captured:
    """Run a launcher here. given: variables for it, before those of its `#SBATCH` lines. Raises CannotRead."""
    texts = _scripts(command)
    for path, text in texts.items():
        if found := _BY_PATH.search(_COMMENT.sub("", text)):
            raise CannotRead(
                f"{path} starts {found[0]}, which a stand-in for {found[1]} cannot answer; nothing was run. "
                f"Write {found[1]} without its folder in a copy of the script, and capture that"
            )
    directives = slurm_variables("\n".join(texts.values()))
    with TemporaryDirectory(prefix="meshtune-capture-") as name:
        folder = Path(name).resolve()
        before = {**os.environ, **directives, **given}
        environment = _prepared(folder, before)
        try:
            answer = call((*_without_network(), *command), time_limit_s=time_limit_s, environment=environment, stdin="")
            last = " ".join((answer.err or answer.out).split())[-_LAST_CHARACTERS:]
            end = f"ended with status {answer.code}" + (f": {last}" if answer.code and last else "")
            notes = [f"the launcher {end}"] if answer.code else []
            failed = _BASH_ERROR.findall(answer.err)[:_MAX_ERRORS]
        except RunnerUnavailable as error:
            end = str(error)
            notes, failed = [f"the launcher was ended: {error}"], []
        finally:
            kill_marked(environment[JOB_MARK])
        calls = tuple(_calls(folder))
    if not _without_network():
        notes.append("the launcher had the network: this kernel lets no namespace be made")
    known = before.keys() | {name for found in calls for name in found.environment}
    unset = sorted({name for script, text in texts.items() for name in _unset(text, _sourced(script, text), known)})
    path, text = next(iter(texts.items()), ("", ""))
    return Captured(
        script=path, text=text, calls=calls, unset=tuple(unset), notes=tuple(notes), failed=tuple(failed), end=end
    )


def _scripts(command: Sequence[str]) -> dict[str, str]:
    """The text of the first file that the command names, by its path; a program that is no text is left out."""
    for word in command:
        if Path(word).is_file():
            try:
                return {word: read_file(Path(word), SLOW_LIMITS.max_bytes)}
            except (UnreadableText, OSError):
                continue
    return {}


def _prepared(folder: Path, before: Mapping[str, str]) -> dict[str, str]:
    """The stand-ins in the folder, and the launcher's environment that leads to them."""
    shims = folder / "bin"
    shims.mkdir()
    (folder / "records").mkdir()
    program = folder / "sitecustomize.py"
    shutil.copyfile(stand_in.__file__, program)
    for tool in stand_in.TOOLS:
        shim = shims / tool
        # -E: our own Python asks nobody.
        shim.write_text(f'#!/bin/sh\nexec {quote(sys.executable)} -SE {quote(str(program))} {tool} "$@"\n')
        shim.chmod(0o755)
    return {
        **before,
        **{f"BASH_FUNC_{tool}%%": stand_in.bash_function(str(shims), tool) for tool in stand_in.TOOLS},
        "PATH": os.pathsep.join((str(shims), before.get("PATH", os.defpath))),
        "PYTHONPATH": os.pathsep.join((str(folder), *filter(None, (before.get("PYTHONPATH"),)))),
        stand_in.FOLDER: str(folder),
        JOB_MARK: folder.name,
    }


@cache
def _without_network() -> tuple[str, ...]:
    """What runs a command in a network of its own, which leads nowhere; nothing where that is not allowed."""
    ways = (("unshare", "--net"), ("unshare", "--user", "--map-current-user", "--net"))
    for way in ways:
        try:
            if call((*way, "true"), time_limit_s=5).code == 0:
                return way
        except RunnerUnavailable:
            continue
    return ()


def _calls(folder: Path) -> list[Call]:
    found = []
    for path in sorted((folder / "records").glob("*.json"))[:_MAX_RECORDS]:
        record: Any = read_json(path.read_text(encoding="utf-8", errors="replace"), _RECORD)
        environment = {
            name: _clean(value, folder)
            for name, value in record["environment"].items()
            if not name.startswith(("BASH_FUNC_", stand_in.FOLDER)) and name not in ("_", JOB_MARK)
        }
        # A launcher that leads nowhere else has the variable that we made.
        if not environment.get("PYTHONPATH"):
            environment.pop("PYTHONPATH", None)
        found.append(
            Call(
                tool=record["tool"],
                words=tuple(record["words"]),
                cwd=record["cwd"],
                environment=environment,
                changed={
                    name: value
                    for name, value in environment.items()
                    if os.environ.get(name) != value and name not in ("PWD", "OLDPWD", "SHLVL")
                },
                under=tuple((tool, tuple(options)) for tool, options in record["under"]),
                files=record["files"],
            )
        )
    return found


def _clean(value: str, folder: Path) -> str:
    """A value without our folders."""
    if str(folder) not in value:
        return value
    return os.pathsep.join(part for part in value.split(os.pathsep) if Path(part) not in (folder, folder / "bin"))


def _sourced(script: str, text: str) -> str:
    """The texts of the files that a script names in `source` or `.`, where they lie beside it or here."""
    found = []
    for name in _SOURCED.findall(_COMMENT.sub("", text)):
        for folder in (Path(script).parent, Path()):
            with suppress(OSError, UnreadableText):
                found.append(read_file(folder / name.lstrip("/"), SLOW_LIMITS.max_bytes))
    return "\n".join(found)


def _unset(text: str, sourced: str, known: set[str]) -> set[str]:
    """The upper-case variables that a script reads, and that neither it, nor what it sources, nor its environment
    sets."""
    code = _COMMENT.sub("", text)
    setting = code + "\n" + sourced
    used = {braced or bare for braced, bare in _USED.findall(code)} - known - _SET_ELSEWHERE
    return {
        name
        for name in used
        if not re.search(rf"\$\{{{name}:?=|\b{name}(?:\[[^]]*\])?\+?=|\bfor\s+{name}\b|\bread\b.*\b{name}\b", setting)
        and not name.startswith(("BASH", "FUNCNAME"))
    }


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
    imported = with_job(read_start(launch, dialect), captured.text, launch)
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
