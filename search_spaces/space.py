"""The Space: every legal Plan of one model on one cluster, enumerated, and the reason why any other is illegal.

The layouts are finite (10^2 to 10^6 combinations), so they are enumerated and filtered on whole columns, never
sampled. A layout is legal when it lies within the bounds and keeps every rule of `search_spaces.constraints`. How many
combinations there are is known by arithmetic before anything is enumerated. Knobs multiply with the layouts: their
combinations are counted, and listed where they are few (`listing`); as a sequence, a space has each layout once, with
every knob at its default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

from meshtune.search_spaces.bounds import PIPELINE, dimensions
from meshtune.search_spaces.bounds import Bounds as Bounds
from meshtune.search_spaces.checks import InvalidValue, Problem, listed, raising
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
from meshtune.search_spaces.constraints import CONSTRAINTS, OF_SHAPES
from meshtune.search_spaces.knob import SIZES
from meshtune.search_spaces.knob_values import KnobValues
from meshtune.search_spaces.knobs import NO_KNOBS, Codes, KnobSet
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan
from meshtune.search_spaces.stages import splits_offered

# Some seconds of one core; more is a mistake in the bounds.
MAX_COMBINATIONS = 10_000_000
# Combinations that are looked at together: their columns stay in a core's cache, and take 10 MB.
CHUNK = 2**15
# Of combinations: JSON's numbers are exact up to here.
MAX_COUNT = 2**53


class SpaceTooLarge(ValueError):
    """The bounds span more combinations than are enumerated; the message names the axes with most values."""


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
    """The legal layouts, in a fixed order: a read-only sequence of Plans, with the same plans as `columns` for
    arithmetic. Each has its knobs at their defaults; other values of them are legal too (`explain`, `plans`).

    They are enumerated at the first look at one of them or at `counts`; `combinations`, `complete` and `explain` need
    none. Plans are built when they are looked at; membership and `index_of` cost a binary search. Raises SpaceTooLarge
    for more than max_combinations, before anything is enumerated.
    """

    def __init__(
        self, bounds: Bounds, context: SpaceContext, max_combinations: int = MAX_COMBINATIONS, knobs: KnobSet = NO_KNOBS
    ) -> None:
        self.bounds = bounds
        self.context = context
        self.knobs = knobs
        self.dimensions = dimensions(bounds, context)
        if knobs.size is not None:
            self.dimensions[knobs.size.name] = tuple(knobs.size.values)
        sizes = {name: len(values) for name, values in self.dimensions.items()}
        _require_few(sizes, max_combinations)
        # What each pipeline is split into, by pp and vpp; None: every value of a dimension with every one of the other.
        bounded = any(getattr(bounds, name) is not None for name in PIPELINE[2:])
        model, able = context.model, context.capabilities.stage_splits
        of_size = product(self.dimensions["pp"], self.dimensions["vpp"])
        self._splits = None if bounded else {size: splits_offered(model, *size, able) for size in of_size}
        if self._splits is not None:
            chosen = [split for offered in self._splits.values() for split in offered]
            for name, less in zip(PIPELINE[2:], zip(*chosen, strict=True), strict=True):
                self.dimensions[name] = tuple(sorted(set(less)))
            if len(chosen) > sizes["pp"] * sizes["vpp"]:
                sizes = {name: size for name, size in sizes.items() if name not in PIPELINE}
                sizes["pipelines"] = len(chosen)
        self.combinations = prod(sizes.values())
        _require_few(sizes, max_combinations)

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
        parts: list[Columns] = []
        places: list[IntColumn] = []
        pipelines = self._pipelines()
        for start in range(0, self.combinations, CHUNK):
            place = np.arange(start, min(start + CHUNK, self.combinations))
            positions = _positions(self.dimensions, pipelines, place)
            grid = _grid(self.dimensions, self.context, positions)
            legal = np.ones(len(place), dtype=np.bool_)
            for rule in rules:
                kept = np.broadcast_to(rule.holds(grid, self.context), legal.shape)
                broken[rule.name] += len(place) - int(np.count_nonzero(kept))
                legal &= kept
            parts.append(rows(grid, legal))
            places.append(_places(self.dimensions, rows(positions, legal)))
        order = np.argsort(np.concatenate(places))
        columns = {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}
        counts = Counts(self.combinations, len(order), {name: many for name, many in broken.items() if many})
        return _Legal(columns, counts, np.concatenate(places)[order])

    def _pipelines(self) -> IntColumn:
        """One row per pipeline that is tried: the positions of its values in the dimensions of `PIPELINE`."""
        values = [self.dimensions[name] for name in PIPELINE]
        if self._splits is None:
            tried: Sequence[tuple[Any, ...]] = list(product(*values))
        else:
            tried = [(*pipeline, *split) for pipeline, splits in self._splits.items() for split in splits]
        return np.array([[own.index(one) for own, one in zip(values, row, strict=True)] for row in tried])

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
        space.knobs = NO_KNOBS
        space.dimensions = {name: tuple(value_of(name, int(v)) for v in values) for name, (values, _) in chosen.items()}
        space.bounds = Bounds(**space.dimensions, tp_across_nodes=context.tp_across_nodes)
        space._splits = None
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
        return self.plan(int(index))

    def __iter__(self) -> Iterator[Plan]:
        if self.knobs:
            yield from (self.plan(index) for index in range(len(self)))
            return
        names = list(PLAN_FIELDS)
        for values in zip(*(self.columns[name].tolist() for name in names), strict=True):
            yield _plan(dict(zip(names, values, strict=True)))

    def plan(self, index: int, codes: Sequence[int] | None = None) -> Plan:
        """The layout at this position, with these values of its knobs: a row of codes, by default the defaults'."""
        row = {name: int(self.columns[name][index]) for name in PLAN_FIELDS}
        if not self.knobs:
            return _plan(row)
        own = self.default_codes[index] if codes is None else codes
        return _plan(row, knobs=self.knobs.values_of([int(each) for each in own]))

    @cached_property
    def default_codes(self) -> Codes:
        return self.knobs.default_codes(self.columns, self.context.cluster.devices_per_node)

    @cached_property
    def plans(self) -> int:
        """The number of distinct legal plans: of layouts times what their knobs can be; exact below 2^53 for each
        layout. Raises SpaceTooLarge."""
        if not self.knobs.searched:
            return len(self)
        with raising(SpaceTooLarge, "", InvalidValue):
            each = self.knobs.assignments(self.columns, self.context.cluster.devices_per_node)
        return sum(map(int, each.tolist()))

    @cached_property
    def totals(self) -> Counts:
        """The counts with knobs: combinations with every value of each, and legal plans; MAX_COUNT for more. Raises
        SpaceTooLarge."""
        values = prod(len(knob.values) for knob in self.knobs.searched)
        most = min(self.counts.combinations * values, MAX_COUNT)
        return Counts(most, min(self.plans, most), self.counts.rejected)

    def canonical(self, index: IntColumn, codes: Codes) -> Codes:
        """The codes as the layouts at these positions have them: 0 where a knob is inactive there."""
        return self.knobs.canonical(rows(self.columns, index), codes, self.context.cluster.devices_per_node)

    def listing(self, most: int) -> tuple[IntColumn, Codes] | None:
        """Every legal plan: the position of its layout, and the codes of its knobs; None where there are more."""
        if self.plans > most:
            return None
        return self.knobs.expand(self.columns, self.context.cluster.devices_per_node)

    def __contains__(self, plan: object) -> bool:
        return isinstance(plan, Plan) and self.find(plan) is not None

    def index_of(self, plan: Plan) -> int:
        """As `find`. Raises KeyError for a plan that is not in the space."""
        index = self.find(plan)
        if index is None:
            raise KeyError(plan)
        return index

    def find(self, plan: Plan) -> int | None:
        """The position of the plan's layout, None for a plan that is not in the space, or whose knobs are not."""
        place = self.find_layout(plan)
        if place is None or (not self.knobs and not plan.knobs):
            return place
        return None if self._knob_problems(plan) else place

    def find_layout(self, plan: Plan) -> int | None:
        """The same, whatever the plan's knobs are."""
        place = 0
        for name, values in self.dimensions.items():
            value = self._value(plan, name)
            if value not in values:
                return None
            place = place * len(values) + values.index(value)
        index = int(np.searchsorted(self._legal.places, place))
        if index == len(self) or self._legal.places[index] != place:
            return None
        # What is derived (dp, grad_accum_steps) is no part of the place: it is compared.
        derived = [name for name in self.columns if name in PLAN_FIELDS and name not in self.dimensions]
        same = all(self.columns[name][index] == code(name, getattr(plan, name)) for name in derived)
        return index if same else None

    def explain(self, plan: Plan, *, ignore_bounds: bool = False) -> list[Violation]:
        """Every rule that the plan breaks, with the numbers; empty for a legal plan.

        ignore_bounds: only the rules count, for a setting that people already use outside of what they let us try.
        """
        violations = [
            Violation("bounds", f"{name}({getattr(plan, name)}) is not among {listed(values)}", "the spec bounds it")
            for name, values in self.dimensions.items()
            if not ignore_bounds and name not in SIZES and getattr(plan, name) not in values
        ]
        violations += [] if violations or ignore_bounds else self._explain_split(plan)
        violations += [Violation("knobs", words, "the spec's `knobs` say so") for _, words in self._knob_problems(plan)]
        # Python's integers: a plan that people come up with may multiply up to more than int64 holds.
        row = {name: np.array([code(name, getattr(plan, name))], dtype=object) for name in PLAN_FIELDS}
        for constraint in _rules(self.context):
            kept: BoolColumn = np.broadcast_to(constraint.holds(row, self.context), (1,))
            if not kept[0]:
                numbers = constraint.numbers(plan, self.context)
                violations.append(Violation(constraint.name, numbers, constraint.reason))
        return violations

    def _explain_split(self, plan: Plan) -> list[Violation]:
        """Why a plan of these dimensions is none of the space's, where that is for its pipeline's split."""
        splits = (self._splits or {}).get((plan.pp, plan.vpp), [])
        own = plan.first_stage_less_layers, plan.last_stage_less_layers
        if self._splits is None or own in splits:
            return []
        offered = " or ".join(f"{first} and {last}" for first, last in splits)
        problem = f"first_stage_less_layers and last_stage_less_layers are {own[0]} and {own[1]}, not {offered}"
        return [Violation("bounds", problem, "the balanced ones, as long as the spec's space names no values of them")]

    def complete(self, **given: Any) -> Plan:
        """The Plan with these fields and, where they are left out, dp from the devices, grad_accum_steps from a fixed
        global batch (rounded down to a whole number of at least 1: `explain` then says what does not fit), and each
        active knob's default. Without a size in `knobs` or a dp, it is for the default size.

        Raises InvalidValue for values that no Plan may have, TypeError for a field that no Plan has.
        """
        checked = Plan(**given)
        dp = given.get("dp", max(1, self._devices_of(checked) // (checked.tp * checked.pp * checked.cp)))
        batch = self.context.global_batch_size
        derived = max(1, batch // (checked.micro_batch_size * dp)) if batch else 1
        plan = Plan(**{**given, "dp": dp, "grad_accum_steps": given.get("grad_accum_steps", derived)})
        # Active knobs without a value get their defaults; what is wrong stays, for `explain` to name it.
        return replace(plan, knobs=KnobValues({**self._active(plan), **plan.knobs})) if self.knobs else plan

    def adopted(self, plan: Plan) -> Plan:
        """The plan with its knobs as this space has them: defaults where it has no value or none of theirs, and
        without those that are inactive or no knobs here."""
        return replace(plan, knobs=self._active(plan))

    def _active(self, plan: Plan) -> KnobValues:
        columns, per_node = columns_of([plan]), self.context.cluster.devices_per_node
        known = self.knobs.known_codes([plan])
        codes = np.where(known > 0, known, self.knobs.defaults)
        return self.knobs.values_of(self.knobs.canonical(columns, codes, per_node)[0].tolist())

    def _devices_of(self, plan: Plan) -> int:
        """The devices of the size that the plan names, else of the default one."""
        if (size := self.knobs.size) is None:
            return self.context.cluster.devices
        many = plan.knobs.get(size.name, size.default)
        unit = self.context.cluster.devices_per_node if size.name == "nodes" else 1
        return int(many) * unit if isinstance(many, int) else self.context.cluster.devices

    def _knob_problems(self, plan: Plan) -> list[tuple[str, str]]:
        if not self.knobs and not plan.knobs:
            return []
        return self.knobs.problems(columns_of([plan]), plan, self.context.cluster.devices_per_node)

    def _value(self, plan: Plan, name: str) -> Any:
        """The plan's value of a dimension; a size follows from its devices."""
        if name not in SIZES:
            return getattr(plan, name)
        return plan.world_size if name == "devices" else plan.world_size / self.context.cluster.devices_per_node


def _require_few(sizes: Mapping[str, int], most: int) -> None:
    """Raise SpaceTooLarge where there are more combinations."""
    if (combinations := prod(sizes.values())) > most:
        largest = sorted(sizes.items(), key=lambda entry: -entry[1])
        product = " * ".join(f"{name}({size})" for name, size in largest if size > 1)
        raise SpaceTooLarge(f"{product} = {combinations} combinations, more than the {most} that are enumerated here")


def _positions(dims: Mapping[str, tuple[Any, ...]], pipelines: IntColumn, place: IntColumn) -> Columns:
    """The combinations at these places, as positions in the dimensions."""
    positions: dict[str, IntColumn] = {}
    for name in reversed([name for name in dims if name not in PIPELINE]):
        place, positions[name] = np.divmod(place, len(dims[name]))
    return positions | dict(zip(PIPELINE, pipelines[place].T, strict=True))


def _places(dims: Mapping[str, tuple[Any, ...]], positions: Columns) -> IntColumn:
    """What orders plans, the last dimension changing fastest: see `Space.find`."""
    place = np.zeros(len(positions["pp"]), dtype=np.int64)
    for name, values in dims.items():
        place = place * len(values) + positions[name]
    return place


def _grid(dims: Mapping[str, tuple[Any, ...]], context: SpaceContext, positions: Columns) -> dict[str, IntColumn]:
    """The combinations at these positions as columns, the derived ones included. Where a derived value is no whole
    number it is rounded down (to at least 1), and the rule that multiplies the degrees up again rejects the row."""
    columns: dict[str, IntColumn] = {}
    for name, values in dims.items():
        columns[name] = np.array([code(name, value) for value in values], dtype=np.int64)[positions[name]]
    parallel = columns["tp"] * columns["pp"] * columns["cp"]
    devices = columns["nodes"] * context.cluster.devices_per_node if "nodes" in columns else columns.get("devices")
    columns["dp"] = np.maximum(1, (context.cluster.devices if devices is None else devices) // parallel)
    if context.global_batch_size is not None:
        per_step = columns["micro_batch_size"] * columns["dp"]
        columns["grad_accum_steps"] = np.maximum(1, context.global_batch_size // per_step)
    return {name: columns[name] for name in (*PLAN_FIELDS, *(size for size in SIZES if size in columns))}


def _plan(row: dict[str, int], **rest: Any) -> Plan:
    return Plan(**{name: value_of(name, value) for name, value in row.items()}, **rest)


def _rules(context: SpaceContext) -> tuple[Constraint, ...]:
    rules = CONSTRAINTS + context.capabilities.rules
    return rules if context.model.known else tuple(rule for rule in rules if rule.name not in OF_SHAPES)
