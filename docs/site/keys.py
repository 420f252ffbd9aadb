"""Tables of a document's keys, from the fields that they are read into: type and limits from the annotation, the
meaning from the comment above a field, which may hold for those below it too. A page asks for one by
`<!-- made: keys of MODULE:CLASS PREFIX -->`, see hooks.py."""

from __future__ import annotations

import inspect
import types
import typing
from dataclasses import MISSING, Field, dataclass, fields
from enum import StrEnum
from typing import Any

from meshtune.runners.documents import field_comments
from meshtune.runners.registry import SCHEDULERS, load
from meshtune.search_spaces.checks import MAX_WHOLE, Limit
from meshtune.tuner.campaign.objective import Objective

_TYPES = {int: "integer", float: "number", str: "text", bool: "true, false"}


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    type: str
    default: str
    meaning: str


def schedulers() -> str:
    """The page of every scheduler's options."""
    parts = ["# Options of runners and scripts", "Beside `kind` in `runner`, or by `meshtune export --option`."]
    for name, row in SCHEDULERS.items():
        if fields(load(row.options)):
            parts += [f"## {name}", row.words[:1].upper() + row.words[1:], table(row.options)]
    return "\n\n".join(filter(None, parts)) + "\n"


def objectives() -> str:
    better = {True: "smaller", False: "larger"}
    rows = [f"| `{one}` | {one.unit} | {better[one.smaller_is_better]} | {one.words} |" for one in Objective]
    return "\n".join(["| name | unit | better | meaning |", "|---|---|---|---|", *rows])


def table(dotted: str, prefix: str = "") -> str:
    """The keys of a class, "module:Class". prefix: before each name."""
    rows = []
    for group in groups(load(dotted)):
        names, types, defaults = zip(*((f"`{prefix}{key.name}`", key.type, key.default) for key in group), strict=True)
        cells = [", ".join(dict.fromkeys(texts)) for texts in (names, types, defaults)]
        rows.append(f"| {' | '.join(cells)} | {group[0].meaning} |")
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])


def groups(kind: type) -> list[list[Key]]:
    """The keys that share a meaning, those of base classes last."""
    hints = typing.get_type_hints(kind, include_extras=True)
    own = {one.name: one for one in fields(kind)}
    found: list[list[Key]] = []
    for name, comment in field_comments(kind):
        if name not in own:
            continue
        key = Key(name, _type(hints[name]), _default(own.pop(name)), _begun_small(comment.removesuffix(".")))
        if comment or not found:
            found.append([key])
        else:
            found[-1].append(key)
    return found


def _begun_small(text: str) -> str:
    """As cells of tables begin, but for words with capitals of their own."""
    first = text.partition(" ")[0]
    return text if first[1:] != first[1:].lower() else text[:1].lower() + text[1:]


def _type(hint: Any) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return ", ".join([_type(inner[0]), *(_limit(one) for one in inner[1:] if isinstance(one, Limit))])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(one) for one in inner if one is not type(None))
    if origin is tuple:
        return f"list of {_type(inner[0])}"
    if inspect.isclass(hint) and issubclass(hint, StrEnum):
        return ", ".join(f"`{one}`" for one in hint)
    return _TYPES.get(hint, "mapping")


def _limit(limit: Limit) -> str:
    most = None if limit.high == MAX_WHOLE else limit.high
    words = {"at least": limit.low, "above": limit.above, "at most": most, "below": limit.below}
    return " and ".join(f"{word} {value:g}" for word, value in words.items() if value is not None)


def _default(one: Field[Any]) -> str:
    value = one.default if one.default_factory is MISSING else one.default_factory()
    if value is MISSING:
        return "required"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float, StrEnum)) or (value and isinstance(value, str)):
        return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
    return "see below" if value else "none"
