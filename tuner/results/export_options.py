"""The options of export formats, for people who fill in a form: what each means, and what holds where it is left out;
and what the knobs of a setting add to them.

Options that make no difference to a file that is only written, such as how often jobs are looked at, are left out here
and read all the same. Those of a scheduler's script are told by the class that its row names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cache
from typing import Any

from meshtune.runners.programs.dialects.base import Files
from meshtune.runners.registry import UnknownBackend, load, load_part
from meshtune.runners.untrusted_text import SLOW_LIMITS, read_json
from meshtune.search_spaces.knob_values import KnobValue

# What whoever starts it has to say: no default can be right.
_ASKED = frozenset(["script", "steps", "arguments", "image", "partition", "account", "queue", "project", "filesystems"])
_DTYPE = {"dtype": "number format; by default the one that was measured"}
_PROGRAM = {
    "directory": "folder that relative paths are from, and where it starts",
    "python": "the interpreter",
    "env": "variables: {NCCL_DEBUG: INFO}",
}
# By format of a program: the class of the options, and their meanings in the order of a form.
_PROGRAMS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "megatron": (
        "meshtune.runners.programs.megatron.options:MegatronOptions",
        {
            "script": "the program",
            "steps": "steps of the training (--train-iters)",
            "flavour": "whose arguments: Megatron-LM's or Megatron-DeepSpeed's",
            **_DTYPE,
            "arguments": "further arguments, of data and learning rate above all: [--lr 1e-4, --data-path /data/x]",
            "setup": "lines of bash that come first: [module load cuda]",
            **_PROGRAM,
        },
    ),
    "deepspeed": (
        "meshtune.runners.programs.deepspeed.options:DeepSpeedOptions",
        {
            "script": "the program, in place of a module",
            "module": "the program, in place of a script",
            **_DTYPE,
            "arguments": "arguments of the program, with placeholders such as {config}",
            "pipeline_module": "the program builds a PipelineModule",
            **_PROGRAM,
        },
    ),
    "torchtitan": (
        "meshtune.runners.programs.torchtitan.options:TorchtitanOptions",
        {
            "release": "v0.3 has flags; v0.2 and v0.2.0 a TOML file",
            **_DTYPE,
            "arguments": "further flags: [--training.dataset c4]",
        },
    ),
    "accelerate": (
        "meshtune.runners.programs.accelerate.special:AccelerateOptions",
        {"script": "the program", "directory": "folder of the program", **_DTYPE},
    ),
}
# The file with the keys that knobs set, by the format; without a file's name before it a key is of this one.
_FILES = {"deepspeed": "ds_config.json", "megatron": "ds_config.json"}
_FLAG = "meshtune.runners.programs.torchtitan.workload:flag_of"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOption:
    """One option of a format. default: as text, YAML as `--option name=value` takes it; empty where the option then
    says nothing, or the campaign's own value holds. choices: all values, where they are few. asked: whoever starts the
    plan has to say it, such as a path or an account, where the campaign does not."""

    name: str
    meaning: str
    required: bool
    asked: bool
    default: str
    choices: tuple[str, ...]


@cache
def options_of(format: str) -> tuple[ExportOption, ...]:
    """Of one format; none where it takes none, or another package does not tell."""
    if format in _PROGRAMS:
        where, meanings = _PROGRAMS[format]
        options = load(where)
    else:
        try:
            options = load_part(format, "options")
        except UnknownBackend:
            return ()
        meanings = getattr(options, "form", {})
    by_name = {each.name: each for each in fields(options)}
    return tuple(
        ExportOption(
            name=name,
            meaning=meaning,
            required=(field := by_name[name]).default is MISSING and field.default_factory is MISSING,
            asked=name in _ASKED,
            default="" if name in ("dtype", "steps") else _text(field.default),
            choices=tuple(map(str, type(field.default))) if isinstance(field.default, StrEnum) else (),
        )
        for name, meaning in meanings.items()
        if name in by_name
    )


def _text(value: object) -> str:
    if value in (MISSING, None, (), ""):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldKnobs:
    """variables by name, words of a command line, and values by the key of a configuration, as the knobs name it."""

    variables: Mapping[str, str]
    arguments: tuple[str, ...]
    keys: Mapping[str, KnobValue]


def tell(format: str, options: Mapping[str, Any], told: ToldKnobs) -> dict[str, Any]:
    """The options of a program, with what knobs add to them."""
    added: dict[str, Any] = {}
    if told.variables and format == "megatron":
        added["env"] = {**options.get("env", {}), **told.variables}
    words = [shlex.join(told.arguments)] if told.arguments and format in ("megatron", "torchtitan") else []
    if format == "torchtitan":
        words += [load(_FLAG)(_key(key), value) for key, value in told.keys.items()]
    if words:
        added["arguments"] = [*options.get("arguments", ()), *words]
    return {**options, **added}


def with_keys(format: str, files: Files, told: ToldKnobs) -> Files:
    """The files, with the keys that knobs set in a JSON configuration."""
    name = _FILES.get(format, "")
    if not told.keys or name not in files:
        return files
    document: Any = read_json(files[name], SLOW_LIMITS)
    for key, value in told.keys.items():
        *sections, last = _key(key).split(".")
        inner = document
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return {**files, name: json.dumps(document, indent=2) + "\n"}


def _key(key: str) -> str:
    """The dotted key, without the file's name before it."""
    return key.rpartition(":")[2]
