"""Plans as people write them: a mapping with names of fields, long or short, or a text such as `Plan.key`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.knobs import NO_KNOBS, KnobSet
from meshtune.search_spaces.plan import AXES

# The fields by the names that keys and tables have for them.
SHORT_NAMES: Mapping[str, str] = {axis.label.rstrip("-"): axis.name for axis in AXES}
# The words of a key for enumerations and truth values.
_WORDS = {axis.key.format(value): (axis.name, value) for axis in AXES for value in axis.members}
_WORDS |= {axis.key: (axis.name, not axis.default) for axis in AXES if axis.kind is bool}
_NUMBER = re.compile(rf"({'|'.join(axis.label for axis in AXES if axis.kind is int)})([0-9]+)")


def in_full(given: object, knobs: KnobSet = NO_KNOBS) -> Any:
    """The document of a plan with the names of its fields, and values of knobs under `knobs`; what is neither a mapping
    nor a text comes back.

    given: a mapping of fields, with knobs beside them; or a text of `name=value` and words of `Plan.key`, between spaces
    or commas. Raises InvalidValue for a field that stands twice.
    """
    if not isinstance(given, (str, Mapping)):
        return given
    fields: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    written: dict[str, str] = {}
    for word, name, value in _entries(given, knobs):
        own = name if name in knobs.names else SHORT_NAMES.get(name, name)
        if own in written:
            raise InvalidValue([Problem(own, f"stands twice: {written[own]} and {word}")])
        written[own] = word
        (beside if own in knobs.names else fields)[own] = value
    inside = fields.get("knobs", {})
    return {**fields, "knobs": {**beside, **inside}} if beside and isinstance(inside, Mapping) else fields


def _entries(given: str | Mapping[str, Any], knobs: KnobSet) -> Iterator[tuple[str, str, Any]]:
    """Each as it is written, its name, and its value."""
    if isinstance(given, Mapping):
        yield from ((name, name, value) for name, value in given.items())
        return
    for word in (part for text in given.split() for part in _parted(text, knobs)):
        name, _, value = word.partition("=")
        if match := _NUMBER.fullmatch(word):
            yield word, SHORT_NAMES[match[1].rstrip("-")], match[2]
        elif word in _WORDS:
            yield word, *_WORDS[word]
        else:
            yield word, name, knobs.reading(name, value)


def _parted(text: str, knobs: KnobSet) -> list[str]:
    """Parts between commas; a value of a knob may have commas of its own."""
    name, _, value = text.partition("=")
    knob = knobs.named(name)
    whole = knob is not None and knob.position(knobs.reading(name, value)) is not None
    return [text] if whole else [part for part in text.split(",") if part]
