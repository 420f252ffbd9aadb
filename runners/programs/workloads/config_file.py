"""Texts and configuration files of a user's script, with placeholders that the values of a trial fill.

A placeholder is a known name in braces, without format or index; `{{` and `}}` stand for braces. A text that is one
placeholder and no more keeps the value's type, so that a number in a configuration file stays a number. A program that
has its own words for an axis is told them by a choice: `{"{recompute}": {none: null, full: uniform}}`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from string import Formatter
from types import MappingProxyType
from typing import Any

import yaml

from meshtune.runners.programs.dialects.base import (
    overlaid,
    read_arguments,
    read_base,
    render_lines,
    render_toml,
    value_of,
)
from meshtune.runners.programs.dialects.config_import import placed
from meshtune.runners.programs.table import lines
from meshtune.runners.untrusted_text import read_json, read_toml, read_words, read_yaml
from meshtune.search_spaces.checks import Closed, InvalidValue, Problem, did_you_mean
from meshtune.search_spaces.columns import code
from meshtune.search_spaces.knob_values import word
from meshtune.search_spaces.plan import AXES, Axis

# Of one text; to find what a name may have meant takes 0.1 ms.
_MAX_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class Template:
    """A text, and the names of the placeholders in it."""

    text: str
    names: frozenset[str]

    def fill(self, values: Mapping[str, Any], quote: Callable[[str], str] = str) -> str:
        """The text with the values in it, each passed through `quote`; empty for a name without one."""
        return self.text.format_map({name: quote(word(values.get(name, ""))) for name in self.names})

    def value(self, values: Mapping[str, Any]) -> Any:
        """The value itself where the text is one placeholder; else the text filled in."""
        return self.fill(values) if self._alone is None else values[self._alone]

    def has_value(self, values: Mapping[str, Any]) -> bool:
        """False for one placeholder of a name that has no value here."""
        return self._alone is None or self._alone in values

    @property
    def _alone(self) -> str | None:
        """The one placeholder that the text is; None for other texts."""
        return next((name for name in self.names if self.text == f"{{{name}}}"), None)


def unknown_placeholder(name: str, known: Collection[str], path: str) -> Problem:
    told = f"{{{name}}} is no placeholder; {did_you_mean(name, known)}; a brace of its own is written twice"
    return Problem(path, told)


def parse_template(text: str, known: Collection[str], path: str, others: re.Pattern[str] | None = None) -> Template:
    """The template that a text is. others: names that may be known later. Raises InvalidValue, under `path`, for what
    is no placeholder."""
    problems: list[Problem] = []
    try:
        parsed = list(Formatter().parse(text))
    except ValueError as error:
        raise InvalidValue([Problem(path, f"{error}; a brace that stands for itself is written twice")]) from None
    for _, name, form, conversion in parsed:
        if len(problems) >= _MAX_PROBLEMS:
            break
        if name is not None and name not in known and not (others and others.fullmatch(name)):
            problems.append(unknown_placeholder(name, known, path))
        if form or conversion:
            problems.append(Problem(path, f"{{{name}}} takes no format, and has {form or conversion!r}"))
    if problems:
        raise InvalidValue(problems)
    return Template(text, frozenset(name for _, name, _, _ in parsed if name is not None))


@dataclass(frozen=True, slots=True)
class Choice:
    """A program's words for the values of an axis, which runs no other ones. words: by value, as `word` has it."""

    axis: str
    words: Mapping[str, Any]

    def words_for(self, values: Mapping[str, Any], path: str) -> Any:
        """Those of a trial's value. Raises InvalidValue where it has none."""
        text = word(values[self.axis])
        if text not in self.words:
            known = ", ".join(self.words)
            raise InvalidValue([Problem(path, f"{self.axis}({text}) has no word there, which {known} have")])
        return self.words[text]


_AXES = {axis.name: axis for axis in AXES}
_TRUTH = {"false": 0, "true": 1}


def code_of(axis: str, value: str) -> int:
    """The number that columns of plans have for a value, told as a word."""
    return _TRUTH[value] if _AXES[axis].kind is bool else code(axis, value)


def parse_choice(value: Mapping[Any, Any], path: str) -> Choice | None:
    """The choice that a mapping of a placeholder to a mapping is; None for any other mapping. Raises InvalidValue,
    under `path`."""
    key, words = next(iter(value.items()), (None, None))
    if len(value) != 1 or not isinstance(key, str) or not isinstance(words, Mapping):
        return None
    if not (key.startswith("{") and key.endswith("}")):
        return None
    axis = _AXES.get(key[1:-1])
    if axis is None:
        told = f"{key} is no axis of a plan, whose values have words; {did_you_mean(key[1:-1], _AXES)}"
        raise InvalidValue([Problem(path, told)])
    named = {word(each): text for each, text in words.items()}
    wrong = [Problem(path, f"{each!r} is no value of {key}") for each in named if not _is_value(axis, each)]
    if wrong or not named:
        raise InvalidValue(wrong[:_MAX_PROBLEMS] or [Problem(path, f"{key} has no words")])
    return Choice(axis.name, named)


