"""The rows of a program's table: what ties one field to the program's words, and what is remarked beside.

A table is `NAME/table.toml`. Each `[[row]]` ties one field to the names (flags, or dotted keys) that say it:

    field       of Plan, or of DERIVED in its place; of ModelSpec behind `model.`, of Recipe behind `training.`;
                dtype, global_batch_size, nodes, devices_per_node; or a fact of the program's own (see `special`)
    names       the first is written, the others are read as well
    words       by value: the program's word, or several, of which the first is written; case does not count
    cases       in place of names: of each value the settings that say it; the first that holds is read
    absent      the value where nobody says it; absent_of: that of another field. Without either it is asked, unless it
                is `optional`
    needs       a switch without which the names count for nothing; `without` says what holds then
    when        a condition (search_spaces.conditions) without which nothing is written; where it names other fields
                alone, nothing is read either, and the field is `idle`
    special     a function of the program's special.py that reads it (`only = "write"`: writes), for what no row can say
    writes      settings that are written as they are, where `when` holds and the field, if one is named, has a value
    removes     settings that the user's own configuration must not have there; written as None
    only        "read", "write", or "trials": special gives the settings of a command's trials
    of          the variants of the program that have the row; none: all
    least       of a number
    ask         what a question says of it
    guess       where nobody says it: its likely value by another setting as people write it, "--name value", or by
                none: ""; `ask` says why
    set         whether trials of a command set it: "always", "there" (where the user has the key or its section),
                "known" (where the program's dump has it as well), "key" (where the user has the key), "never"

`[[remark]]` names settings that no plan has: what predictions do not know of them, or what is to be asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

import numpy as np

from meshtune.runners.programs.reading import DERIVED, truth
from meshtune.search_spaces.checks import Checks, Closed
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.columns import sharding_ranks, zero_groups
from meshtune.search_spaces.conditions import Condition, Domain, parse_condition
from meshtune.search_spaces.model import Activation, Norm, Position
from meshtune.search_spaces.plan import AXES, Plan
from meshtune.search_spaces.recipe import Adapter, Recipe, Rollout

DTYPES = ("bfloat16", "float16", "float32")
# Of the fields that are no numbers.
VALUES: Mapping[str, tuple[Any, ...]] = {
    **{axis.name: tuple(map(str, axis.members)) or (False, True) for axis in AXES if axis.kind is not int},
    **{f"model.{kind.__name__.lower()}": tuple(map(str, kind)) for kind in (Norm, Activation, Position)},
    "model.tied_head": (False, True),
    **{f"training.{each.name}": (False, True) for each in fields(Recipe) if each.type == "bool"},
    **{f"training.adapter.{each.name}": (False, True) for each in fields(Adapter) if each.type == "bool"},
    **{f"training.rollout.{each.name}": (False, True) for each in fields(Rollout) if each.type == "bool"},
    # What a sample is: one text; two answers with a reference, or without; one with a reference; two for a reward; one
    # with a teacher; or answers that the training generates.
    "stage": ("sft", "dpo", "pairs", "kto", "reward", "teacher", "generated"),
    "method": ("full", "lora", "freeze"),
    "dtype": DTYPES,
    "device": tuple(map(str, DeviceKind)),
}


# Fields that are parts of a whole.
SHARES = frozenset({"training.rollout.share", "training.adapter.dropout"})


class _Domains(dict[str, Domain]):
    """Every dotted name is a field; what is not listed is a number."""

    def __contains__(self, name: object) -> bool:
        known = name in VALUES or name in NUMBERS
        return known or (isinstance(name, str) and name.startswith(("model.", "training.")))

    def __missing__(self, name: str) -> Domain:
        return Domain(VALUES.get(name))


_COUNTS = ("global_batch_size", "nodes", "devices_per_node", "loaded")
NUMBERS = frozenset({*(axis.name for axis in AXES), *DERIVED, *_COUNTS})


def derived(plan: Plan) -> dict[str, int]:
    """zero_groups: the groups that ZeRO shards over; zero_ranks: the ranks of one; zero_shards: the data-parallel ones
    among them. expert_tp: the experts' tensor parallel degree."""
    axes = plan.axes_as_dict()
    groups = max(1, int(zero_groups(axes)))
    return {
        "zero_groups": groups,
        "zero_ranks": int(sharding_ranks(axes)),
        "zero_shards": plan.dp // groups,
        "expert_tp": plan.expert_tp,
    }


