"""Which plans a user's script can run: everything in the dimensions that its command tells it, one value in others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from meshtune.runners.programs.workloads.config_file import Choice, code_of
from meshtune.search_spaces.checks import InvalidValue, Problem, did_you_mean, problems_as
from meshtune.search_spaces.columns import EVEN_ALONE, BoolColumn, Capabilities, Columns, Constraint, code
from meshtune.search_spaces.layer_shapes import Shape
from meshtune.search_spaces.plan import PLAN_FIELDS, ContextParallel, Plan, Recompute, Schedule

# dp follows from the devices and the other degrees, which a script learns from its world size.
_FIXABLE = tuple(name for name in PLAN_FIELDS if name != "dp")
# Of these a script needs two to know the third.
_BATCH = ("micro_batch_size", "grad_accum_steps", "global_batch_size")


def fixed_plan(fixed: Mapping[str, Any], told: Collection[str]) -> Mapping[str, Any]:
    """The fields of the plan that the script is not told, with the values that it has built in, by default Plan's.
    told: its placeholders. Raises InvalidValue."""
    problems = []
    for name in fixed:
        if name not in _FIXABLE:
            problems.append(Problem(f"fixed.{name}", f"is nothing to fix; {did_you_mean(name, _FIXABLE)}"))
        elif name in told:
            problems.append(Problem(f"fixed.{name}", f"cannot be fixed: the command is told it as {{{name}}}"))
    if problems:
        raise InvalidValue(problems)
    with problems_as(InvalidValue, "fixed"):
        plan = Plan(**fixed)
    known = set(told)
    if len(known.intersection(_BATCH)) >= 2:
        known.update(_BATCH)
    return {name: getattr(plan, name) for name in _FIXABLE if name not in known or name in fixed}


def capabilities_of(fixed: Mapping[str, Any], told: Collection[str]) -> Capabilities:
    """What the script can run: everything in the dimensions that it is told, one value in the others. Which values of
    those it takes is for the spec's `space` to say."""
    # Stage 0 is what every stage is where there is nothing to shard over.
    stages = {0, 1, 2, 3} if "zero_stage" not in fixed else {0, fixed["zero_stage"]}
    ends = fixed.get("first_stage_less_layers"), fixed.get("last_stage_less_layers")
    return Capabilities(
        schedules=frozenset({fixed["schedule"]} if "schedule" in fixed else Schedule),
        recompute=frozenset({fixed["recompute"]} if "recompute" in fixed else Recompute),
        zero_stages=frozenset(stages),
        zero_stages_with_pp=frozenset(stages if "zero_stage" in fixed else {0, 1}),
        contexts=frozenset({fixed["context"]} if "context" in fixed else ContextParallel)
        if "cp" in told or fixed.get("cp", 1) > 1
        else frozenset(),
        recompute_intervals="recompute_interval" in told,
        choice_of_sequence_parallel="sequence_parallel" not in fixed or not fixed["sequence_parallel"],
        expert_parallel="ep" in told or fixed.get("ep", 1) > 1,
        experts=True,
        stage_splits=None if ends[0] is None or ends[1] is None else EVEN_ALONE | {(ends[0], ends[1])},
        shapes=frozenset(Shape),
        rules=tuple(_rule(name, value) for name, value in fixed.items()),
    )


# Where a dimension changes nothing; the rules of identity keep one value of it there, whatever the script has.
_IDLE: Mapping[str, Callable[[Columns], BoolColumn]] = {
    "zero_stage": lambda c: c["dp"] * c["cp"] == 1,
    "sequence_parallel": lambda c: c["tp"] == 1,
    "schedule": lambda c: c["pp"] == 1,
    "vpp": lambda c: c["pp"] == 1,
    "first_stage_less_layers": lambda c: c["pp"] == 1,
    "last_stage_less_layers": lambda c: c["pp"] == 1,
    "context": lambda c: c["cp"] == 1,
    "recompute_interval": lambda c: c["recompute"] == code("recompute", Recompute.NONE),
}


def _rule(name: str, value: Any) -> Constraint:
    """The rule that a dimension keeps the one value that the script has for it, wherever it means anything."""
    needed, idle = code(name, value), _IDLE.get(name)
    return Constraint(
        f"command-lacks-{name}",
        f"the command has no {{{name}}}, so the script cannot be told another value than {value}",
        lambda c, s: (c[name] == needed) | (c["tp"] < 0 if idle is None else idle(c)),
        lambda p, s: f"{name}({getattr(p, name)}), but the command has no {{{name}}} and so always runs {value}",
    )


def worded_rules(choices: Collection[Choice]) -> tuple[Constraint, ...]:
    """The rules that a plan has values that the configuration files have words for, one of each axis."""
    return tuple(
        _worded_rule(axis, [choice.words.keys() for choice in choices if choice.axis == axis])
        for axis in sorted({choice.axis for choice in choices})
    )


def _worded_rule(axis: str, worded: Sequence[Collection[str]]) -> Constraint:
    values = [value for value in worded[0] if all(value in others for others in worded)]
    codes = [code_of(axis, value) for value in values]
    return Constraint(
        f"command-words-{axis}",
        f"the configuration has words for {axis} {', '.join(values)} alone",
        lambda c, s: np.isin(c[axis], codes),
        lambda p, s: f"{axis}({getattr(p, axis)})",
    )
