"""A program's settings being read: flags of a command line, dotted keys of a file, or a printed dump, by name alike.

A value that is no number, no word of the program or not known here becomes a question, and what nobody says has the
program's default only where everything was read (decision 0036). A likely value is a question too, of which people
confirm the answer."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.base import Imported, Question, Remarks, value_of
from meshtune.runners.programs.dialects.bash.expansion import as_written, is_known, is_placeholder
from meshtune.runners.programs.dialects.config_import import at, placed
from meshtune.search_spaces.checks import MAX_WHOLE
from meshtune.search_spaces.plan import PLAN_FIELDS

# A parser that reads a number as float prints 1.0.
_WHOLE = re.compile(r"([0-9]{1,18})(?:\.0)?")
_TRUE, _FALSE = ("true", "1", "yes", "y", "t", "on"), ("false", "0", "no", "n", "f", "off")
# What bash would have expanded.
_OPEN = re.compile(r"\$[{(\w]|`")
# Fields of the workload and of the spec beside those of plan and model. Accumulation follows from the batch.
_PATHS = {
    "dtype": "workload.dtype",
    "nodes": "cluster.nodes",
    "devices_per_node": "cluster.nodes",
    "grad_accum_steps": "global_batch_size",
    # Facts that are no part of a spec.
    **dict.fromkeys(("method", "stage", "loaded", "prompts", "answers", "epochs"), ""),
}
# What programs are told in place of an axis, which is 0 where it is as usual: see `rows.derived`; and the axis.
DERIVED: Mapping[str, str] = {
    **dict.fromkeys(("zero_groups", "zero_ranks", "zero_shards"), "zero_group"),
    "expert_tp": "etp",
}


def path_of(field: str) -> str:
    """The key of the spec where the answer to a field goes."""
    if field.startswith("model."):
        # Latent attention is one key of the spec.
        return ".".join(field.split(".")[:2])
    axis = DERIVED.get(field, field)
    return _PATHS.get(field, f"baseline.{axis}" if axis in PLAN_FIELDS else field)


def is_filled_in(value: str) -> bool:
    """Whether a value is known and nobody's placeholder."""
    return is_known(value) and not _OPEN.search(value) and not is_placeholder(value)


def truth(value: Any) -> bool | None:
    """The truth value of a program's word; None for any other."""
    word = str(value).lower()
    return value if isinstance(value, bool) else True if word in _TRUE else False if word in _FALSE else None


