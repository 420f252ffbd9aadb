"""The programs whose starts, logs and configuration files can be read, and which of them wrote a text.

Each module, or its PROGRAM, offers what makes sense for its program: `is_program(Launch)` with `read_launch`,
`is_log(str)` with `read_log`, `is_file(name, str)` with `read_file_text`. They are asked in the order of the table; the
first that recognises answers, and its refusal counts. A folder of `runners/programs` with a table of a file's keys and
no reader is a program (`config_program`). Here is added what holds for every program: what the source itself left open,
and the minutes that a program takes to start."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.resources import files
from itertools import pairwise
from typing import Any

from meshtune.runners.programs.config_program import ConfigProgram
from meshtune.runners.programs.dialects.base import CannotRead, Imported, Launch, Question
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known, is_placeholder
from meshtune.runners.programs.dialects.call import launcher_of, with_prefix
from meshtune.runners.programs.dialects.config_import import read_mapping
from meshtune.runners.programs.plain import reader as plain
from meshtune.runners.programs.table import PROGRAMS, programs, table_of
from meshtune.search_spaces.checks import did_you_mean

# Programs that start others come before those that they start. name, as for `--format` -> module.
DIALECTS: Mapping[str, str] = {
    # The folders that are programs by their table alone, in order of their names.
    **{
        name.replace("_", "-"): f"{PROGRAMS}.{name}"
        for name in programs()
        if "command" in table_of(f"{PROGRAMS}.{name}").lists
        and not files(PROGRAMS).joinpath(name, "reader.py").is_file()
    },
    "gpt-neox": f"{PROGRAMS}.neox.reader",
    "nemo": f"{PROGRAMS}.nemo.reader",
    "torchtitan": f"{PROGRAMS}.torchtitan.reader",
    "transformers": f"{PROGRAMS}.transformers.reader",
    "megatron": f"{PROGRAMS}.megatron.reader",
    "deepspeed": f"{PROGRAMS}.deepspeed.reader",
    "plain": f"{PROGRAMS}.plain.reader",
}
_KNOWN = ", ".join(name for name in DIALECTS if name != "plain")
# A program that takes its process groups from another launcher is not what it looks like by its arguments.
_NOT_STARTED_BY: Mapping[str, tuple[str, ...]] = {
    "accelerate": ("megatron", "torchtitan"),
    "composer": ("megatron",),
}
# Seconds before the first step of large programs on a cluster, give or take a factor of two: imports from a shared
# disk, a checkpoint, groups of NCCL, kernels that are built.
START_S = 300
_LOG = (
    "Next: meshtune import RUN.log, of a run's log with the arguments that the program prints at its start; "
    "meshtune import --pid N, of a live process"
)
_NEXT = f"{_LOG}; or write a spec with `kind: command` (docs/how-to/workloads.md)"


def read_start(launch: Launch, dialect: str = "") -> Imported:
    """What a start of a program says. dialect: of the table, "" by what recognises it. Raises CannotRead."""
    for module in _modules(dialect, "read_launch", launcher_of(launch.launcher)):
        if dialect or module.is_program(launch):
            launch = plain.through_launcher(launch) if module is plain else launch
            found = with_prefix(_read(module.read_launch, launch), launch)
            return _completed(_with_placeholders(found, launch), launch, None if module is plain else START_S)
    words = as_written(" ".join(map(shlex.quote, launch.words)))[:200]
    raise CannotRead(f"{launch.place}: no program is named. Its arguments: {words or 'none'}. {_NEXT}")


def _with_placeholders(imported: Imported, launch: Launch) -> Imported:
    """With a question for each placeholder that stays in the workload and that no reader has asked about."""
    workload, asked = imported.workload, " ".join(question.text for question in imported.questions)
    stays = str(workload)
    texts = [("workload.script" if "script" in workload else "", launch.script)]
    texts += [(f"workload.env.{name}", value) for name, value in launch.env.items()]
    texts += [("", text) for text in (*launch.words, *launch.setup)]
    flags = {text: flag for flag, text in pairwise(launch.words) if flag.startswith("-")}
    flags |= {text: text.partition("=")[0] for text in launch.words if text.startswith("-")}
    questions = [
        Question(path, f"{launch.place}: `{text}` is a placeholder: write there what it is to be")
        for path, text in texts
        if is_known(text)
        and is_placeholder(text, flags.get(text, ""))
        and text in stays
        and (text == launch.script or text.rpartition("=")[2] not in asked)
    ]
    return replace(imported, questions=(*imported.questions, *dict.fromkeys(questions)))


def read_log(text: str, dialect: str = "") -> Imported:
    """What a log says at its start. Raises CannotRead."""
    for module in _modules(dialect, "read_log"):
        if dialect or module.is_log(text):
            return _completed(_read(module.read_log, text))
    raise CannotRead(f"holds no list of arguments of the programs that are known ({_KNOWN}). {_NEXT}")


def read_file(name: str, text: str, dialect: str = "") -> Imported:
    """What a configuration file says. Raises CannotRead."""
    for module in _modules(dialect, "read_file_text"):
        if dialect or module.is_file(name, text):
            return _completed(_read(module.read_file_text, name, text))
    if name.endswith((".yaml", ".yml", ".json")):
        # What makes it no file of keys is the cause.
        _read(read_mapping, name, text)
    raise CannotRead(
        f"is no configuration of a program that is known ({_KNOWN}). If a launch script names it: "
        f"meshtune import SCRIPT, which reads both. {_NEXT}"
    )


def is_log(text: str) -> bool:
    """Whether some program's list of arguments stands in the text."""
    return any(module.is_log(text) for module in _modules("", "read_log"))


