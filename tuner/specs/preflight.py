"""What jobs need and this machine has not: files and programs of a spec, looked up before anything is queued."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from glob import escape, iglob
from pathlib import Path, PurePath

from meshtune.runners.processes.job_user import RUN_AS
from meshtune.runners.processes.shell_modules import CALLS_MODULE, MODULE_FILES
from meshtune.runners.programs.capture.stand_in import CONTAINERS
from meshtune.runners.registry import EXTERNAL, SIMULATED, create_workload
from meshtune.runners.untrusted_text import UnreadableText, read_words
from meshtune.search_spaces.checks import Problem
from meshtune.tuner.campaign.spec import Backend

# Lines of a setup that make no files; those of them that read one.
_MAKES_NONE = re.compile(r"\s*((module|ml|conda|source|\.|export|unset|ulimit|umask|set)\s[^;&|`(>]*|#.*)?")
_SOURCES = re.compile(r"\s*(?:source|\.)\s+(\S*/\S*)\s*")
_SHELL = re.compile(r"[;&|<>`()\n]")
# What may stand before a program in a shell's text, and programs whose script is looked up where they start.
_SET = re.compile(r"exec$|\w+=")
_STARTERS = re.compile(r"python[\d.]*|\{python\}|torchrun|deepspeed|accelerate|bash|sh|")
# Those whose jobs see our disk.
_SEEN = ("local", "slurm", "pbs", "ray")
_DATA = re.compile(r"--?[\w.-]*(data|vocab|merge|tokenizer|corpus)(?![\w.-]*(cache|save|out))")
# Key, path or program, and what for, as `os.access` has it: F_OK of data, which may be named by how their files begin.
_Need = tuple[str, str, int]


def preflight(workload: Backend, runner: Backend, home: Path | None) -> Iterator[tuple[Problem, bool]]:
    """What is missing, and whether jobs surely miss it: they see the same disk, and nothing of theirs makes it before.
    home: where they have their folders; None: on another machine."""
    if workload.kind == "command" and home is not None and not workload.options.get("command"):
        yield Problem("workload.command", "must name a program: without one plans are predicted alone"), True
    if runner.kind in (SIMULATED, EXTERNAL):
        return
    parts, around = {"runner": runner.options, "workload": workload.options}, runner.options
    setup = [(f"{part}.setup", line) for part, options in parts.items() for line in options.get("setup", ())]
    prefix, image = _words(around.get("prefix", "")), around.get("container_image", "")
    needs = [(key, os.path.expanduser(file[1]), os.R_OK) for key, line in setup if (file := _SOURCES.fullmatch(line))]
    needs += [("runner.prefix", word, os.R_OK) for word in prefix if word.endswith((".sif", ".sqsh"))]
    needs += [("runner.prefix", word, os.X_OK) for word in prefix[:1] if "/" in word]
    needs += [("runner.container_image", image, os.R_OK)] if image.startswith("/") else []
    calls = runner.kind in ("slurm", "pbs") and [key for key, line in setup if CALLS_MODULE.search(line)]
    named = around.get("login_shell") or any(_SOURCES.fullmatch(line) for _, line in setup)
    if calls and not named and not any(os.path.isfile(os.path.expandvars(file)) for file in MODULE_FILES):
        told = "no file that makes `module` a command is found here: source the site's, or set login_shell"
        yield Problem(calls[0], told), False
    if runner.kind == "kubernetes" or image or {PurePath(word).name for word in prefix} & {*CONTAINERS}:
        yield Problem("workload", "not checked: what jobs find in their container"), False
    else:
        needs += [("runner.python", around.get("python", ""), os.X_OK), *_of_program(workload, not prefix)]
    sure = home is not None and runner.kind in _SEEN and not os.environ.get(RUN_AS)
    sure = sure and all(_MAKES_NONE.fullmatch(line) for _, line in setup)
    local, folder = runner.kind == "local", (home or Path("/")) / "JOB"
    given = {folder / name for part in ("files", "configs") for name in workload.options.get(part, ())}
    for key, text, way in needs:
        path = folder / text
        if not text or path in given or re.search("[{$]", text) or os.access(path, way):
            continue
        if way == os.X_OK and "/" not in text:
            if not shutil.which(text):  # a shell's text may begin with what the shell alone knows
                yield Problem(key, f"{text} is no program here"), sure and local and key[-1].isdigit()
        elif way != os.F_OK or not any(iglob(f"{escape(text)}*")):
            seen = way != os.F_OK and (local or _disk(path) == _disk(folder))
            where = f"{text} in the job's own folder, where it starts," if folder in path.parents else path
            told = "cannot be read or started" if os.path.exists(path) else "is not there"
            yield Problem(key, f"{where} {told}"), sure and seen


def _disk(path: Path) -> tuple[object, ...]:
    """Where the last folder on the way that is there lies, and a link that leads nowhere here would lead."""
    real = Path(os.path.realpath(path))
    return real.parts[:2], next(parent for parent in real.parents if os.path.exists(parent)).stat().st_dev


def _of_program(workload: Backend, known: bool) -> Iterator[_Need]:
    """known: it starts where the job does, so its script is looked up from there."""
    own, script = workload.options, create_workload(workload.kind, workload.options).program
    named = "working_directory" if "working_directory" in own else "directory"
    folder = str(Path(own[named]).absolute()) if own.get(named) else ""
    yield f"workload.{named}", folder, os.X_OK
    command, option = own.get("command"), ""
    plain = not (isinstance(command, str) and _SHELL.search(command))
    words = [(f"workload.command.{at}", str(word)) for at, word in enumerate(_words(command or ()))]
    if isinstance(command, str):
        words = [("workload.command", os.path.expanduser(word)) for _, word in words if not _SET.match(word)]
    if command is None:
        words = [(f"workload.{name}", own.get(name, "")) for name in ("python", "script")]
        words += [("workload.arguments", word) for text in own.get("arguments", ()) for word in _words(text)]
    for at, (key, word) in enumerate(words):
        option = word if word.startswith("-") else option
        known = known and plain and not re.fullmatch(r"-\w*c", word)
        if at == 0 and plain:
            yield key, os.path.join(folder, word) if "/" in word else word, os.X_OK
            known = known and bool(_STARTERS.fullmatch(PurePath(word).name))
        elif known and word.endswith((".py", ".sh")) and PurePath(word).name == script:
            yield key, os.path.join(folder, word), os.R_OK
            script = ""
        elif (value := word.rpartition("=")[2]).startswith("/") and _DATA.match(option):
            yield key, value, os.F_OK


def _words(command: Sequence[str] | str) -> Sequence[str]:
    with suppress(UnreadableText):  # the shell refuses it too
        return read_words(command, comments=True) if isinstance(command, str) else command
    return ()
