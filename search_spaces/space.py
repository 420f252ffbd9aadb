"""The Space: every legal Plan of one model on one cluster, enumerated, and the reason why any other is illegal.

The space is finite (10^2 to 10^6 combinations), so it is enumerated and filtered on whole columns, never sampled. A
Plan is legal when it lies within the bounds and keeps every rule of `search_spaces.constraints`. How many combinations
there are is known by arithmetic before anything is enumerated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from functools import cached_property
from math import isqrt, prod
from typing import Any, ClassVar

import numpy as np

from meshtune.search_spaces.checks import CLOSED, Checks, InvalidValue, Problem
from meshtune.search_spaces.columns import (
    BoolColumn,
    Columns,
    Constraint,
    IntColumn,
    SpaceContext,
    Violation,
    code,
    columns_of,
    rows,
    value_of,
)
from meshtune.search_spaces.constraints import CONSTRAINTS
from meshtune.search_spaces.plan import AXES, PLAN_FIELDS, Axis, Plan

# Some seconds of one core; more is a mistake in the bounds.
MAX_COMBINATIONS = 10_000_000
# Combinations that are looked at together: their columns stay in a core's cache, and take 10 MB.
CHUNK = 2**15
# Of one value of a dimension; products of three (tp * pp * cp) fit numpy's int64.
MAX_VALUE = 1_000_000
DEFAULT_MICRO_BATCHES = (1, 2, 4, 8, 16)
DEFAULT_ACCUMULATIONS = (1, 2, 4, 8, 16, 32)


class SpaceTooLarge(ValueError):
    """The bounds span more combinations than are enumerated; the message names the axes with most values."""


def _values_of(axis: Axis) -> tuple[str, Any, Any]:
    """The field of Bounds for an axis: name, type and default."""
    kind: Any = axis.kind
    values: Any = tuple[kind, ...]
    return axis.name, values | None if axis.tried is None else values, field(default=axis.tried)


_ValuesOfAxes: Any = make_dataclass(
    "_ValuesOfAxes", [_values_of(axis) for axis in AXES if axis.bounded], frozen=True, slots=True, kw_only=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds(_ValuesOfAxes):  # type: ignore[misc]  # one field for each bounded axis of a Plan
    """The values that each dimension may take. None: chosen from the model and the cluster (see `dimensions`).

    dp has no bounds, it follows from the devices; grad_accum_steps follows from a fixed global batch and may only be
    given where that is freed. tp_across_nodes: let tensor parallel groups leave the node.
    """

    __pydantic_config__: ClassVar[Any] = CLOSED

    tp_across_nodes: bool = False

    def __post_init__(self) -> None:
        checks = Checks()
        for axis in AXES:
            if axis.members:
                named = (checks.member(axis.kind, axis.name, value) for value in getattr(self, axis.name))
                object.__setattr__(self, axis.name, tuple(named))
        checks.done()
        for axis in AXES:
            values: tuple[Any, ...] | None = getattr(self, axis.name, None)
            if values is None:
                continue
            checks.require(bool(values), axis.name, "must name at least one value")
            checks.require(len(set(values)) == len(values), axis.name, f"names a value twice: {_listed(values)}")
            if axis.kind is int:
                high = MAX_VALUE if axis.high is None else axis.high
                for value in values:
                    limits = f"must be between {axis.low} and {high}, not {value}"
                    checks.require(axis.low <= value <= high, axis.name, limits)
        checks.done()


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of combinations: within the bounds, legal, and rejected by each rule (these overlap)."""

    combinations: int
    legal: int
    rejected: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Legal:
    """The legal plans as columns, and the place of each among all combinations, ascending."""

    columns: Mapping[str, IntColumn]
    counts: Counts
    places: IntColumn


