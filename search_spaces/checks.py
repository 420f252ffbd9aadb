"""Collects every broken rule of a value before refusing it, so that a user corrects a document once.

A problem is a path inside the value ("heads", "device.memory_bytes", "" for the whole) and a sentence with the
numbers. `InvalidValue` is a ValueError, so Pydantic reports it at the edges; `problems` keeps the parts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from typing import Any, TypeVar

if sys.version_info >= (3, 11):
    from enum import StrEnum as StrEnum
else:  # jobs run in their site's own environment, from Python 3.10 on
    from enum import Enum

    class StrEnum(str, Enum):
        """Members are texts, and print as such."""

        __str__ = str.__str__
        __format__ = str.__format__


# What every value that is read from a document carries as `__pydantic_config__`: a misspelt key is an error.
CLOSED = {"extra": "forbid"}
# The largest size or degree: products of two fit numpy's int64, and each fits a database's INTEGER.
MAX_WHOLE = 2**31 - 1
# Of a token or a project: readable in a log and in a table, and never taken for a path or a header.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")

Member = TypeVar("Member", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule: `path` in dotted form, relative to the value that was checked."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message

    def under(self, prefix: str) -> Problem:
        """The same problem, seen from the document that holds the value at `prefix`."""
        return Problem(".".join(part for part in (prefix, self.path) if part), self.message)


class InvalidValue(ValueError):
    """A value that breaks its own rules. Trying again with the same value fails again."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[Any, ...]:  # by default copies are made from the message
        return type(self), (self.problems,)


def unfit_name(text: str) -> str:
    """Why it is none of NAME; empty where it is."""
    if NAME.fullmatch(text):
        return ""
    return f"must be 1 to 64 letters, digits, '.', '_', '@' and '-', with a letter or digit first, not {text!r}"


class Checks:
    """Gathers problems; `done()` raises them all at once."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def require(self, holds: bool, path: str, message: str) -> bool:
        if not holds:
            self._problems.append(Problem(path, message))
        return holds

    def at_least(self, minimum: float, **values: float) -> None:
        for name, value in values.items():
            self.require(value >= minimum, name, f"must be at least {minimum}, not {value}")

    def positive(self, **values: float | None) -> None:
        """Require every named value that is known to be positive and finite."""
        for name, value in values.items():
            self.require(value is None or 0 < value < inf, name, f"must be positive and finite, not {value}")

    def whole(self, minimum: int, **values: int) -> bool:
        """Require every named value to be an integer from `minimum` to MAX_WHOLE; True when all are."""
        return all([self._whole(minimum, name, value) for name, value in values.items()])

    def _whole(self, minimum: int, name: str, value: object) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return self.require(False, name, f"must be an integer, not {value!r}")
        if value > MAX_WHOLE:
            return self.require(False, name, f"must be at most {MAX_WHOLE}, not {value}")
        return self.require(value >= minimum, name, f"must be at least {minimum}, not {value}")

    def member(self, kind: type[Member], path: str, value: object) -> Member | None:
        """The member of `kind` that `value` is or names, None when there is no such one."""
        if isinstance(value, str) and value in list(kind):
            return kind(value)
        self.require(False, path, f"must be one of {', '.join(kind)}, not {value!r}")
        return None

    def done(self) -> None:
        if self._problems:
            raise InvalidValue(self._problems)


def did_you_mean(word: str, known: Collection[str]) -> str:
    """A hint for an unknown name: the closest known one, else the whole list."""
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"


def listed(values: Iterable[object]) -> str:
    """Values as a message names them."""
    return ", ".join(map(str, values))
