"""What jobs need and this machine has not: files and programs of a spec, looked up before anything is queued."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from glob import escape, iglob
from pathlib import Path, PurePath

from meshtune.runners.programs.capture.stand_in import CONTAINERS
from meshtune.runners.registry import EXTERNAL, SIMULATED, create_workload
from meshtune.runners.untrusted_text import UnreadableText, read_words
from meshtune.search_spaces.checks import Problem
from meshtune.tuner.campaign.spec import Backend

# Lines of a setup that make no files; those of them that read one.
_MAKES_NONE = re.compile(r"\s*((module|ml|conda|source|\.|export|unset|ulimit|umask|set)\s[^;&|`(>]*|#.*)?")
_SOURCES = re.compile(r"\s*(?:source|\.)\s+(\S*/\S*)\s*")
_SHELL = re.compile(r"[;&|<>`()\n]")
_DATA = re.compile(r"--?[\w.-]*(data|vocab|merge|tokenizer|corpus)(?![\w.-]*(cache|save|out))")
# What may stand before a program in a shell's text.
_SET = re.compile(r"exec$|\w+=")
_SCRIPTS = (".py", ".sh", ".bash")
# Key, path or program, and what it is needed for as `os.access` has it. Data may be named by what their files begin
# with, and are told of by F_OK, which is never sure.
_Need = tuple[str, str, int]


def preflight(workload: Backend, runner: Backend, home: Path | None) -> Iterator[tuple[Problem, bool]]:
    """What is missing, and whether jobs surely miss it: they see the same disk, and nothing of theirs makes it before.
    home: where they have their folders; None: on another machine."""
    if runner.kind in (SIMULATED, EXTERNAL):
        return
    own, around = workload.options, runner.options
    setup = [*around.get("setup", ()), *own.get("setup", ())]
    sure = home is not None and all(map(_MAKES_NONE.fullmatch, setup))
    prefix, image = _words(around.get("prefix", "")), around.get("container_image", "")
    needs: list[_Need] = [("runner.prefix", word, os.R_OK) for word in prefix if word.endswith((".sif", ".sqsh"))]
    needs += [("runner.container_image", image, os.R_OK)] if image.startswith("/") else []
    if runner.kind == "kubernetes" or image or {PurePath(word).name for word in prefix} & {*CONTAINERS}:
        yield Problem("workload", "not checked: what jobs find in their container"), False
    else:
        needs += [("runner.python", around.get("python", ""), os.X_OK), *_of_program(workload)]
    for key, lines in (("runner.setup", around.get("setup", ())), ("workload.setup", own.get("setup", ()))):
        found = filter(None, map(_SOURCES.fullmatch, lines))
        needs += [(key, os.path.expanduser(file[1]), os.R_OK) for file in found]
    folder = (home or Path("/")) / "JOB"
    given = {folder / name for part in ("files", "configs") for name in own.get(part, ())}
    for key, text, way in needs:
        path = folder / text
        if not text or path in given or re.search("[{$]", text) or os.access(path, way):
            continue
        if way == os.X_OK and "/" not in text:
            if not shutil.which(text):
                named = key != "workload.command"  # else a shell may know it
                yield Problem(key, f"{text} is no program here"), sure and named and runner.kind == "local"
        elif way != os.F_OK or not any(iglob(f"{escape(text)}*")):
            told = "cannot be read or started" if os.path.exists(path) else "is not there"
            where = f"{text} in the job's own folder, where it starts," if folder in path.parents else path
            seen = runner.kind == "local" or path.parts[:2] == folder.parts[:2]
            yield Problem(key, f"{where} {told}"), sure and seen and way != os.F_OK


def _of_program(workload: Backend) -> Iterator[_Need]:
    own, script = workload.options, create_workload(workload.kind, workload.options).program
    folder = own.get("working_directory") or own.get("directory") or ""
    if folder:
        folder = str(Path(folder).absolute())
        yield f"workload.{'working_directory' if 'working_directory' in own else 'directory'}", folder, os.X_OK
    command = own.get("command", ())
    words = [(f"workload.command.{at}", str(word)) for at, word in enumerate(_words(command))]
    plain = True
    if isinstance(command, str):
        plain = not _SHELL.search(command)
        words = [("workload.command", os.path.expanduser(word)) for _, word in words if not _SET.match(word)]
    if "command" not in own:
        words = [(f"workload.{name}", own.get(name, "")) for name in ("python", "script")]
        words += [("workload.arguments", word) for text in own.get("arguments", ()) for word in _words(text)]
    option = ""
    for at, (key, word) in enumerate(words):
        option = word if word.startswith("-") else option
        value = word.rpartition("=")[2]
        if at == 0 and plain:
            yield key, os.path.join(folder, word) if "/" in word else word, os.X_OK
        elif word.endswith(_SCRIPTS) and PurePath(word).name == script and (plain or word.startswith("/")):
            yield key, os.path.join(folder, word), os.R_OK if plain else os.F_OK
        elif value.startswith("/") and _DATA.match(option):
            yield key, value, os.F_OK


def _words(command: Sequence[str] | str) -> Sequence[str]:
    with suppress(UnreadableText):  # the shell refuses it too
        return read_words(command, comments=True) if isinstance(command, str) else command
    return ()
