"""Collects every broken rule of a value before refusing it, so that a user corrects a document once.

A problem is a path inside the value ("heads", "device.memory_bytes", "" for the whole) and a sentence with the
numbers. `InvalidValue` is a ValueError, so Pydantic reports it at the edges; `problems` keeps the parts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from math import isfinite
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

if sys.version_info >= (3, 11):
    from enum import StrEnum as StrEnum
else:  # jobs run in their site's own environment, from Python 3.10 on
    from enum import Enum

    class StrEnum(str, Enum):
        """Members are texts, and print as such."""

        __str__ = str.__str__
        __format__ = str.__format__


# The largest size or degree: products of two fit numpy's int64, and each fits a database's INTEGER.
MAX_WHOLE = 2**31 - 1
# Names that a hint has.
MAX_LISTED = 40
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


class UserError(Exception):
    """Its message tells a user what to mend."""


class Mistaken(UserError, ValueError):
    """Something with mistakes. `problems` has all of them, each with its path."""

    between: ClassVar[str]

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.between.join(map(str, self.problems)))

    def __reduce__(self) -> tuple[Any, ...]:  # by default copies are made from the message
        return type(self), (self.problems,)


class InvalidValue(Mistaken):
    """A value that breaks its own rules. Trying again with the same value fails again."""

    between = "; "


@contextmanager
def raising(kind: Callable[[str], Exception], words: str, *caught: type[Exception]) -> Iterator[None]:
    """Raise such an error in place of those that are caught, with `words` before what they say."""
    try:
        yield
    except caught as error:
        raise kind(f"{words}: {error}" if words else str(error)) from error


@contextmanager
def problems_as(
    kind: Callable[[list[Problem]], Exception], prefix: str = "", of: type[Mistaken] = InvalidValue
) -> Iterator[None]:
    """Raise such an error with the problems of one of the kind `of`, seen from the document that has the value at
    `prefix`."""
    try:
        yield
    except of as error:
        raise kind([problem.under(prefix) for problem in error.problems]) from None


@dataclass(frozen=True, slots=True)
class Limit:
    """What a number may be, in the annotation of its field. above, below: not the number itself."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    whole: bool = False

    def unfit(self, value: float) -> str:
        """Why it is not that; empty where it is."""
        if self.whole and (not isinstance(value, int) or isinstance(value, bool)):
            return f"must be an integer, not {value!r}"
        if not self.whole and not isfinite(value):
            return f"must be finite, not {value}"
        if self.low is not None and value < self.low:
            return f"must be at least {self.low}, not {value}"
        if self.above is not None and value <= self.above:
            return f"must be {'positive' if self.above == 0 else f'above {self.above}'}, not {value}"
        if self.high is not None and value > self.high:
            return f"must be at most {self.high}, not {value}"
        if self.below is not None and value >= self.below:
            return f"must be below {self.below}, not {value}"
        return ""

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        """The same in the schema of a document (Pydantic asks for it by this name)."""
        words = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        limits = zip(words, (self.low, self.high, self.above, self.below), strict=True)
        return {**handler(core), **{word: limit for word, limit in limits if limit is not None}}


Whole = Annotated[int, Limit(1, MAX_WHOLE, whole=True)]
Count = Annotated[int, Limit(0, MAX_WHOLE, whole=True)]
Some = Annotated[int, Limit(1, whole=True)]
Natural = Annotated[int, Limit(0, whole=True)]
Positive = Annotated[float, Limit(above=0)]
Amount = Annotated[float, Limit(0)]
Share = Annotated[float, Limit(0, below=1)]
Chance = Annotated[float, Limit(0, 1)]