class Space(Sequence[Plan]):
    """The legal Plans, in a fixed order: a read-only sequence, with the same plans as `columns` for arithmetic.

    They are enumerated at the first look at one of them or at `counts`; `combinations`, `complete` and `explain` need
    none. Plans are built when they are looked at; membership and `index_of` cost a binary search. Raises SpaceTooLarge
    for more than max_combinations, before anything is enumerated.
    """

    def __init__(self, bounds: Bounds, context: SpaceContext, max_combinations: int = MAX_COMBINATIONS) -> None:
        self.bounds = bounds
        self.context = context
        self.dimensions = dimensions(bounds, context)
        self.combinations = prod(len(values) for values in self.dimensions.values())
        if self.combinations > max_combinations:
            largest = sorted(self.dimensions.items(), key=lambda entry: -len(entry[1]))
            sizes = " * ".join(f"{name}({len(values)})" for name, values in largest if len(values) > 1)
            told = f"{sizes} = {self.combinations} combinations"
            raise SpaceTooLarge(f"{told}, more than the {max_combinations} that are enumerated here")

    @property
    def columns(self) -> Mapping[str, IntColumn]:
        return self._legal.columns

    @property
    def counts(self) -> Counts:
        return self._legal.counts

    @cached_property
    def _legal(self) -> _Legal:
        rules = _rules(self.context)
        broken = dict.fromkeys((rule.name for rule in rules), 0)
        found: list[Columns] = []
        places: list[IntColumn] = []
        for start in range(0, self.combinations, CHUNK):
            place = np.arange(start, min(start + CHUNK, self.combinations))
            grid = _grid(self.dimensions, self.context, place)
            legal = np.ones(len(place), dtype=np.bool_)
            for rule in rules:
                kept = np.broadcast_to(rule.holds(grid, self.context), legal.shape)
                broken[rule.name] += len(place) - int(np.count_nonzero(kept))
                legal &= kept
            found.append(rows(grid, legal))
            places.append(place[legal])
        columns = {name: np.concatenate([part[name] for part in found]) for name in PLAN_FIELDS}
        count = len(columns["tp"])
        counts = Counts(self.combinations, count, {name: many for name, many in broken.items() if many})
        return _Legal(columns, counts, np.concatenate(places))

    @classmethod
    def listed(cls, plans: Sequence[Plan], context: SpaceContext) -> Space:
        """A space of just these plans, all taken as legal, such as the settings that somebody has measured.

        They are ordered by their dimensions, not as given. Raises InvalidValue for two that differ only in what
        follows from the dimensions, since nothing could tell them apart, and for a plan that comes twice.
        """
        space = object.__new__(cls)
        columns = columns_of(plans)
        derived = ("dp",) if context.global_batch_size is None else ("dp", "grad_accum_steps")
        chosen = {name: np.unique(columns[name], return_inverse=True) for name in PLAN_FIELDS if name not in derived}
        place = np.zeros(len(plans), dtype=np.int64)
        for values, positions in chosen.values():
            place = place * len(values) + positions
        order = np.argsort(place, kind="stable")
        for here in np.flatnonzero(np.diff(place[order]) == 0):
            first, second = (plans[order[here + step]].key for step in (0, 1))
            raise InvalidValue([Problem("plans", f"{first} and {second} do not differ in {', '.join(chosen)}")])
        space.context = context
        space.dimensions = {name: tuple(value_of(name, int(v)) for v in values) for name, (values, _) in chosen.items()}
        space.bounds = Bounds(**space.dimensions, tp_across_nodes=context.tp_across_nodes)
        space.combinations = len(plans)
        space._legal = _Legal(rows(columns, order), Counts(len(plans), len(plans), {}), place[order])
        return space

    def __len__(self) -> int:
        return self.counts.legal

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"plan {index} of {len(self)}")
        return _plan({name: int(column[index]) for name, column in self.columns.items()})

    def __iter__(self) -> Iterator[Plan]:
        names = list(self.columns)
        for values in zip(*(self.columns[name].tolist() for name in names), strict=True):
            yield _plan(dict(zip(names, values, strict=True)))

    def __contains__(self, plan: object) -> bool:
        return isinstance(plan, Plan) and self._find(plan) is not None

    def index_of(self, plan: Plan) -> int:
        """The plan's position. Raises KeyError for a plan that is not in the space."""
        index = self._find(plan)
        if index is None:
            raise KeyError(plan)
        return index

    def _find(self, plan: Plan) -> int | None:
        place = 0
        for name, values in self.dimensions.items():
            value = getattr(plan, name)
            if value not in values:
                return None
            place = place * len(values) + values.index(value)
        index = int(np.searchsorted(self._legal.places, place))
        # What is derived (dp, grad_accum_steps) is no part of the place: it is compared.
        return index if index < len(self) and self[index] == plan else None

    def explain(self, plan: Plan, *, ignore_bounds: bool = False) -> list[Violation]:
        """Every rule that the plan breaks, with the numbers; empty for a legal plan.

        ignore_bounds: only the rules count, for a setting that people already use outside of what they let us try.
        """
        found = [
            Violation("bounds", f"{name}({getattr(plan, name)}) is not among {_listed(values)}", "the spec bounds it")
            for name, values in self.dimensions.items()
            if not ignore_bounds and getattr(plan, name) not in values
        ]
        # Python's integers: a plan that people come up with may multiply up to more than int64 holds.
        row = {name: np.array([code(name, getattr(plan, name))], dtype=object) for name in PLAN_FIELDS}
        for constraint in _rules(self.context):
            kept: BoolColumn = np.broadcast_to(constraint.holds(row, self.context), (1,))
            if not kept[0]:
                numbers = constraint.numbers(plan, self.context)
                found.append(Violation(constraint.name, numbers, constraint.reason))
        return found

    def complete(self, **given: Any) -> Plan:
        """The Plan with these fields and, where they are left out, dp from the devices and grad_accum_steps from a
        fixed global batch (rounded down to a whole number of at least 1: `explain` then says what does not fit).

        Raises InvalidValue for values that no Plan may have, TypeError for a field that no Plan has.
        """
        checked = Plan(**given)
        dp = given.get("dp", max(1, self.context.cluster.devices // (checked.tp * checked.pp * checked.cp)))
        batch = self.context.global_batch_size
        derived = max(1, batch // (checked.micro_batch_size * dp)) if batch else 1
        return Plan(**{**given, "dp": dp, "grad_accum_steps": given.get("grad_accum_steps", derived)})


def dimensions(bounds: Bounds, context: SpaceContext) -> dict[str, tuple[Any, ...]]:
    """The values tried per dimension, with the defaults filled in: tp the divisors of a node's devices (of all where
    it may cross nodes), pp the divisors of the devices, micro_batch_size the powers of two up to 16 (and up to the
    global batch), grad_accum_steps, where it is free, the powers of two up to 32."""
    devices, batch = context.cluster.devices, context.global_batch_size
    tp_devices = devices if context.tp_across_nodes else context.cluster.devices_per_node
    chosen: dict[str, tuple[Any, ...]] = {
        name: getattr(bounds, name) for name in PLAN_FIELDS if name not in ("dp", "grad_accum_steps")
    }
    chosen["tp"] = bounds.tp or _divisors(tp_devices)
    chosen["pp"] = bounds.pp or tuple(pp for pp in _divisors(devices) if pp <= context.model.layers)
    sizes = tuple(size for size in DEFAULT_MICRO_BATCHES if batch is None or size <= batch)
    chosen["micro_batch_size"] = bounds.micro_batch_size or sizes
    if batch is None:
        chosen["grad_accum_steps"] = bounds.grad_accum_steps or DEFAULT_ACCUMULATIONS
    return chosen


def _grid(dims: Mapping[str, tuple[Any, ...]], context: SpaceContext, place: IntColumn) -> dict[str, IntColumn]:
    """The combinations at these places as columns, the derived ones included. Where a derived value is no whole number
    it is rounded down (to at least 1), and the rule that multiplies the degrees up again rejects the row."""
    columns: dict[str, IntColumn] = {}
    for name, values in reversed(list(dims.items())):  # the last one changes fastest
        place, index = np.divmod(place, len(values))
        columns[name] = np.array([code(name, value) for value in values], dtype=np.int64)[index]
    parallel = columns["tp"] * columns["pp"] * columns["cp"]
    columns["dp"] = np.maximum(1, context.cluster.devices // parallel)
    if context.global_batch_size is not None:
        per_step = columns["micro_batch_size"] * columns["dp"]
        columns["grad_accum_steps"] = np.maximum(1, context.global_batch_size // per_step)
    return {name: columns[name] for name in PLAN_FIELDS}


def _plan(row: dict[str, int]) -> Plan:
    return Plan(**{name: value_of(name, value) for name, value in row.items()})


def _rules(context: SpaceContext) -> tuple[Constraint, ...]:
    return CONSTRAINTS + context.capabilities.rules


def _divisors(number: int) -> tuple[int, ...]:
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}))


def _listed(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values)