@dataclass(slots=True)
class Reading(Remarks):
    """given: by name; of a flag its words as a tuple, of a key its value, keys of sections dotted. more: the words that
    may say what no other does; "" where everything was read. devices: ranks in all, None unknown. script: the program,
    "" unknown.

    fields: what was read, by field (of Plan; of ModelSpec behind `model.`, of Recipe behind `training.`; dtype,
    global_batch_size, nodes, devices_per_node). said: the words that said a field. kept: fields of the plan that a
    command's trials keep, with their values. places: what `{section}` in a name stands for."""

    given: Mapping[str, Any]
    more: str = ""
    devices: int | None = None
    script: str = ""
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    said: dict[str, str] = dataclasses.field(default_factory=dict)
    kept: dict[str, Any] = dataclasses.field(default_factory=dict)
    places: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def placed(self, name: str) -> str:
        return name.format_map(self.places) if self.places else name

    def get(self, name: str) -> Any:
        """The value of a name: true for a flag without words, a list for several; None where it is not said."""
        name = self.placed(name)
        value = self.given[name] if name in self.given else at(self.given, name)
        return value_of(value) if isinstance(value, tuple) else value

    def has(self, *names: str) -> bool:
        return any(self.get(name) is not None for name in names)

    def first(self, names: Iterable[str]) -> str:
        """The first of the names that is said; "" for none."""
        return next((name for name in names if self.has(name)), "")

    def written(self, name: str) -> str:
        """A setting as people write it."""
        name, value = self.placed(name), self.get(name)
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        return name if value is True and name.startswith("-") else as_written(f"{name} {text}")

    def text(self, name: str, path: str = "") -> str | None:
        """The one value as a text; None where it is not said, or not known, which is asked."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, list | Mapping) or not is_filled_in(str(value)):
            self.ask(path, f"{self.written(name)}: what it holds is not known here; fill it in")
            return None
        return str(value)

    def whole(self, name: str, path: str = "", least: int = 1) -> int | None:
        """The whole number; None where it is not said, or none, which is asked."""
        value = self.text(name, path)
        if value is None:
            return None
        match = _WHOLE.fullmatch(value)
        if match and least <= int(match[1]) <= MAX_WHOLE:
            return int(match[1])
        self.ask(
            path,
            f"{self.placed(name)}: {shown(self.get(name))} is no whole number from {least} to {MAX_WHOLE}; fill it in",
        )
        return None

    def share(self, name: str, path: str = "") -> float | None:
        """The part of a whole, from 0 to 1; None where it is not said, or none, which is asked."""
        if (value := self.text(name, path)) is None:
            return None
        with suppress(ValueError):
            if 0 <= float(value) <= 1:
                return float(value)
        self.ask(path, f"{self.placed(name)}: {shown(self.get(name))} is no number from 0 to 1; fill it in")
        return None

    def flag(self, name: str, path: str = "") -> bool | None:
        """The truth value; None where it is not said, or none, which is asked."""
        value = self.text(name, path)
        known = None if value is None else truth(value)
        if value is not None and known is None:
            self.ask(path, f"{name}: {shown(self.get(name))} is neither true nor false; fill it in")
        return known

    def is_asked(self, path: str) -> bool:
        return path != "" and any(question.path == path for question in self.questions)

    @property
    def open(self) -> set[str]:
        """The keys of the spec that are left empty: what is guessed has a value."""
        return {question.path for question in self.questions if not question.guessed}

    def complete(self, path: str, what: str, otherwise: Any) -> bool:
        """Whether the default of what nobody says is certain; where it is not, it is asked, once."""
        if self.is_asked(path):
            return False
        if self.more:
            self.ask(path, f"no word that was read says {what}, but {self.more} may; else it is {otherwise}")
        return not self.more

    def guess(self, field: str, value: Any, text: str) -> None:
        """Take a likely value, which is to be confirmed."""
        self.fields[field] = value
        self.questions.append(Question(path_of(field), self._placed(text), guessed=True))

    def put(self, field: str, value: Any, *names: str) -> None:
        """Take a value that names said."""
        self.fields[field] = value
        self.said[field] = ", ".join(self.written(name) for name in names if self.has(name))

    def plan(self) -> dict[str, Any]:
        return {name: value for name, value in self.fields.items() if name in PLAN_FIELDS}

    def section(self, name: str) -> dict[str, Any]:
        """Fields behind `name.`, dotted ones in mappings of their own."""
        own = {key: value for key, value in self.fields.items() if key.startswith(f"{name}.")}
        return placed({}, {key.removeprefix(f"{name}."): value for key, value in own.items()})

    def imported(self, workload: Mapping[str, Any], **more: Any) -> Imported:
        """What was read, without the values that are asked. more: other fields of Imported."""
        asked = self.open - {"cluster.nodes"}
        fields = {
            name: value
            for name, value in self.fields.items()
            if value is not None and (path_of(name) not in asked or name == "grad_accum_steps")
        }
        known = Reading(given={}, fields=fields)
        own = {name: value for name, value in workload.items() if value is not None and f"workload.{name}" not in asked}
        return Imported(
            **{
                "workload": own,
                "model": known.section("model"),
                "training": known.section("training"),
                "plan": known.plan(),
                "global_batch_size": fields.get("global_batch_size"),
                "nodes": fields.get("nodes"),
                "devices_per_node": fields.get("devices_per_node"),
                "questions": tuple(self.questions),
                "notes": tuple(dict.fromkeys(self.notes)),
                **more,
            }
        )
