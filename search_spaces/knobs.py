"""Knobs: settings of a training job beyond its layout, with how the job is told them and when they mean anything.

A knob whose condition is false is inactive and has no value, so two plans that differ in nothing active are one. The
layout is enumerated (`search_spaces.space`); values of knobs are combined with it, counted, and never enumerated all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.checks import CLOSED, Checks, InvalidValue, Problem, StrEnum, did_you_mean, listed
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import BoolColumn, Columns, FloatColumn, IntColumn
from meshtune.search_spaces.columns import rows as columns_at
from meshtune.search_spaces.conditions import Condition, Domain, parse_condition
from meshtune.search_spaces.knob_values import KNOB_NAME, KnobValue, KnobValues, readings, same_value, unfit_value, word
from meshtune.search_spaces.plan import AXES, PLAN_FIELDS, Plan

# One row per plan, one column per knob: the position of its value from 1 on, 0 where it is inactive.
Codes = npt.NDArray[np.int64]
MAX_VALUES = 64
MAX_KNOBS = 64
# Combinations of the knobs that others' conditions name, see `KnobSet.assignments`.
MAX_CONTROLLING = 100_000
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


class KnobKind(StrEnum):
    """How values of a knob are like each other: not at all, in their order, or as numbers."""

    CATEGORICAL = "categorical"
    ORDERED = "ordered"
    NUMERIC = "numeric"


class Numerics(StrEnum):
    """Whether the job computes the same with every value, up to rounding."""

    SAME = "same"
    CHANGES = "changes"


class Direction(StrEnum):
    """A declared effect: of values above the default of a numeric or ordered knob, of every other value else."""

    LESS = "less"
    MORE = "more"

    @property
    def sign(self) -> int:
        return -1 if self is Direction.LESS else 1


# The knobs that size the job: of its nodes, or of its devices. They are told to nobody.
SIZES = ("nodes", "devices")
_WAYS = ("argument", "env", "config", "option")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One knob. Raises InvalidValue with the path of each mistake."""

    __pydantic_config__: ClassVar[Any] = CLOSED

    name: str
    values: tuple[KnobValue, ...]
    # By default numeric where all values are numbers, else categorical.
    kind: KnobKind | None = None
    # The value that holds where nobody sets the knob; by default `omit`, else the first one, of a size the largest.
    default: KnobValue | None = None
    # The condition under which it is active; empty: always. See `search_spaces.conditions`.
    when: str = ""
    # How the job is told, one way at the most: words of its command line with {value} in them, the name of a variable,
    # a dotted key of its configuration file ("FILE:KEY" where it has several), an option of the built-in trainer.
    # None of them: the command has the placeholder {name}.
    argument: str | None = None
    env: str | None = None
    config: str | None = None
    option: str | None = None
    # The value with which the job is told nothing.
    omit: KnobValue | None = None
    # What the job is told in place of a value, by the value as a word.
    words: Mapping[str, str] = field(default_factory=dict)
    numerics: Numerics = Numerics.SAME
    memory: Direction | None = None
    compute: Direction | None = None
    communication: Direction | None = None
    # For people.
    meaning: str = ""
    source: str = ""
    versions: str = ""
    risk: str = ""

    def __post_init__(self) -> None:
        checks = Checks()
        self._check_name(checks)
        self._check_values(checks)
        checks.done()
        numbers = all(_is_number(value) for value in self.values)
        default = max(self.values) if self.name in SIZES else self.values[0] if self.omit is None else self.omit
        derived = {
            "kind": KnobKind(self.kind or (KnobKind.NUMERIC if numbers else KnobKind.CATEGORICAL)),
            "default": default if self.default is None else self.default,
            "numerics": Numerics(self.numerics),
            **{name: None if (way := getattr(self, name)) is None else Direction(way) for name in EFFECTS},
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        self._check_telling(checks)
        checks.done()

    def _check_name(self, checks: Checks) -> None:
        told = "must be lower-case letters, digits and _, a letter first, 40 at the most"
        checks.require(KNOB_NAME.fullmatch(self.name) is not None, "", told)
        told = f"{self.name} is a field of every plan: bound it in `space`"
        checks.require(self.name not in PLAN_FIELDS, "", told)

    def _check_values(self, checks: Checks) -> None:
        checks.require(bool(self.values), "values", "must name at least one value")
        checks.require(len(self.values) <= MAX_VALUES, "values", f"are {len(self.values)}, more than {MAX_VALUES}")
        for value in self.values:
            checks.require(not (unfit := unfit_value(value)), "values", unfit)
        earlier = ((value, self.values[:at]) for at, value in enumerate(self.values))
        twice = [word(value) for value, others in earlier if any(same_value(value, other) for other in others)]
        checks.require(not twice, "values", f"name a value twice: {listed(twice)}")
        for name in ("default", "omit"):
            if (value := getattr(self, name)) is not None:
                told = f"{word(value)} is not among the values {listed(map(word, self.values))}"
                checks.require(any(same_value(value, one) for one in self.values), name, told)
        for key, way, members in (("kind", self.kind, KnobKind), ("numerics", self.numerics, Numerics)):
            if way is not None:
                checks.member(members, key, way)
        for name in EFFECTS:
            if (way := getattr(self, name)) is not None:
                checks.member(Direction, name, way)
        numbered = self.kind != KnobKind.NUMERIC or any(_is_number(value) for value in self.values)
        checks.require(numbered, "kind", "numeric needs a number among the values")

    def _check_telling(self, checks: Checks) -> None:
        ways = [name for name in _WAYS if getattr(self, name) is not None]
        checks.require(len(ways) <= 1, "", f"is told in one way at the most, not by {' and '.join(ways)}")
        if self.name in SIZES:
            whole = all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in self.values)
            checks.require(whole, "values", "must be whole numbers of at least 1")
            told = "sizes the job, and takes `values` and `default` alone"
            checks.require(not ways and not self.when and not self.words and self.omit is None, "", told)
        if self.argument is not None:
            checks.require(bool(self.argument.split()), "argument", "must have a word")
            rest = self.argument.replace("{value}", "")
            checks.require("{" not in rest and "}" not in rest, "argument", "has no other placeholder than {value}")
            told = f"without {{value}} only one value is told: give `omit`, not {listed(map(word, self.values))}"
            flag = "{value}" in self.argument or len(self.values) - (self.omit is not None) <= 1
            checks.require(flag, "argument", told)
        if self.env is not None:
            checks.require(_ENV.fullmatch(self.env) is not None, "env", f"{self.env!r} is no name of a variable")
        if self.config is not None:
            checks.require(all(self.config.rpartition(":")[2].split(".")), "config", "must be a dotted key")
        known = {word(value) for value in self.values}
        for text in self.words:
            checks.require(text in known, f"words.{text}", f"is no value; {did_you_mean(text, known)}")

    @property
    def way(self) -> str:
        """How the job is told: one of argument, env, config, option, size and placeholder."""
        if self.name in SIZES:
            return "size"
        return next((name for name in _WAYS if getattr(self, name) is not None), "placeholder")

    def position(self, value: Any) -> int | None:
        """The place of a value among the values, None for none of them."""
        return next((at for at, one in enumerate(self.values) if same_value(one, value)), None)

    def told(self, value: KnobValue) -> KnobValue | None:
        """What the job is told for a value: one of `words`, else the value itself; None where it is told nothing."""
        if self.omit is not None and same_value(value, self.omit):
            return None
        return self.words.get(word(value), value)

    def arguments(self, value: KnobValue) -> list[str]:
        """The words of the command line for a value, of a knob that is told by an argument."""
        told = self.told(value)
        if told is None or self.argument is None:
            return []
        return [part.replace("{value}", word(told)) for part in self.argument.split()]

    def declared(self, effect: str) -> int:
        """The sign of a declared effect; 0 where none was declared."""
        way: Direction | None = getattr(self, effect)
        return 0 if way is None else way.sign


