"""Conditions of knobs: comparisons, `in`, and / or / not over plan fields, sizes and other knobs; nothing is executed.

    condition  = both ("or" both)*
    both       = single ("and" single)*
    single     = "not" single | "(" condition ")" | operand (comparison | "in" list)?
    comparison = ("==" | "!=" | "<" | "<=" | ">" | ">=") operand
    list       = "[" literal ("," literal)* "]"
    operand    = a name, a number, true, false, or a word (bare where it is no name, else in quotes)

A comparison with an inactive knob is false, `!=` too. Conditions are evaluated on columns of plans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import numpy as np

from meshtune.search_spaces.checks import InvalidValue, Problem, did_you_mean
from meshtune.search_spaces.columns import BoolColumn, FloatColumn
from meshtune.search_spaces.knob_values import is_number, same_value, word

MAX_CHARACTERS = 500
MAX_DEPTH = 20
_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?![\w.])|(?P<name>[A-Za-z_0-9][\w.-]*)"
    r"|(?P<quoted>'[^']*'|\"[^\"]*\")|(?P<sign>==|!=|<=|>=|<|>|\(|\)|\[|\]|,))"
)
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_KEYWORDS = ("and", "or", "not", "in", "true", "false")


@dataclass(frozen=True, slots=True)
class Domain:
    """The values of one name. values: all of them, as columns hold them by code from `first` on; None: any number, and
    columns hold it itself. A code below `first` is an inactive knob's."""

    values: tuple[Any, ...] | None = None
    first: int = 0


# The columns of the names in a condition, as `Domain` says.
ColumnsByName = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Condition:
    """names: the names in it, each once, in the order of reading."""

    text: str
    names: tuple[str, ...]
    _holds: Callable[[ColumnsByName], Any]

    def holds(self, column: ColumnsByName, count: int) -> BoolColumn:
        """Row by row. column: of each name, `count` long."""
        return np.broadcast_to(np.asarray(self._holds(column), dtype=np.bool_), (count,))


def parse_condition(text: str, domains: Mapping[str, Domain]) -> Condition:
    """Raises InvalidValue, whose message has the place in the text."""
    return _Parser(text, domains).parse()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class _Name:
    name: str
    at: int


@dataclass(frozen=True, slots=True)
class _Literal:
    value: Any
    at: int


