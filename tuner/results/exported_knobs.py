"""Knobs of an exported setting, as a program is told them that people start themselves: by variables, arguments and
keys of its configuration.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshtune.runners.programs.dialects.base import Files
from meshtune.runners.programs.workloads.knobs import arguments, keys, variables
from meshtune.runners.registry import load
from meshtune.runners.untrusted_text import SLOW_LIMITS, read_json
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knob_values import KnobValue
from meshtune.search_spaces.plan import Plan

# The file with the keys that knobs set, by the format; without a file's name before it a key is of this one.
_FILES = {"deepspeed": "ds_config.json", "megatron": "ds_config.json"}
_FLAG = "meshtune.runners.programs.workloads.torchtitan:key_flag"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldKnobs:
    """variables by name, words of a command line, and values by the key of a configuration, as the knobs name it."""

    variables: Mapping[str, str]
    arguments: tuple[str, ...]
    keys: Mapping[str, KnobValue]


def told_to_programs(knobs: Sequence[Knob], plan: Plan) -> ToldKnobs:
    """What a program is told of the plan's knobs; nothing of those at the value that is omitted."""
    return ToldKnobs(variables=variables(knobs, plan), arguments=tuple(arguments(knobs, plan)), keys=keys(knobs, plan))


def tell(format: str, options: Mapping[str, Any], given: ToldKnobs) -> dict[str, Any]:
    """The options of a program, with what knobs add to them."""
    added: dict[str, Any] = {}
    if given.variables and format == "megatron":
        added["env"] = {**options.get("env", {}), **given.variables}
    words = [shlex.join(given.arguments)] if given.arguments and format in ("megatron", "torchtitan") else []
    if format == "torchtitan":
        words += [load(_FLAG)(_key(key), value) for key, value in given.keys.items()]
    if words:
        added["arguments"] = [*options.get("arguments", ()), *words]
    return {**options, **added}


def with_keys(format: str, files: Files, given: ToldKnobs) -> Files:
    """The files, with the keys that knobs set in a JSON configuration."""
    name = _FILES.get(format, "")
    if not given.keys or name not in files:
        return files
    document: Any = read_json(files[name], SLOW_LIMITS)
    for key, value in given.keys.items():
        *sections, last = _key(key).split(".")
        inner = document
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return {**files, name: json.dumps(document, indent=2) + "\n"}


def _key(key: str) -> str:
    """The dotted key, without the file's name before it."""
    return key.rpartition(":")[2]