EFFECTS = ("memory", "compute", "communication")


class KnobSet(Sequence[Knob]):
    """The knobs of one space, in the order given. Raises InvalidValue with every mistake, by the knob's name."""

    def __init__(self, knobs: Sequence[Knob] = ()) -> None:
        self._knobs = tuple(knobs)
        self._at = {knob.name: at for at, knob in enumerate(self._knobs)}
        self._conditions: dict[int, Condition] = {}
        problems = list(self._clashes())
        for at, knob in enumerate(self._knobs):
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
        defaults = [knob.position(knob.default) or 0 for knob in self._knobs]
        self.defaults: Codes = np.array(defaults, dtype=np.int64) + 1

    def __len__(self) -> int:
        return len(self._knobs)

    def __getitem__(self, at: Any) -> Any:
        return self._knobs[at]

    def __iter__(self) -> Iterator[Knob]:
        return iter(self._knobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KnobSet) and self._knobs == other._knobs

    def __hash__(self) -> int:
        return hash(tuple(self._at))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._at)

    def named(self, name: str) -> Knob | None:
        return self._knobs[self._at[name]] if name in self._at else None

    def without(self, name: str) -> KnobSet:
        """The knobs but for one, and for those whose conditions need it."""
        gone = {name}
        for at in self._order:
            condition = self._conditions.get(at)
            if condition is not None and gone & set(condition.names):
                gone.add(self._knobs[at].name)
        return KnobSet([knob for knob in self._knobs if knob.name not in gone])

    def reading(self, name: str, text: str) -> KnobValue:
        """The value of a knob that a text stands for; the text itself where it is none of them, or no knob's."""
        knob = self.named(name)
        places = [] if knob is None else [knob.position(value) for value in readings(text)]
        return next((knob.values[place] for place in places if knob and place is not None), text)

    def default_of(self, name: str) -> KnobValue | None:
        """The default of the knob of that name; None for no such knob."""
        return self._knobs[self._at[name]].default if name in self._at else None

    @property
    def size(self) -> Knob | None:
        """The knob that sizes the job; None where all trials have all devices."""
        return next((knob for knob in self._knobs if knob.name in SIZES), None)

    @property
    def searched(self) -> tuple[Knob, ...]:
        """The others, whose values are combined with each layout."""
        return tuple(knob for knob in self._knobs if knob.name not in SIZES)

    def _domains(self) -> dict[str, Domain]:
        fields = {axis.name: Domain(axis.members or None) for axis in AXES}
        fields |= {axis.name: Domain((False, True)) for axis in AXES if axis.kind is bool}
        knobs = {knob.name: Domain(knob.values, first=1) for knob in self._knobs}
        return {**fields, **knobs, **{name: Domain() for name in SIZES}}

    def _clashes(self) -> Iterator[Problem]:
        if len(self._knobs) > MAX_KNOBS:
            yield Problem("", f"are {len(self._knobs)}, more than {MAX_KNOBS}")
        if all(name in self._at for name in SIZES):
            yield Problem("devices", "nodes and devices both size the job: name one of them")
        taken: dict[tuple[str, str], str] = {}
        for knob in self._knobs:
            for way in ("env", "config", "option"):
                if (told := getattr(knob, way)) is None:
                    continue
                if (first := taken.setdefault((way, told), knob.name)) != knob.name:
                    yield Problem(f"{knob.name}.{way}", f"{told} is set by the knob {first}, too")
            first_word = (knob.argument or "").replace("=", " ").split()[:1]
            for flag in first_word if knob.argument else ():
                if (first := taken.setdefault(("argument", flag), knob.name)) != knob.name:
                    yield Problem(f"{knob.name}.argument", f"{flag} is given by the knob {first}, too")

    def _ordered(self) -> tuple[tuple[int, ...], list[str]]:
        """The knobs with those that their conditions name before them, and a circle where there is one."""
        done: dict[int, None] = {}
        path: list[int] = []
        circle: list[str] = []

        def visit(at: int) -> None:
            if at in done or circle:
                return
            if at in path:
                circle.extend(self._knobs[one].name for one in [*path[path.index(at) :], at])
                return
            path.append(at)
            condition = self._conditions.get(at)
            for name in condition.names if condition else ():
                if name in self._at:
                    visit(self._at[name])
            path.pop()
            done[at] = None

        for at in range(len(self._knobs)):
            visit(at)
        return tuple(done), circle

    def _is_active(self, at: int, columns: Columns, codes: Codes, devices_per_node: int) -> BoolColumn:
        condition = self._conditions.get(at)
        if condition is None:
            return np.ones(len(codes), dtype=np.bool_)

        def column(name: str) -> Any:
            if name in SIZES:
                devices = columns["tp"] * columns["pp"] * columns["cp"] * columns["dp"]
                return devices if name == "devices" else -(-devices // devices_per_node)
            return codes[:, self._at[name]] if name in self._at else columns[name]

        return condition.holds(column, len(codes))

    def canonical(self, columns: Columns, codes: Codes, devices_per_node: int) -> Codes:
        """The codes with 0 where a knob is inactive, and each size as the layout has it. columns: of the layouts."""
        found = codes.copy()
        for at in self._order:
            if self._knobs[at].name in SIZES:
                found[:, at] = self._size_codes(at, columns, devices_per_node)
            else:
                active = self._is_active(at, columns, found, devices_per_node)
                found[:, at] = np.where(active, np.maximum(found[:, at], 1), 0)
        return found

    def _size_codes(self, at: int, columns: Columns, devices_per_node: int) -> IntColumn:
        knob = self._knobs[at]
        devices = columns["tp"] * columns["pp"] * columns["cp"] * columns["dp"]
        sizes = devices if knob.name == "devices" else -(-devices // devices_per_node)
        found = np.zeros(len(sizes), dtype=np.int64)
        for place, value in enumerate(knob.values):
            found[sizes == value] = place + 1
        return found

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
            if self._knobs[at].name in SIZES:
                codes[:, at] = self._size_codes(at, columns_at(columns, index), devices_per_node)
                continue
            active = self._is_active(at, columns_at(columns, index), codes, devices_per_node)
            codes[~active, at] = 0
            if knobs is None or self._knobs[at].name in knobs:
                many = len(self._knobs[at].values)
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
        spans = int(np.prod([float(len(self._knobs[self._at[name]].values)) for name in controlling]))
        if spans > MAX_CONTROLLING:
            told = f"{', '.join(controlling)} stand in conditions of others, with {spans} combinations"
            raise InvalidValue([Problem("", f"{told}: more than {MAX_CONTROLLING}")])
        count = len(columns["tp"])
        # Layouts that are alike in all that conditions name have as many; one of each is looked at.
        fields = [name for name in PLAN_FIELDS if self._named(name)]
        alike = np.stack([columns[name] for name in fields], axis=1) if fields else np.zeros((count, 1), dtype=np.int64)
        _, first, which = np.unique(alike, axis=0, return_index=True, return_inverse=True)
        some = columns_at(columns, first)
        index, codes = self.expand(some, devices_per_node, controlling)
        of_index = columns_at(some, index)
        ways = np.ones(len(index))
        for at, knob in enumerate(self._knobs):
            if knob.name not in controlling and knob.name not in SIZES:
                active = self._is_active(at, of_index, codes, devices_per_node)
                ways *= np.where(active, float(len(knob.values)), 1.0)
        total = np.bincount(index, weights=ways, minlength=len(first))
        found: FloatColumn = total[which.reshape(-1)].astype(np.float64)
        return found

    def _named(self, field_name: str) -> bool:
        sizes = field_name in ("tp", "pp", "cp", "dp")
        return any(
            field_name in condition.names or (sizes and any(name in condition.names for name in SIZES))
            for condition in self._conditions.values()
        )

    def draw(self, columns: Columns, devices_per_node: int, rng: np.random.Generator) -> Codes:
        """A random assignment for each of the layouts."""
        sizes = [len(knob.values) for knob in self._knobs]
        codes = rng.integers(1, np.array(sizes, dtype=np.int64) + 1, size=(len(columns["tp"]), len(sizes)))
        return self.canonical(columns, codes, devices_per_node)

    def codes_of(self, plans: Sequence[Plan]) -> Codes:
        """Of plans whose values are all among the knobs'. Raises KeyError for another value."""
        codes = np.zeros((len(plans), len(self._knobs)), dtype=np.int64)
        for row, plan in enumerate(plans):
            for name, value in plan.knobs.items():
                if name in self._at:
                    at = self._at[name]
                    place = self._knobs[at].position(value)
                    if place is None:
                        raise KeyError(f"{name}={word(value)}")
                    codes[row, at] = place + 1
        return codes

    def values_of(self, codes: Sequence[int]) -> KnobValues:
        """The values that one row of codes stands for."""
        pairs = zip(self._knobs, codes, strict=True)
        return KnobValues({knob.name: knob.values[code - 1] for knob, code in pairs if code})

    def problems(self, columns: Columns, plan: Plan, devices_per_node: int) -> list[tuple[str, str]]:
        """What is wrong with the knobs of a plan, by knob. columns: of the plan alone."""
        found = []
        codes = np.zeros((1, len(self._knobs)), dtype=np.int64)
        for name, value in plan.knobs.items():
            knob = self.named(name)
            if knob is None:
                found.append((name, f"{name} is no knob of the spec; {did_you_mean(name, self.names)}"))
            elif (place := knob.position(value)) is None:
                found.append((name, f"{name}({word(value)}) is not among {listed(map(word, knob.values))}"))
            else:
                codes[0, self._at[name]] = place + 1
        for at in self._order:
            knob, given = self._knobs[at], codes[0, at] > 0
            if knob.name in SIZES:
                own = int(self._size_codes(at, columns, devices_per_node)[0])
                if given and codes[0, at] != own:
                    devices = plan.world_size
                    told = f"{knob.name}({word(plan.knobs[knob.name])}) does not go with a plan of {devices} devices"
                    found.append((knob.name, told))
                elif not given and knob.name not in plan.knobs:
                    found.append((knob.name, f"{knob.name} has no value"))
                continue
            active = bool(self._is_active(at, columns, codes, devices_per_node)[0])
            if active and knob.name not in plan.knobs:
                found.append((knob.name, f"{knob.name} has no value, and is active"))
            elif not active and given:
                value = word(plan.knobs[knob.name])
                found.append((knob.name, f"{knob.name}({value}) is inactive: it needs {knob.when}"))
        return found


NO_KNOBS = KnobSet()


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
        told = f"{many // unit} {knob.name} are more than the cluster's {cluster.devices // unit}"
        checks.require(many <= cluster.devices, f"{knob.name}.values", told)
        told = f"{many} devices are no whole number of nodes of {per_node}"
        checks.require(many <= per_node or many % per_node == 0, f"{knob.name}.values", told)
    checks.done()
    return tuple(devices)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
