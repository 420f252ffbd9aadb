"""Values of knobs: the settings of a Plan beyond its layout, by name. Jobs import this, on Python 3.10 too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import isfinite
from typing import Any, NoReturn, Union

# As annotations of dataclasses name it; evaluated on Python 3.10, too.
KnobValue = Union[bool, int, float, str]  # noqa: UP007

KNOB_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
# A plan's key lists values between spaces and behind "=".
KNOB_WORD = re.compile(r"[^\s=]{1,60}")
MAX_NUMBER = 2**53


class KnobValues(dict[str, KnobValue]):
    """The values of a plan's active knobs, in the order of their names. It cannot be changed, and has a hash."""

    def __init__(self, values: Mapping[str, KnobValue] | Iterable[tuple[str, KnobValue]] = ()) -> None:
        super().__init__(sorted(dict(values).items()))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))

    def __eq__(self, other: object) -> bool:
        """Of equal values by name; a truth value equals no number."""
        if not isinstance(other, Mapping) or self.keys() != other.keys():
            return False
        return all(same_value(value, other[name]) for name, value in self.items())

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("the values of a plan's knobs cannot be changed")

    __setitem__ = __delitem__ = update = setdefault = pop = popitem = clear = __ior__ = _refuse


def word(value: Any) -> str:
    """A value as a program is told it: true and false as YAML and JSON have them."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def readings(text: str) -> tuple[KnobValue, ...]:
    """The values that a text may stand for: true or false, a number, and the word that it is."""
    values: list[KnobValue] = [text == "true"] if text in ("true", "false") else []
    for kind in (int, float):
        with suppress(ValueError):
            number = kind(text)
            values += [] if unfit_value(number) or number in values else [number]
    return (*values, text)


def unfit_value(value: Any) -> str:
    """Why it is no value of a knob; empty where it is."""
    if isinstance(value, str):
        fit = KNOB_WORD.fullmatch(value) is not None
        return "" if fit else f"must be a word of 1 to 60 characters without spaces and '=', not {value!r}"
    if not isinstance(value, (bool, int, float)):
        return f"must be true, false, a number or a word, not {value!r}"
    if not isfinite(value) or abs(value) > MAX_NUMBER:
        return f"must be a finite number of at most 2^53, not {value!r}"
    return ""


def same_value(one: Any, other: Any) -> bool:
    """True for equal values; a truth value equals no number."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def is_number(value: Any) -> bool:
    """False for a truth value, too."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
