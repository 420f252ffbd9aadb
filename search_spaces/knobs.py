"""The knobs of one space: which are active, how they combine with layouts, and the sizes of jobs.

A knob whose condition is false is inactive and has no value, so two plans that differ in nothing active are one. The
layout is enumerated (`search_spaces.space`); values of knobs are combined with it, counted, and never enumerated all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.checks import Checks, InvalidValue, Problem, did_you_mean, listed
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import BoolColumn, Columns, FloatColumn, IntColumn
from meshtune.search_spaces.columns import rows as columns_at
from meshtune.search_spaces.conditions import Condition, Domain, parse_condition
from meshtune.search_spaces.knob import SIZES, Knob
from meshtune.search_spaces.knob_values import KnobValue, KnobValues, readings, word
from meshtune.search_spaces.plan import AXES, PLAN_FIELDS, Plan

if TYPE_CHECKING:
    from meshtune.search_spaces.space import Space

# One row per plan, one column per knob: the position of its value from 1 on, 0 where it is inactive.
Codes = npt.NDArray[np.int64]
MAX_KNOBS = 64
# Combinations of the knobs that others' conditions name, see `KnobSet.assignments`.
MAX_CONTROLLING = 100_000


class KnobSet(tuple[Knob, ...]):
    """The knobs of one space, in the order given. Raises InvalidValue with every mistake, by the knob's name."""

    def __init__(self, knobs: Sequence[Knob] = ()) -> None:
        self._at = {knob.name: at for at, knob in enumerate(self)}
        self._conditions: dict[int, Condition] = {}
        problems = list(self._clashes())
        for at, knob in enumerate(self):
            if knob.when:
                try:
                    self._conditions[at] = parse_condition(knob.when, self._domains())
                except InvalidValue as error:
                    problems += [problem.under(f"{knob.name}.when") for problem in error.problems]
        self._order, cycle = self._ordered()
        if cycle:
            problems.append(Problem(f"{cycle[0]}.when", f"conditions in a circle: {' -> '.join(cycle)}"))
        if problems:
            raise InvalidValue(problems)
        defaults = [knob.position(knob.default) or 0 for knob in self]
        self.defaults: Codes = np.array(defaults, dtype=np.int64) + 1

    def __hash__(self) -> int:
        return hash(tuple(self._at))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._at)

    def named(self, name: str) -> Knob | None:
        return self[self._at[name]] if name in self._at else None

    def without(self, name: str) -> KnobSet:
        """The knobs but for one, and for those whose conditions need it."""
        gone = {name}
        for at in self._order:
            condition = self._conditions.get(at)
            if condition is not None and gone & set(condition.names):
                gone.add(self[at].name)
        return KnobSet([knob for knob in self if knob.name not in gone])

    def reading(self, name: str, text: str) -> KnobValue:
        """The value of a knob that a text stands for; the text itself where it is none of them, or no knob's."""
        knob = self.named(name)
        places = [] if knob is None else [knob.position(value) for value in readings(text)]
        return next((knob.values[place] for place in places if knob and place is not None), text)

    @property
    def size(self) -> Knob | None:
        """The knob that sizes the job; None where all trials have all devices."""
        return next((knob for knob in self if knob.name in SIZES), None)

    @property
    def searched(self) -> tuple[Knob, ...]:
        """The others, whose values are combined with each layout."""
        return tuple(knob for knob in self if knob.name not in SIZES)

    def _domains(self) -> dict[str, Domain]:
        fields = {axis.name: Domain(axis.members or None) for axis in AXES}
        fields |= {axis.name: Domain((False, True)) for axis in AXES if axis.kind is bool}
        knobs = {knob.name: Domain(knob.values, first=1) for knob in self}
        return {**fields, **knobs, **{name: Domain() for name in SIZES}}

    def _clashes(self) -> Iterator[Problem]:
        if len(self) > MAX_KNOBS:
            yield Problem("", f"are {len(self)}, more than {MAX_KNOBS}")
        if all(name in self._at for name in SIZES):
            yield Problem("devices", "nodes and devices both size the job: name one of them")
        taken: dict[tuple[str, str], str] = {}
        for knob in self:
            for way in ("env", "config", "option"):
                if (delivery := getattr(knob, way)) is None:
                    continue
                if (first := taken.setdefault((way, delivery), knob.name)) != knob.name:
                    yield Problem(f"{knob.name}.{way}", f"{delivery} is set by the knob {first}, too")
            first_word = (knob.argument or "").replace("=", " ").split()[:1]
            for flag in first_word if knob.argument else ():
                if (first := taken.setdefault(("argument", flag), knob.name)) != knob.name:
                    yield Problem(f"{knob.name}.argument", f"{flag} is given by the knob {first}, too")

    def _ordered(self) -> tuple[tuple[int, ...], list[str]]:
        """The knobs with those that their conditions name before them, and a circle where there is one."""
        done: dict[int, None] = {}

        def visit(at: int, *path: int) -> list[str]:
            if at in path:
                return [self[one].name for one in (*path[path.index(at) :], at)]
            condition = None if at in done else self._conditions.get(at)
            for name in condition.names if condition else ():
                if name in self._at and (circle := visit(self._at[name], *path, at)):
                    return circle
            done[at] = None
            return []

        circles = [circle for at in range(len(self)) if (circle := visit(at))]
        return tuple(done), circles[0] if circles else []

    def _is_active(self, at: int, columns: Columns, codes: Codes, devices_per_node: int) -> BoolColumn:
        condition = self._conditions.get(at)
        if condition is None:
            return np.ones(len(codes), dtype=np.bool_)

        def column(name: str) -> Any:
            if name in SIZES:
                return _sizes(name, columns, devices_per_node)
            return codes[:, self._at[name]] if name in self._at else columns[name]

        return condition.holds(column, len(codes))

    def canonical(self, columns: Columns, codes: Codes, devices_per_node: int) -> Codes:
        """The codes with 0 where a knob is inactive, and each size as the layout has it. columns: of the layouts."""
        canonical = codes.copy()
        for at in self._order:
            if self[at].name in SIZES:
                canonical[:, at] = self._size_codes(at, columns, devices_per_node)
            else:
                active = self._is_active(at, columns, canonical, devices_per_node)
                canonical[:, at] = np.where(active, np.maximum(canonical[:, at], 1), 0)
        return canonical

    def _size_codes(self, at: int, columns: Columns, devices_per_node: int) -> IntColumn:
        knob = self[at]
        sizes = _sizes(knob.name, columns, devices_per_node)
        size_codes = np.zeros(len(sizes), dtype=np.int64)
        for place, value in enumerate(knob.values):
            size_codes[sizes == value] = place + 1
        return size_codes

    def default_codes(self, columns: Columns, devices_per_node: int) -> Codes:
        """Every active knob at its default, for each of the layouts."""
        codes = np.tile(self.defaults, (len(columns["tp"]), 1))
        return self.canonical(columns, codes, devices_per_node)

    def expand(
        self, columns: Columns, devices_per_node: int, knobs: Sequence[str] | None = None
    ) -> tuple[IntColumn, Codes]:
        """Every distinct assignment of the layouts: the position of its layout, and its codes. knobs: those whose
        values are tried, the others stay at their defaults; by default all."""
        index = np.arange(len(columns["tp"]))
        codes = np.tile(self.defaults, (len(index), 1))
        for at in self._order:
            if self[at].name in SIZES:
                codes[:, at] = self._size_codes(at, columns_at(columns, index), devices_per_node)
                continue
            active = self._is_active(at, columns_at(columns, index), codes, devices_per_node)
            codes[~active, at] = 0
            if knobs is None or self[at].name in knobs:
                many = len(self[at].values)
                times = np.where(active, many, 1)
                each = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
                moved = np.repeat(active, times)
                index, codes = np.repeat(index, times), np.repeat(codes, times, axis=0)
                codes[moved, at] = each[moved] + 1
        return index, codes

    def assignments(self, columns: Columns, devices_per_node: int) -> FloatColumn:
        """The number of distinct assignments of each layout; exact below 2^53. Raises InvalidValue where knobs that
        conditions name have too many combinations."""
        named = {name for condition in self._conditions.values() for name in condition.names if name in self._at}
        controlling = [knob.name for knob in self.searched if knob.name in named]
        spans = int(np.prod([float(len(self[self._at[name]].values)) for name in controlling]))
        if spans > MAX_CONTROLLING:
            problem = f"{', '.join(controlling)} stand in conditions of others, with {spans} combinations"
            raise InvalidValue([Problem("", f"{problem}: more than {MAX_CONTROLLING}")])
        count = len(columns["tp"])
        # Layouts that are alike in all that conditions name have as many; one of each is looked at.
        fields = [name for name in PLAN_FIELDS if self._named(name)]
        alike = np.stack([columns[name] for name in fields], axis=1) if fields else np.zeros((count, 1), dtype=np.int64)
        _, first, which = np.unique(alike, axis=0, return_index=True, return_inverse=True)
        some = columns_at(columns, first)
        index, codes = self.expand(some, devices_per_node, controlling)
        of_index = columns_at(some, index)
        ways = np.ones(len(index))
        for at, knob in enumerate(self):
            if knob.name not in controlling and knob.name not in SIZES:
                active = self._is_active(at, of_index, codes, devices_per_node)
                ways *= np.where(active, float(len(knob.values)), 1.0)
        total = np.bincount(index, weights=ways, minlength=len(first))
        return total[which.reshape(-1)].astype(np.float64)

    def _named(self, field_name: str) -> bool:
        sizes = field_name in ("tp", "pp", "cp", "dp")
        return any(
            field_name in condition.names or (sizes and any(name in condition.names for name in SIZES))
            for condition in self._conditions.values()
        )

    def draw(self, columns: Columns, devices_per_node: int, rng: np.random.Generator) -> Codes:
        """A random assignment for each of the layouts."""
        sizes = [len(knob.values) for knob in self]
        codes = rng.integers(1, np.array(sizes, dtype=np.int64) + 1, size=(len(columns["tp"]), len(sizes)))
        return self.canonical(columns, codes, devices_per_node)

    def known_codes(self, plans: Sequence[Plan]) -> Codes:
        """Of the plans' knobs; 0 for a value, or a whole knob, that is not among these."""
        codes = np.zeros((len(plans), len(self)), dtype=np.int64)
        for row, plan in enumerate(plans):
            for at, knob in enumerate(self):
                if knob.name in plan.knobs and (place := knob.position(plan.knobs[knob.name])) is not None:
                    codes[row, at] = place + 1
        return codes

    def codes_of(self, plans: Sequence[Plan]) -> Codes:
        """Of plans whose values are all among the knobs'. Raises KeyError for another value."""
        codes = self.known_codes(plans)
        for row, plan in zip(codes, plans, strict=True):
            for name, at in self._at.items():
                if name in plan.knobs and not row[at]:
                    raise KeyError(f"{name}={word(plan.knobs[name])}")
        return codes

    def values_of(self, codes: Sequence[int]) -> KnobValues:
        """The values that one row of codes stands for."""
        pairs = zip(self, codes, strict=True)
        return KnobValues({knob.name: knob.values[code - 1] for knob, code in pairs if code})

    def problems(self, columns: Columns, plan: Plan, devices_per_node: int) -> list[tuple[str, str]]:
        """What is wrong with the knobs of a plan, by knob. columns: of the plan alone."""
        problems, codes = [], self.known_codes([plan])
        for name, value in plan.knobs.items():
            knob = self.named(name)
            if knob is None:
                problems.append((name, f"{name} is no knob of the spec; {did_you_mean(name, self.names)}"))
            elif not codes[0, self._at[name]]:
                problems.append((name, f"{name}({word(value)}) is not among {listed(map(word, knob.values))}"))
        for at in self._order:
            knob, given = self[at], codes[0, at] > 0
            if knob.name in SIZES:
                own = int(self._size_codes(at, columns, devices_per_node)[0])
                if given and codes[0, at] != own:
                    devices = plan.world_size
                    problem = f"{knob.name}({word(plan.knobs[knob.name])}) does not go with a plan of {devices} devices"
                    problems.append((knob.name, problem))
                elif not given and knob.name not in plan.knobs:
                    problems.append((knob.name, f"{knob.name} has no value"))
                continue
            active = bool(self._is_active(at, columns, codes, devices_per_node)[0])
            if active and knob.name not in plan.knobs:
                problems.append((knob.name, f"{knob.name} has no value, and is active"))
            elif not active and given:
                value = word(plan.knobs[knob.name])
                problems.append((knob.name, f"{knob.name}({value}) is inactive: it needs {knob.when}"))
        return problems