@dataclass(frozen=True, slots=True)
class Listed:
    """A list that names at least one value, and none twice; in a document one value may stand for the list of it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """Pydantic asks for it by this name."""
        function = {"type": "no-info", "function": lambda one: (one,) if isinstance(one, (str, int, float)) else one}
        return {"type": "function-before", "function": function, "schema": handler(source)}

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        listed = {**handler(core), "minItems": 1, "uniqueItems": True}
        return {"anyOf": [listed, listed["items"]]} if handler.mode == "validation" else listed


@dataclass(frozen=True, slots=True)
class Text:
    """What a text may be: what fits `pattern`, of `least` to `most` characters. words: the same for people."""

    pattern: str
    words: str
    least: int | None = None
    most: int | None = None

    def unfit(self, value: str) -> str:
        """As `Limit` does."""
        match = re.search(self.pattern, value)
        # "$" alone fits before a last line break too.
        whole = match is not None and (not self.pattern.endswith("$") or match.end() == len(value))
        if self.most is not None and len(value) > self.most:
            return f"must {self.words}, not {len(value)}"
        # Halves of surrogate pairs fit no file and no database.
        return "" if whole and not re.search(r"[\ud800-\udfff]", value) else f"must {self.words}, not {value!r}"

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        """As `Limit` does."""
        limits = {"pattern": self.pattern, "minLength": self.least, "maxLength": self.most}
        return {**handler(core), **{word: limit for word, limit in limits.items() if limit not in (None, "")}}


Name = Annotated[str, Text(r"\S", "have 1 to 100 characters", 1, 100)]
_NAME_WORDS = "be 1 to 64 letters, digits, '.', '_', '@' and '-', with a letter or digit first"
Project = Annotated[str, Text(f"^({NAME.pattern})?$", _NAME_WORDS)]


@cache
def limits_of(kind: Any) -> Mapping[str, Limit | Text]:
    """The limits that the annotations of a dataclass declare, by field; of each value where a field holds several."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: limit for name, hint in hints.items() if (limit := _limit_in(hint)) is not None}


def _limit_in(hint: Any) -> Limit | Text | None:
    parts = (*getattr(hint, "__metadata__", ()), *map(_limit_in, get_args(hint)))
    return next((part for part in parts if isinstance(part, (Limit, Text))), None)


def unfit_name(text: str) -> str:
    """Why it is none of NAME; empty where it is."""
    if NAME.fullmatch(text):
        return ""
    return f"must {_NAME_WORDS}, not {text!r}"


class Checks:
    """Gathers problems; `done()` raises them all at once."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def limits(self, value: Any) -> bool:
        """Require what the annotations of a dataclass say of its numbers; True where all hold."""
        kind: Any = type(value)
        return all([self._limit(limit, name, getattr(value, name)) for name, limit in limits_of(kind).items()])

    def _limit(self, limit: Limit | Text, path: str, value: Any) -> bool:
        if isinstance(value, Mapping):
            return all([self._limit(limit, f"{path}.{key}", each) for key, each in value.items()])
        if isinstance(value, (tuple, list)):
            return all([self._limit(limit, path, each) for each in value])
        unfit = "" if value is None else limit.unfit(value)
        return self.require(not unfit, path, unfit)

    def require(self, holds: bool, path: str, message: str) -> bool:
        if not holds:
            self._problems.append(Problem(path, message))
        return holds

    def at_least(self, minimum: float, **values: float) -> None:
        for name, value in values.items():
            self.require(value >= minimum, name, f"must be at least {minimum}, not {value}")

    def whole(self, minimum: int, **values: int) -> bool:
        """Require every named value to be an integer from `minimum` to MAX_WHOLE; True when all are."""
        limit = Limit(minimum, MAX_WHOLE, whole=True)
        unfit = {name: limit.unfit(value) for name, value in values.items()}
        return all([self.require(not why, name, why) for name, why in unfit.items()])

    def member(self, kind: type[Member], path: str, value: object) -> Member | None:
        """The member of `kind` that `value` is or names, None when there is no such one."""
        if isinstance(value, str) and value in list(kind):
            return kind(value)
        self.require(False, path, f"must be one of {', '.join(kind)}, not {value!r}")
        return None

    def done(self) -> None:
        if self._problems:
            raise InvalidValue(self._problems)


class Checked:
    """A dataclass that checks itself: the limits of its annotations, then `_check`. Raises InvalidValue."""

    __slots__ = ()

    def __post_init__(self) -> None:
        checks = Checks()
        if checks.limits(self):
            self._check(checks)
        checks.done()

    def _check(self, checks: Checks) -> None:
        """The rules of several fields together, and of what is no number."""


class Closed(Checked):
    """One that is read from a document, where a misspelt key is an error."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


def did_you_mean(word: str, known: Collection[str]) -> str:
    """A hint for an unknown name: the closest known one, else the first that begins so, else the list."""
    names = sorted(known)
    if close := get_close_matches(word, known, n=1) or [name for name in names if word and name.startswith(word)]:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join([*names[:MAX_LISTED], *['...'] * (len(names) > MAX_LISTED)])}"


def names_in(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def listed(values: Iterable[object]) -> str:
    """Values as a message names them."""
    return ", ".join(map(str, values))