@cache
def condition(text: str) -> Condition:
    """Over fields of plan and model, dtype and `device`, the kind of the devices. Raises InvalidValue."""
    return parse_condition(text, _Domains())


def holds(text: str, facts: Mapping[str, Any]) -> bool | None:
    """Whether a condition holds; None where it names what is not known."""
    parsed = condition(text)
    if any(facts.get(name) is None for name in parsed.names):
        return None

    def column(name: str) -> Any:
        value, values = facts[name], VALUES.get(name)
        return np.array([value if values is None else values.index(value)])

    return bool(parsed.holds(column, 1)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(Closed):
    """value: of the field. all: the settings that are written for it; by: those that it is read by, where they are
    fewer; "*" is any value. None of both: the value where nobody says any. ask: what is asked in place of a value."""

    value: Any = None
    ask: str = ""
    all: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    by: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Closed):
    """See the module."""

    field: str = ""
    names: tuple[str, ...] = ()
    words: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cases: tuple[Case, ...] = ()
    absent: Any = None
    absent_of: str = ""
    optional: bool = False
    needs: str = ""
    without: str = ""
    when: str = ""
    idle: Any = None
    special: str = ""
    writes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    removes: tuple[str, ...] = ()
    only: Literal["", "read", "write", "trials"] = ""
    of: tuple[str, ...] = ()
    least: int = 1
    ask: str = ""
    guess: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    set: Literal["always", "there", "known", "key", "never"] = "always"

    def _check(self, checks: Checks) -> None:
        said = (self.names, self.cases, self.special, self.writes, self.removes, self.absent_of)
        told = f"{self.field} needs names, cases, writes, special or absent"
        checks.require(any(said) or self.absent is not None, "field", told)

    @property
    def every_name(self) -> frozenset[str]:
        """Each name that says something of the field."""
        marks = (name for case in self.cases for name in (*case.all, *case.by))
        return frozenset((*self.names, *marks, *filter(None, (self.needs,))))

    @property
    def written(self) -> tuple[str, ...]:
        """The names that are written or taken away."""
        cases = (key for case in self.cases for key in case.all)
        return () if self.only == "read" else (*self.names[:1], *cases, *self.writes, *self.removes)

    def word(self, value: Any) -> Any:
        """The program's word for a value."""
        listed = self.words.get(str(value).lower() if isinstance(value, bool) else str(value), value)
        return listed[0] if isinstance(listed, list) else listed

    def value(self, word: Any) -> Any:
        """The value that a program's word stands for; None for no word of it."""
        for value, listed in self.words.items():
            words = listed if isinstance(listed, list) else [listed]
            if any(same(known, word) for known in words):
                return {"true": True, "false": False}.get(value, int(value) if value.isdecimal() else value)
        return None


def placed(names: tuple[str, ...], places: Mapping[str, str]) -> tuple[str, ...]:
    """The names, each once, with what a variant calls their sections."""
    return tuple(dict.fromkeys(name.format_map(places) for name in names)) if places else names


def same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return truth(one) is not None and truth(one) is truth(other)
    return str(one).lower() == str(other).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark(Closed):
    """names: settings; of one that ends in `*` all that begin like it. note: what predictions do not know of one, which
    stays; ask: a question, one for all of the names; say: a note as it stands. unless: values that say nothing, beside
    off; only: the values that do. when: a condition. of: as of a row."""

    names: tuple[str, ...]
    note: str = ""
    ask: str = ""
    say: str = ""
    path: str = ""
    unless: tuple[Any, ...] = ()
    only: tuple[Any, ...] = ()
    when: str = ""
    of: tuple[str, ...] = ()

    def speaks(self, value: Any) -> bool:
        if self.only:
            return any(same(each, value) for each in self.only)
        return bool(value) and truth(value) is not False and not any(same(each, value) for each in self.unless)