NO_KNOBS = KnobSet()


def _sizes(name: str, columns: Columns, devices_per_node: int) -> IntColumn:
    """The devices, or the nodes, of each layout."""
    devices: IntColumn = columns["tp"] * columns["pp"] * columns["cp"] * columns["dp"]
    return devices if name == "devices" else -(-devices // devices_per_node)


def sized(cluster: ClusterSpec, plan: Plan) -> ClusterSpec:
    """The part of the cluster that the plan's job gets: all of it, unless a knob sizes the job."""
    if not any(name in plan.knobs for name in SIZES):
        return cluster
    devices, per_node = plan.world_size, cluster.devices_per_node
    if devices >= per_node:
        return replace(cluster, nodes=devices // per_node)
    if devices % cluster.devices_per_module == 0:
        return replace(cluster, nodes=1, devices_per_node=devices)
    # Parts of modules: what joins two devices of one is what joins any.
    return replace(cluster, nodes=1, devices_per_node=devices, devices_per_module=1, module_link=None)


def sizes_of(knobs: KnobSet, cluster: ClusterSpec) -> tuple[int, ...] | None:
    """The numbers of devices that jobs may have; None where every job has all of the cluster's. Raises InvalidValue."""
    knob = knobs.size
    if knob is None:
        return None
    checks, per_node = Checks(), cluster.devices_per_node
    unit = per_node if knob.name == "nodes" else 1
    devices = [int(value) * unit for value in knob.values]
    for many in devices:
        problem = f"{many // unit} {knob.name} are more than the cluster's {cluster.devices // unit}"
        checks.require(many <= cluster.devices, f"{knob.name}.values", problem)
        problem = f"{many} devices are no whole number of nodes of {per_node}"
        checks.require(many <= per_node or many % per_node == 0, f"{knob.name}.values", problem)
    checks.done()
    return tuple(devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobCount:
    """One knob of a space. layouts: those in which it may be active, of all legal ones. without: the legal plans of the
    space without it, and without the knobs whose conditions name it (`gone`)."""

    knob: Knob
    layouts: int
    without: int
    gone: tuple[str, ...]


def count_with_knobs(space: Space) -> list[KnobCount]:
    """Of each knob but the one that sizes the job. Raises SpaceTooLarge."""
    total, per_node = space.plans, space.context.cluster.devices_per_node
    counts = []
    for knob in space.knobs.searched:
        rest = space.knobs.without(knob.name)
        others = KnobSet([one for one in space.knobs if one.name in rest.names or one.name == knob.name])
        less = rest.assignments(space.columns, per_node)
        layouts = others.assignments(space.columns, per_node) > less if len(knob.values) > 1 else np.zeros(0, np.bool_)
        without = sum(map(int, less.tolist())) if rest.searched else len(space)
        gone = tuple(name for name in space.knobs.names if name not in rest.names and name != knob.name)
        counts.append(KnobCount(knob=knob, layouts=int(np.sum(layouts)), without=min(without, total), gone=gone))
    return counts
