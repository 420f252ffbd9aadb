"""bash's whole-number arithmetic, of 64 bits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_MAX_SUM = 1_000
_WORDS = re.compile(r"\w+|[<>=!]=|&&|\|\||\S")
# What begins with 0 is to base 8 or 16, which nobody writes of purpose.
_INTEGER = re.compile(r"-?[1-9][0-9]{0,18}|0")


def _quotient(left: int, right: int) -> int:
    """bash rounds towards zero."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


# From the loosest; the rest of a division has the sign of the left.
_LEVELS: tuple[Mapping[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: a != 0 or b != 0},
    {"&&": lambda a, b: a != 0 and b != 0},
    {"==": lambda a, b: a == b, "!=": lambda a, b: a != b},
    {"<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b},
    {"+": lambda a, b: a + b, "-": lambda a, b: a - b},
    {"*": lambda a, b: a * b, "/": _quotient, "%": lambda a, b: a - _quotient(a, b) * b},
)


def calculated(expression: str, values: Mapping[str, object]) -> int | None:
    """The value of an expression, None where it is not known or not plain. values: of variables."""
    words = _WORDS.findall(expression[:_MAX_SUM])[::-1]
    try:
        value = _level(words, values, 0)
    except (ValueError, IndexError, ZeroDivisionError, RecursionError):
        return None
    return None if words or len(expression) > _MAX_SUM else value


def _level(words: list[str], values: Mapping[str, object], level: int) -> int:
    """Of words in reverse, of which what is read is taken away."""
    if level == len(_LEVELS):
        return _factor(words, values)
    found = _level(words, values, level + 1)
    while words and (apply := _LEVELS[level].get(words[-1])):
        words.pop()
        found = _wrapped(apply(found, _level(words, values, level + 1)))
    return found


def _factor(words: list[str], values: Mapping[str, object]) -> int:
    word = words.pop()
    if word == "-":
        return _wrapped(-_factor(words, values))
    if word == "!":
        return not _factor(words, values)
    if word == "(":
        inner = _level(words, values, 0)
        if words.pop() != ")":
            raise ValueError("a bracket is never closed")
        return inner
    known = values.get(word, word) if word.isidentifier() else word
    if not isinstance(known, str) or not _INTEGER.fullmatch(known):
        raise ValueError(f"{word} is no known whole number")
    return _wrapped(int(known))


def _wrapped(number: int) -> int:
    """As a machine's 64 bits hold it."""
    return (int(number) + 2**63) % 2**64 - 2**63
