"""Reads plain documents (from YAML, JSON, HTTP) into values, and tells every problem at once, with its path.

Pydantic validates our dataclasses as they are; this module words its findings for people."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from meshtune.runners.json_files import shown
from meshtune.search_spaces.checks import InvalidValue, Problem, did_you_mean

Value = TypeVar("Value")
# The message of a problem with a field that has no default and is not there.
MISSING = "is missing"


def read_value(kind: type[Value], document: object) -> Value:
    """The value of a dataclass that a document describes. Raises InvalidValue with every problem found."""
    try:
        value: Value = _adapter(kind).validate_python(document)
    except ValidationError as error:
        found = [problem for entry in error.errors() for problem in _problems(kind, entry)]
        raise InvalidValue([*found, *_problems_beside(kind, document, found)]) from None
    return value


def _problems_beside(kind: type, document: object, found: Sequence[Problem]) -> Iterator[Problem]:
    """Rules of a dataclass are checked once its fields are fit: those that it breaks without the unfit ones, and that
    name none of them."""
    unfit = {problem.path.partition(".")[0] for problem in found}
    if isinstance(document, Mapping) and unfit & document.keys():
        rest = {key: value for key, value in document.items() if key not in unfit}
        try:
            read_value(kind, rest)
        except InvalidValue as error:
            others = (problem for problem in error.problems if problem.path.partition(".")[0] in rest)
            yield from (problem for problem in others if unfit.isdisjoint(re.findall(r"\w+", problem.message)))


def plain(value: Any) -> Any:
    """A value as plain JSON types; `read_value` gives it back."""
    return _adapter(type(value)).dump_python(value, mode="json")


def json_of(value: object) -> bytes:
    """The same as JSON."""
    return _adapter(type(value)).dump_json(value)


def walk(path: str, value: object, depth: int) -> Iterator[tuple[str, Any, int]]:
    """Every value in a document, itself first, with its path and depth."""
    yield path, value, depth
    inside = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from walk(f"{path}.{key}" if path else str(key), inner, depth + 1)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`, None among them, inside nested mappings too."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return result


def field_comments(kind: type) -> Iterator[tuple[str, str]]:
    """The fields of a dataclass as its source has them, those of base classes last, each with the comment above it."""
    names = {each.name for each in fields(kind)}
    for base in kind.__mro__:
        if not is_dataclass(base):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # made without a source
            continue
        lines, [body] = source.splitlines(), ast.parse(source).body  # noqa: TID251  # our own
        assert isinstance(body, ast.ClassDef)
        for entry in body.body:
            if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name) and entry.target.id in names:
                first = last = entry.lineno - 1
                while first and lines[first - 1].strip().startswith("#"):
                    first -= 1
                yield entry.target.id, " ".join(line.strip().removeprefix("#").strip() for line in lines[first:last])


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def _problems(kind: type, entry: Mapping[str, Any]) -> Iterable[Problem]:
    path = ".".join(str(part) for part in entry["loc"])
    cause = entry.get("ctx", {}).get("error")
    if isinstance(cause, InvalidValue):
        return [problem.under(path) for problem in cause.problems]
    if entry["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        owner = _type_at(kind, entry["loc"][:-1])
        hint = did_you_mean(str(entry["loc"][-1]), [field.name for field in fields(owner)]) if owner else ""
        return [Problem(path, f"is not a known key; {hint}")]
    if entry["type"] in ("missing", "missing_argument"):
        return [Problem(path, MISSING)]
    if entry["type"].startswith("dataclass") or entry["type"].endswith("_type"):
        wanted = entry["msg"].removeprefix("Input should be ").removeprefix("a valid ").replace("tuple", "a list")
        wanted = "a mapping of keys" if entry["type"].startswith(("dataclass", "dict", "mapping")) else wanted
        return [Problem(path, f"must be {wanted}, not {shown(entry['input'])}")]
    message = entry["msg"][:1].lower() + entry["msg"][1:]
    close = get_close_matches(str(entry["input"]), re.findall(r"'(\w+)'", message), n=1, cutoff=0.8)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return [Problem(path, f"{message.replace('input should be', 'must be')}, not {shown(entry['input'])}{hint}")]


def _type_at(kind: Any, path: Iterable[Any]) -> Any:
    """The dataclass that a path inside a dataclass leads to, None when it leads elsewhere."""
    for part in path:
        if typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
            continue
        if not is_dataclass(kind):
            return None
        kind = typing.get_type_hints(kind).get(str(part))
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            kind = next((inner for inner in typing.get_args(kind) if is_dataclass(inner)), None)
    return kind if is_dataclass(kind) else None
