"""Reads NeMo 2 recipes, NeMo 1 and Megatron-Bridge configurations in YAML, and starts and logs that name them.

A trial runs one by a file, in which the plan's keys stand for the user's. Recipes in Python are not read: each program
prints its own as YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from meshtune.runners.programs.config_program import ConfigProgram
from meshtune.runners.programs.dialects.base import CannotRead, Imported, Launch
from meshtune.runners.programs.dialects.config_import import (
    at,
    holds,
    literal,
    mapping_in,
    program_words,
    read_mapping,
    text_of,
)
from meshtune.runners.programs.dialects.omegaconf import overridden
from meshtune.runners.programs.nemo.special import TABLE
from meshtune.runners.untrusted_text import option_value

_FILE: str = TABLE.lists["command"]["config_file"]
_PROGRAMS = {name: ConfigProgram("meshtune.runners.programs.nemo", name) for name in TABLE.lists["variants"]}
_HYDRA: Mapping[str, Mapping[str, str]] = TABLE.lists["hydra"]
_WORDS: Mapping[str, str] = TABLE.lists["program"]
_NAMED: list[str] = _WORDS["file_options"].split()
# Of a configuration in a log of Megatron-Bridge; its lines are indented, an item, or a key of the first level.
_START = re.compile(r"_target_: megatron\.bridge\.[\w.]*ConfigContainer\s*$")
_LINE = re.compile(r"\s|- |[A-Za-z_]\w*:(?:\s|$)")
_INSTEAD = ", or the file: `meshtune import FILE.yaml`"


def is_program(launch: Launch) -> bool:
    """A start of NeMo 1's script, or of a script with a recipe or a YAML file of one of the others."""
    if PurePosixPath(launch.script).name in _HYDRA["scripts"]:
        return True
    if TABLE.words("program.recipe_options").intersection(launch.words) and "run_recipe" in launch.script:
        return True
    named = option_value(launch.words, *_NAMED) or ""
    return named in launch.files and is_file(named, launch.files[named])


def is_file(name: str, text: str) -> bool:
    return _is_recipe(name, text) or bool(_kind(mapping_in(name, text)))


def is_log(text: str) -> bool:
    """Megatron-Bridge prints its whole configuration as YAML (training/config.py, print_yaml)."""
    return any(_START.match(line) for line in text.splitlines())


def read_file_text(name: str, text: str) -> Imported:
    """Raises CannotRead."""
    if _is_recipe(name, text):
        raise CannotRead(f"{name} is a recipe in Python, which is not read. {_WORDS['printed']}")
    return _imported(read_mapping(name, text), None, name)


def read_log(text: str) -> Imported:
    """The last configuration that the log has. Raises CannotRead."""
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if _START.match(line)]
    if not starts:
        raise CannotRead("a log of Megatron-Bridge without its configuration; import the YAML file instead")
    taken = lines[starts[-1] :]
    end = next((index for index, line in enumerate(taken) if line and not _LINE.match(line)), len(taken))
    return _imported(read_mapping("the log", "\n".join(taken[:end]) + "\n"), None, "the log")


def read_launch(launch: Launch) -> Imported:
    """Raises CannotRead."""
    script = PurePosixPath(launch.script).name
    if script in _HYDRA["scripts"]:
        return _hydra(launch, _HYDRA["scripts"][script])
    named = option_value(launch.words, *_NAMED)
    if not named:
        raise CannotRead(f"{launch.place}: {script} starts a recipe in Python, which is not read. {_WORDS['printed']}")
    config = read_mapping(named, text_of(launch, named, "the start reads", _INSTEAD))
    laid = [word for word in launch.words if "=" in word and not word.startswith("-") and not word.endswith(named)]
    own, unknown = overridden(config, laid, launch.place)
    kept = [
        word.removesuffix(named) + f"{{directory}}/{_FILE}" if word.endswith(named) else literal(word)
        for word in launch.words
        if word not in laid
    ]
    return _imported(own, launch, launch.place, [*kept, *unknown])


def _hydra(launch: Launch, default: str) -> Imported:
    """NeMo 1: a configuration by folder and name, and words that hydra lays over it. Raises CannotRead."""
    said = {"path": "conf", "name": default}
    values = []
    words = iter(launch.words)
    for word in words:
        name, joined, value = word.partition("=")
        if name in _HYDRA["options"]:
            said[_HYDRA["options"][name]] = value if joined else next(words, "")
        else:
            values.append(word)
    # hydra counts a relative folder from the script's.
    folder = PurePosixPath(launch.script).parent / said["path"]
    file = str(folder / (said["name"] if said["name"].endswith((".yaml", ".yml")) else f"{said['name']}.yaml"))
    own = read_mapping(file, text_of(launch, file, "the start reads", _INSTEAD))
    config, unknown = overridden(own, values, launch.place)
    start = ["--config-path", "{directory}", "--config-name", PurePosixPath(_FILE).stem]
    return _imported(config, launch, launch.place, [*start, *unknown])


def _imported(own: dict[str, Any], launch: Launch | None, place: str, words: list[str] | None = None) -> Imported:
    """words: behind the program's name. Raises CannotRead."""
    kind = _kind(own)
    if "variant" in kind:
        start = [*program_words(launch), *(words or ())] if launch else []
        return _PROGRAMS[kind["variant"]].imported(own, launch, place=place, words=start)
    kind = {"refused": _WORDS["other"], "instead": _WORDS["instead"], **kind}
    raise CannotRead(f"{place}: {kind['refused']}. {kind['instead']}")


def _kind(config: Mapping[str, Any]) -> Mapping[str, str]:
    """The first kind of file that it is; empty for none."""
    for kind in TABLE.lists["kind"]:
        marks = kind["by"].items()
        found = [
            match
            for key, pattern in marks
            if holds(config, key) and (match := re.search(pattern, str(at(config, key))))
        ]
        if len(found) == len(marks):
            return {key: value.format(*found[-1].groups()) for key, value in kind.items() if key != "by"}
    return {}


def _is_recipe(name: str, text: str) -> bool:
    return name.endswith(".py") and bool(re.search(_WORDS["recipe"], text))