def is_file(name: str, text: str) -> bool:
    """Whether some program knows the text as its configuration."""
    return any(module.is_file(name, text) for module in _modules("", "read_file_text"))


def _modules(dialect: str, offers: str, launcher: str = "") -> Iterator[Any]:
    if dialect and dialect not in DIALECTS:
        raise CannotRead(f"no dialect is called {dialect!r}; {did_you_mean(dialect, DIALECTS)}")
    for name in (dialect,) if dialect else DIALECTS:
        if not dialect and name in _NOT_STARTED_BY.get(launcher, ()):
            continue
        path = DIALECTS[name]
        found = import_module(path) if path.endswith("reader") else ConfigProgram(path)
        module = getattr(found, "PROGRAM", found)
        if hasattr(module, offers):
            yield module
        elif dialect:
            what = {"read_launch": "start", "read_log": "log", "read_file_text": "configuration file"}[offers]
            raise CannotRead(f"of {dialect} no {what} can be read")


def _read(reader: Callable[..., Any], *given: Any) -> Any:
    """What a dialect reads; its refusal names what to do next. Raises CannotRead."""
    try:
        return reader(*given)
    except CannotRead as error:
        told = str(error)
        raise CannotRead(told if "meshtune " in told or "Next:" in told else f"{told}. {_NEXT}") from None


def _completed(imported: Imported, launch: Launch | None = None, start_s: int | None = START_S) -> Imported:
    """With the minutes of a start, and with what the source left open. start_s: None where the start may be short."""
    told = f"trial.start_s {start_s}: a start takes 2 to 10 minutes on a cluster; quote and time limit count with it"
    asked, noted = (launch.questions, launch.notes) if launch else ((), ())
    # Nodes and devices are asked once, and not where the program's own words say them.
    cluster = [question for question in asked if question.path == "cluster.nodes"]
    known = imported.nodes is not None and imported.devices_per_node is not None
    dropped = cluster if known else [each for each in imported.questions if cluster and each.path == "cluster.nodes"]
    return replace(
        imported,
        nodes=imported.nodes if known or not launch or launch.nodes or not cluster else None,
        trial={"start_s": start_s} if start_s else {},
        questions=tuple(dict.fromkeys(each for each in (*asked, *imported.questions) if each not in dropped)),
        notes=tuple(dict.fromkeys((*noted, *imported.notes, *([told] if start_s else [])))),
    )
