"""The knobs that a launch gets unasked: those of its program's catalogs that leave what is computed as it is, up to
rounding, can do no harm, and whose library and device are here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from meshtune.runners.programs.dialects.base import Imported
from meshtune.runners.programs.dialects.config_import import at
from meshtune.runners.programs.launch_words import laid_over, shell_words
from meshtune.runners.programs.workloads.knobs import names_of
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.knob import Knob, KnobKind
from meshtune.search_spaces.knob_values import KnobValue, is_number, readings, same_value, word
from meshtune.search_spaces.presets import knob_catalogs, ready_values
from meshtune.tuner.specs.knobs import CATALOGS, KNOBS, read_knob


def with_open_knobs(document: Mapping[str, Any], imported: Imported, kind: DeviceKind) -> dict[str, Any]:
    """The spec's document with such knobs. What the launch says of one is its default, and is told by it alone."""
    workload, opened, asked = dict(document["workload"]), dict[str, Any](), list[str]()
    for catalog in imported.catalogs:
        for name, (ready, needs) in ready_values(catalog).items():
            knob = read_knob(name, knob_catalogs()[catalog][name])
            said = _said(knob, workload, imported.given)
            present = knob.default if said is None else _present(knob, said)
            # Of numbers the launch may have any.
            values = [*ready] if present in ready or knob.kind is not KnobKind.NUMERIC else [*ready, present]
            here = all(kind is DeviceKind.CUDA if need == "cuda" else find_spec(need) for need in needs)
            if here and present in values and not _needed(knob) - opened.keys():
                opened[name] = {"values": values, "default": present, "numerics": "same"}
                asked.append(f"{catalog}.{name.removeprefix(f'{catalog}_')}")
                if said is not None or knob.omit not in values:
                    opened[name]["omit"] = None
                if said is not None:
                    workload = _without(workload, knob)
    return {**document, "workload": workload, **({CATALOGS: asked, KNOBS: opened} if opened else {})}


def _needed(knob: Knob) -> set[str]:
    """The knobs that its condition names."""
    every = {name for catalog in knob_catalogs().values() for name in catalog}
    return every.intersection(re.findall(r"\w+", knob.when))


def _setting(knob: Knob) -> str:
    """As the words of a launch have it."""
    return names_of(knob.argument)[0] if knob.argument else f"--{knob.config}"


def _base(workload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The user's configuration file, where trials have one of their own."""
    configs = workload.get("configs", {})
    return next(iter(configs.values()))["base"] if len(configs) == 1 else workload.get("config", {})


def _said(knob: Knob, workload: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """What the launch says of it; None: nothing."""
    said = given.get(_setting(knob))
    return at(_base(workload), knob.config) if said is None and knob.config else said


def _present(knob: Knob, said: Any) -> KnobValue | None:
    """The value that it has by the launch; None for one that no knob can have."""
    text = word(said) if isinstance(said, bool | int | float | str) else ""
    found = [value for value in knob.values for each in readings(text.lower()) if same_value(value, each)]
    numbers = [each for each in readings(text) if knob.kind is KnobKind.NUMERIC and is_number(each)]
    return next(iter([*found, *numbers]), None)


def _without(workload: Mapping[str, Any], knob: Knob) -> dict[str, Any]:
    """The workload whose command says nothing of it. What its file says counts less than what it is told."""
    before, line, last = str(workload.get("command", "")).rpartition("\n")
    words = shell_words(last)
    changed = before + line + " ".join(laid_over(words, {_setting(knob): None})) if words else ""
    return {**workload, **({"command": changed} if changed else {})}