def _is_value(axis: Axis, text: str) -> bool:
    if axis.members:
        return text in [str(member) for member in axis.members]
    if axis.kind is bool:
        return text in _TRUTH
    return text.isascii() and text.isdecimal() and len(text) < 10


class Format(StrEnum):
    """How the file is written. args: a line `--key value` per entry, true as `--key` alone, false as nothing."""

    YAML = "yaml"
    JSON = "json"
    TOML = "toml"
    ARGS = "args"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile(Closed):
    """base: the user's own configuration, here or in the file of that path, which is read when a trial is sent. set:
    what a plan sets, by dotted key; texts are templates, and one that is a single placeholder keeps its type; choices
    are told by `parse_choice`. trial: what trials alone set over it; None takes a key out."""

    format: Format
    base: str | dict[str, Any] = field(default_factory=dict)
    set: dict[str, Any] = field(default_factory=dict)
    trial: dict[str, Any] = field(default_factory=dict)

    def choices(self, path: str) -> dict[str, Choice]:
        """The choices of `set`, by key. path: the file's. Raises InvalidValue."""
        mappings = {key: value for key, value in self.set.items() if isinstance(value, Mapping)}
        parsed = {key: parse_choice(value, f"{path}.set.{key}") for key, value in mappings.items()}
        return {key: choice for key, choice in parsed.items() if choice is not None}

    def render(
        self,
        templates: Mapping[str, Template],
        values: Mapping[str, Any],
        path: str,
        knobs: Mapping[str, Any] = MappingProxyType({}),
        real: bool = False,
    ) -> str:
        """The file's text for one trial. path: the file's, which begins the paths of its templates. knobs: values by
        dotted key. real: without `trial`. A key whose text is one placeholder without a value (a knob that is told
        nothing) stays as it is. Raises InvalidValue for a base that cannot be read, and for values that the format or a
        choice has no word for."""
        try:
            document: dict[str, Any] = dict(read_base(self.base, self._parse))
        except InvalidValue as error:
            raise InvalidValue([Problem(f"{path}.base", problem.message) for problem in error.problems]) from error
        choices = self.choices(path)
        items = [("set", *item) for item in self.set.items()]
        items += [] if real else [("trial", *item) for item in self.trial.items()]
        for section, key, value in items:
            template = templates.get(f"{path}.{section}.{key}")
            if section == "set" and (choice := choices.get(key)):
                document = placed(document, {key: choice.words_for(values, f"{path}.set.{key}")})
            elif template is None or template.has_value(values):
                filled = value if template is None else template.value(values)
                document = overlaid(document, placed({}, {key: filled}))
        try:
            return self._write(placed(document, knobs))
        except TypeError as error:
            raise InvalidValue([Problem(path, str(error))]) from error

    def _parse(self, text: str) -> Mapping[str, Any]:
        """A base file's document. Raises ValueError."""
        match self.format:
            case Format.YAML:
                document = read_yaml(text, unique_keys=False)
            case Format.JSON:
                document = read_json(text, unique_keys=False)
            case Format.TOML:
                document = read_toml(text)
            case Format.ARGS:
                given, loose = read_arguments(read_words(text, comments=True))
                if loose:
                    raise ValueError(f"{loose[0]!r} belongs to no --option")
                return {name.removeprefix("--"): value_of(values) for name, values in given.items()}
        if not isinstance(document, dict):
            raise ValueError(f"must be a mapping of keys, not {type(document).__name__}")
        return document

    def _write(self, document: Mapping[str, Any]) -> str:
        plain = json.loads(json.dumps(document))  # noqa: TID251  # our own; enumerations become their words
        match self.format:
            case Format.YAML:
                return yaml.safe_dump(plain, sort_keys=False)
            case Format.JSON:
                return json.dumps(plain, indent=2) + "\n"
            case Format.TOML:
                return render_toml(plain)
            case Format.ARGS:
                if mappings := [key for key, value in plain.items() if isinstance(value, dict)]:
                    raise TypeError(f"arguments have no word for the mapping {mappings[0]}")
                written = render_lines(dict(lines({f"--{key}": value for key, value in plain.items()})))
                return "".join(f"{line}\n" for line in written)
