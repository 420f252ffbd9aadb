"""Reads a live process of a training: a rank of it, its launcher, or a shell around that. Looks only (/proc)."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from meshtune.runners.programs.capture.stand_in import named_files
from meshtune.runners.programs.dialects.base import CannotRead, Imported
from meshtune.runners.programs.dialects.call import Call, call_of, launch_of, starts_a_program, trains
from meshtune.runners.programs.dialects.job_script import with_job
from meshtune.runners.programs.dialects.programs import read_start

_PROC = Path("/proc")
# Of a shell's own, which no program reads.
_OF_A_SHELL = ("PWD", "OLDPWD", "SHLVL", "_")


@dataclass(frozen=True, slots=True)
class _Process:
    """words: empty for a thread of the kernel, or a process that has ended."""

    pid: int
    parent: int
    words: tuple[str, ...]


def read_process(pid: int, dialect: str = "") -> Imported:
    """What the training that a process belongs to says. Raises CannotRead."""
    call = process_call(pid)
    launch = launch_of(call, f"process {pid}")
    imported = read_start(launch, dialect)
    if "SLURM_JOB_ID" not in call.environment:
        return imported
    found = with_job(imported, "#SBATCH --job-name=job\n", launch)
    # Slurm says of a job what its script asked for.
    options = ("partition", "account", "qos", "reservation")
    said = {option: value for option in options if (value := call.environment.get(f"SLURM_JOB_{option.upper()}"))}
    return replace(found, runner={**found.runner, **said})


def process_call(pid: int) -> Call:
    """The call of the launcher that started a process, else its own; of a shell, that of a process below it; with the
    variables of a rank where one is there. Raises CannotRead."""
    own = _require(pid)
    above = list(_above(own))
    # Of what is no Python itself, only one that is surely a training.
    python = "python" in "".join(own.words[:1])
    holders = [(process, call) for process in above if (call := _call(process)) and (python or trains(call))]
    started = [(own, call)] if (call := _call(own)) else []
    # Of a shell what it started; of a loader of data the rank above it.
    started = started or [(process, call) for process in _below(own) if (call := _call(process))][:1] or holders[:1]
    if not started:
        told = " ".join(own.words)[:300] or own.words
        raise CannotRead(
            f"process {pid} ({told}) is no Python program and no launcher of one, and neither is what it started, or "
            f"what started it. Next: name a rank's process: `pgrep -f train.py`"
        )
    # The outermost that starts the same program: torchrun above a rank, mpirun above torchrun.
    first = _program(started[0][1])
    holder, call = next((pair for pair in reversed(holders) if _program(pair[1]) == first), started[0])
    environment, cwd = _environment(holder.pid), os.readlink(_PROC / str(holder.pid) / "cwd")
    rank = next((one for one in (own, *_below(holder)) if _environment(one.pid, strict=False).get("WORLD_SIZE")), None)
    if rank is not None:
        environment = {**environment, **_environment(rank.pid, strict=False)}
    changed = {
        name: value
        for name, value in environment.items()
        if os.environ.get(name) != value and name not in _OF_A_SHELL and not name.startswith("BASH_FUNC_")
    }
    files = named_files(list(call.words), cwd)
    return replace(call, cwd=cwd, environment=environment, changed=changed, files=files)


def _call(process: _Process) -> Call | None:
    call = call_of(process.words)
    return call if call is not None and starts_a_program(call) else None


def _program(call: Call) -> tuple[str, ...]:
    """The program and its arguments: of a launcher and of its ranks the same."""
    launch = launch_of(call, "")
    return (launch.script.rpartition("/")[2], *launch.words)


def _require(pid: int) -> _Process:
    """Raises CannotRead."""
    folder = _PROC / str(pid)
    try:
        owner = folder.stat().st_uid
        (folder / "environ").read_bytes()
        return _process(pid)
    except FileNotFoundError:
        raise CannotRead(f"there is no process {pid} on this machine; it has ended, or runs on another node") from None
    except ProcessLookupError:
        raise CannotRead(f"process {pid} has ended") from None
    except PermissionError:
        told = f"process {pid} belongs to {_user(owner)}, and {_user(os.getuid())} may not read its environment"
        raise CannotRead(f"{told}. Next: the same command as {_user(owner)}") from None


def _process(pid: int) -> _Process:
    """Raises OSError."""
    folder = _PROC / str(pid)
    words = folder.joinpath("cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    # The name, in brackets, may hold blanks and brackets itself.
    parent = int(folder.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return _Process(pid, parent, tuple(words) if words != [""] else ())


def _above(process: _Process) -> Iterator[_Process]:
    while process.parent > 1:
        try:
            process = _process(process.parent)
        except OSError:
            return
        yield process


def _below(process: _Process) -> Iterator[_Process]:
    """The processes that it started, those that these started after them."""
    children: dict[int, list[_Process]] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            found = _process(int(folder.name))
        except OSError:
            continue
        children.setdefault(found.parent, []).append(found)
    waiting = [process.pid]
    while waiting:
        for child in children.get(waiting.pop(0), []):
            waiting.append(child.pid)
            yield child


def _environment(pid: int, *, strict: bool = True) -> dict[str, str]:
    """The variables that the process was started with. Raises CannotRead; not strict: none where they are not shown."""
    try:
        content = (_PROC / str(pid) / "environ").read_bytes()
    except OSError as error:
        if strict:
            raise CannotRead(f"process {pid} shows no environment: {error.strerror}") from None
        return {}
    return dict(pair.split("=", 1) for pair in content.decode(errors="replace").split("\0") if "=" in pair)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
