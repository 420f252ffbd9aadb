"""Finds what is no plain JSON value in a document, so that all that is stored can be read again, everywhere, exactly.

YAML makes dates, sets, NaN and cycles of its own; JSON bodies may hold numbers and characters that databases refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite

from meshtune.search_spaces.checks import Problem

# RFC 8259, section 6: up to here every reader of JSON keeps a whole number exactly.
LARGEST_INTEGER = 2**53
# Far beyond any spec; YAML's aliases can make a short text endless.
DEEPEST = 20
MOST_VALUES = 10_000


class Unbounded(Exception):
    """A document that is too deep or too large to be looked at any further; `problem` says where."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


def find_foreign(document: object) -> list[Problem]:
    """Every value that is not plain, with its path; empty for a plain document. Raises Unbounded."""
    found: list[Problem] = []
    for count, (path, value, depth) in enumerate(_walk("", document, 0), start=1):
        wrong = _wrong(value)
        if wrong:
            found.append(Problem(path, wrong))
        if depth > DEEPEST:
            raise Unbounded(Problem(path, f"is nested deeper than {DEEPEST} levels"))
        if count > MOST_VALUES:
            raise Unbounded(Problem(path, f"is one too many: a spec holds at most {MOST_VALUES} values"))
    return found


def _walk(path: str, value: object, depth: int) -> Iterator[tuple[str, object, int]]:
    yield path, value, depth
    inside: list[tuple[object, object]] = []
    if isinstance(value, Mapping):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = list(enumerate(value))
    for key, inner in inside:
        yield from _walk(f"{path}.{key}" if path else str(key), inner, depth + 1)


def _wrong(value: object) -> str:
    """Why one value is not plain, without looking into it; empty for a plain one."""
    if isinstance(value, Mapping):
        odd = [key for key in value if not isinstance(key, str) or _wrong(key)]
        return f"a key must be plain text, not {odd[0]!r}" if odd else ""
    if isinstance(value, str):
        odd_letter = any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value)
        return f"holds characters that cannot be stored: {value[:60]!r}" if odd_letter else ""
    if isinstance(value, int):
        exact = abs(value) <= LARGEST_INTEGER
        return "" if exact else f"must be at most 2^53, not a number of {value.bit_length()} bits"
    if isinstance(value, float):
        return "" if isfinite(value) else f"must be a finite number, not {value}"
    if value is None or isinstance(value, list):
        return ""
    return f"must be text, a number, true or false, a list or a mapping, not the {type(value).__name__} {value}"