class _Parser:
    def __init__(self, text: str, domains: Mapping[str, Domain]) -> None:
        if len(text) > MAX_CHARACTERS:
            raise InvalidValue([Problem("", f"has {len(text)} characters, more than {MAX_CHARACTERS}")])
        self._text, self._domains = text, domains
        self._tokens = self._split()
        self._next, self._depth = 0, 0
        self._names: dict[str, None] = {}

    def parse(self) -> Condition:
        holds = self._joined()
        if (left := self._tokens[self._next]).kind != "end":
            raise self._wrong(left.at, f"{left.text!r} is not expected here")
        return Condition(self._text, tuple(self._names), holds)

    def _split(self) -> list[_Token]:
        tokens, at, text = list[_Token](), 0, self._text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                here = at + len(text[at:]) - len(text[at:].lstrip())
                raise self._wrong(here, f"{text[here]!r} is not understood")
            tokens.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
            at = match.end()
        return [*tokens, _Token("end", "the end", len(text))]

    def _wrong(self, at: int, message: str) -> InvalidValue:
        return InvalidValue([Problem("", f"at character {at + 1} of {self._text!r}: {message}")])

    def _take(self, *texts: str) -> _Token | None:
        token = self._tokens[self._next]
        if token.kind in ("name", "sign") and token.text in texts:
            self._next += 1
            return token
        return None

    def _joined(self, joint: str = "or") -> Callable[[ColumnsByName], Any]:
        def part() -> Callable[[ColumnsByName], Any]:
            return self._joined("and") if joint == "or" else self._single()

        parts, join = [part()], np.logical_or if joint == "or" else np.logical_and
        while self._take(joint):
            parts.append(part())
        return parts[0] if len(parts) == 1 else lambda column: join.reduce([one(column) for one in parts])

    def _single(self) -> Callable[[ColumnsByName], Any]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong(self._tokens[self._next].at, f"is nested deeper than {MAX_DEPTH}")
        try:
            if self._take("not"):
                inner = self._single()
                return lambda column: np.logical_not(inner(column))
            if self._take("("):
                inner = self._joined()
                self._expect(")")
                return inner
            return self._comparison()
        finally:
            self._depth -= 1

    def _expect(self, text: str) -> None:
        if not self._take(text):
            token = self._tokens[self._next]
            raise self._wrong(token.at, f"{text!r} is expected, not {token.text!r}")

    def _comparison(self) -> Callable[[ColumnsByName], Any]:
        left = self._operand()
        if self._take("in"):
            if not isinstance(left, _Name):
                raise self._unknown(left)
            self._expect("[")
            listed = [self._literal()]
            while self._take(","):
                listed.append(self._literal())
            self._expect("]")
            return self._among(left, listed)
        sign = self._take(*_COMPARISONS)
        if sign is None:
            return self._alone(left)
        right = self._operand()
        if isinstance(left, _Name) and isinstance(right, _Name):
            return self._of_two(left, sign, right)
        if isinstance(left, _Name):
            assert isinstance(right, _Literal)
            return self._with_literal(left, sign.text, right)
        if isinstance(right, _Name):
            return self._with_literal(right, _MIRRORED.get(sign.text, sign.text), left)
        raise self._unknown(left)

    def _operand(self) -> _Name | _Literal:
        token = self._tokens[self._next]
        if token.kind == "name" and token.text in self._domains:
            self._next += 1
            self._names[token.text] = None
            return _Name(token.text, token.at)
        return self._literal()

    def _literal(self) -> _Literal:
        token = self._tokens[self._next]
        self._next += 1
        match token.kind:
            case "number":
                return _Literal(int(token.text) if re.fullmatch(r"-?\d+", token.text) else float(token.text), token.at)
            case "quoted":
                return _Literal(token.text[1:-1], token.at)
            case "name" if token.text in ("true", "false"):
                return _Literal(token.text == "true", token.at)
            case "name" if token.text not in _KEYWORDS:
                return _Literal(token.text, token.at)
        raise self._wrong(token.at, f"a name or a value is expected, not {token.text!r}")

    def _unknown(self, left: _Literal) -> InvalidValue:
        name = word(left.value)
        hint = did_you_mean(name, self._domains)
        return self._wrong(left.at, f"{name!r} is no field of a plan and no knob; {hint}")

    def _alone(self, left: _Name | _Literal) -> Callable[[ColumnsByName], Any]:
        """A truth value by itself."""
        if isinstance(left, _Literal):
            raise self._unknown(left)
        if (values := self._domains[left.name].values) is None or not any(value is True for value in values):
            raise self._wrong(left.at, f"{left.name} is neither true nor false: compare it")
        return self._with_literal(left, "==", _Literal(True, left.at))

    def _with_literal(self, left: _Name, sign: str, right: _Literal) -> Callable[[ColumnsByName], Any]:
        if sign in ("==", "!="):
            return self._among(left, [right], others=sign == "!=")
        if not is_number(right.value):
            raise self._wrong(right.at, f"{left.name} {sign} {word(right.value)}: only numbers have an order")
        compare, limit, numbers = _COMPARISONS[sign], right.value, self._as_numbers(left)
        return lambda column: compare(numbers(column), limit)

    def _among(self, left: _Name, listed: Sequence[_Literal], others: bool = False) -> Callable[[ColumnsByName], Any]:
        domain, name = self._domains[left.name], left.name
        if domain.values is None:
            for one in listed:
                if not is_number(one.value):
                    raise self._wrong(one.at, f"{name} is a number, not {word(one.value)!r}")
            numbers = [one.value for one in listed]
            return lambda column: np.isin(column(name), numbers, invert=others)
        places = set[int]()
        for one in listed:
            at = [at for at, value in enumerate(domain.values) if same_value(value, one.value)]
            if not at:
                known = ", ".join(map(word, domain.values))
                raise self._wrong(one.at, f"{word(one.value)!r} is no value of {name}, which has {known}")
            places.update(at)
        every = range(len(domain.values))
        codes = [domain.first + at for at in every if (at in places) is not others]
        return lambda column: np.isin(column(name), codes)

    def _of_two(self, left: _Name, sign: _Token, right: _Name) -> Callable[[ColumnsByName], Any]:
        compare, one, other = _COMPARISONS[sign.text], self._as_numbers(left), self._as_numbers(right)

        def holds(column: ColumnsByName) -> Any:
            first, second = one(column), other(column)
            return compare(first, second) & ~np.isnan(first) & ~np.isnan(second)

        return holds

    def _as_numbers(self, left: _Name) -> Callable[[ColumnsByName], FloatColumn]:
        """The values as numbers, NaN for words and truth values."""
        name, domain = left.name, self._domains[left.name]
        if domain.values is None:
            return lambda column: np.asarray(column(name), dtype=np.float64)
        numbers = [float(value) if is_number(value) else np.nan for value in domain.values]
        if numbers and all(np.isnan(numbers)):
            raise self._wrong(left.at, f"{name} is no number: it can be compared by == and != alone")
        # Codes below the first one are an inactive knob's.
        table = np.array([np.nan] * domain.first + numbers)
        return lambda column: table[np.asarray(column(name), dtype=np.int64)]
