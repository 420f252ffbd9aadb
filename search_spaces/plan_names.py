"""Plans as people write them: a mapping with names of fields, long or short, or a text such as `Plan.key`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.knobs import NO_KNOBS, KnobSet
from meshtune.search_spaces.plan import AXES

# The fields by the names that keys and tables have for them.
SHORT_NAMES: Mapping[str, str] = {re.sub(r"^no|-?{}$", "", axis.key) or axis.name: axis.name for axis in AXES}
# The words of a key for enumerations and truth values.
_WORDS: dict[str, Any] = {axis.key.format(value): (axis.name, value) for axis in AXES for value in axis.members}
_WORDS |= {axis.key: (axis.name, not axis.default) for axis in AXES if axis.kind is bool}
_NUMBER = re.compile(rf"({'|'.join(axis.key.removesuffix('{}') for axis in AXES if axis.kind is int)})(-?[0-9]+)")


def in_full(given: object, knobs: KnobSet = NO_KNOBS) -> Any:
    """The document of a plan with the names of its fields, and values of knobs under `knobs`. given: a mapping, with
    knobs beside the fields, or a text of `name=value` and words of `Plan.key`, with spaces or commas between them; what
    is neither comes back. Raises InvalidValue for a field that stands twice."""
    if isinstance(given, str):
        entries = [entry for text in given.split() for entry in _entries(text, knobs)]
    elif isinstance(given, Mapping):
        entries = [*given.items()]
    else:
        return given
    fields, beside = dict[str, Any](), dict[str, Any]()
    for name, value in entries:
        own, place = (name, beside) if name in knobs.names else (SHORT_NAMES.get(name, name), fields)
        if own in place:
            raise InvalidValue([Problem(own, f"stands twice, as {place[own]} and as {value}")])
        place[own] = value
    inside = fields.get("knobs", {})
    return {**fields, "knobs": {**beside, **inside}} if beside and isinstance(inside, Mapping) else fields


def _entries(text: str, knobs: KnobSet) -> Iterator[tuple[str, Any]]:
    name, _, value = text.partition("=")
    known, knob = knobs.reading(name, value), knobs.named(name)
    if match := _NUMBER.fullmatch(text):
        yield SHORT_NAMES[match[1].rstrip("-")], match[2]
    elif text in _WORDS:
        yield _WORDS[text]
    elif "," not in text or (knob is not None and knob.position(known) is not None):  # a value may have commas
        yield name, known
    else:
        yield from (entry for part in text.split(",") if part for entry in _entries(part, knobs))
