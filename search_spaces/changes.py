"""The differences between two plans, knob by knob."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from meshtune.search_spaces.knob_values import same_value, word
from meshtune.search_spaces.plan import AXES, PLAN_FIELDS, Plan

# A value of an axis or a knob; None: of a knob that is inactive.
Value = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Change:
    """One knob from one value to another."""

    knob: str
    before: Value
    after: Value

    @property
    def differs(self) -> bool:
        return not same_value(self.before, self.after)

    def __str__(self) -> str:
        return f"{self.knob} {value_word(self.before)} -> {value_word(self.after)}"


# A change of a knob, and after it those of its followers.
Moves = tuple[Change, ...]


def value_word(value: Value) -> str:
    """For people."""
    return "inactive" if value is None else word(value)


def knob_words(name: str) -> str:
    """An axis or a knob, as tables, charts and reports show it."""
    return next((axis.words for axis in AXES if axis.name == name), name)


def words_of(changes: Moves) -> str:
    """For tables, charts and reports."""
    return ", ".join(f"{knob_words(o.knob)} {value_word(o.before)} \u2192 {value_word(o.after)}" for o in changes)


def value_in(plan: Plan, name: str) -> Value:
    """Of an axis or a knob; None of a knob that is inactive in the plan."""
    if name not in PLAN_FIELDS:
        return plan.knobs.get(name)
    value: Value = getattr(plan, name)
    return str(value) if isinstance(value, StrEnum) else value


def knob_changes(first: Plan, second: Plan, axes: Sequence[str] = ()) -> Moves:
    """Of these axes and the knobs beyond the layout those that differ, from one plan to another."""
    names = [*axes, *sorted(first.knobs.keys() | second.knobs.keys())]
    pairs = [Change(name, value_in(first, name), value_in(second, name)) for name in names]
    return tuple(one for one in pairs if one.differs)


def plan_changes(first: Plan, second: Plan) -> Moves:
    """All that differs, from one plan to another, in the order of a plan's fields, then of knobs; but for what follows
    from the rest: dp, and with an equal global batch its accumulation."""
    follow = {"dp", *(["grad_accum_steps"] if first.global_batch_size == second.global_batch_size else [])}
    return knob_changes(first, second, [name for name in PLAN_FIELDS if name not in follow])
