"""Texts with placeholders: `--tp {tp}` filled in with the values of one trial, and nothing else.

A placeholder is a known name in braces, without format or index; `{{` and `}}` stand for braces. A text that is one
placeholder and no more keeps the value's type, so that a number in a configuration file stays a number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from meshtune.search_spaces.checks import InvalidValue, Problem, did_you_mean


@dataclass(frozen=True, slots=True)
class Template:
    """A text, and the names of the placeholders in it."""

    text: str
    names: frozenset[str]

    def fill(self, values: Mapping[str, Any], quote: Callable[[str], str] = str) -> str:
        """The text with the values in it, each passed through `quote`."""
        return self.text.format_map({name: quote(word(values[name])) for name in self.names})

    def value(self, values: Mapping[str, Any]) -> Any:
        """The value itself where the text is one placeholder; else the text filled in."""
        alone = [name for name in self.names if self.text == f"{{{name}}}"]
        return values[alone[0]] if alone else self.fill(values)


def word(value: Any) -> str:
    """A value as a program is told it: true and false as YAML and JSON have them."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_template(text: str, known: Collection[str], path: str) -> Template:
    """The template that a text is. Raises InvalidValue, under `path`, for what is no placeholder."""
    problems: list[Problem] = []
    try:
        parsed = list(Formatter().parse(text))
    except ValueError as error:
        raise InvalidValue([Problem(path, f"{error}; a brace that stands for itself is written twice")]) from None
    for _, name, form, conversion in parsed:
        if name is not None and name not in known:
            told = f"{{{name}}} is no placeholder; {did_you_mean(name, known)}; a brace of its own is written twice"
            problems.append(Problem(path, told))
        if form or conversion:
            problems.append(Problem(path, f"{{{name}}} takes no format, and has {form or conversion!r}"))
    if problems:
        raise InvalidValue(problems)
    return Template(text, frozenset(name for _, name, _, _ in parsed if name is not None))
