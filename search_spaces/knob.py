"""A knob: a setting of a training job beyond its layout, with how the job is told it and when it means anything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Annotated, Any, ClassVar

from meshtune.search_spaces.checks import Checks, Listed, StrEnum, did_you_mean, listed
from meshtune.search_spaces.knob_values import KNOB_NAME, KnobValue, is_number, same_value, unfit_value, word
from meshtune.search_spaces.plan import PLAN_FIELDS

MAX_VALUES = 64
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


# The knobs that size the job: of its nodes, or of its devices. They are told to nobody.
SIZES = ("nodes", "devices")
DEVICES_OVER_VALUE = "{devices/value}"
_WAYS = ("argument", "env", "config", "option")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One knob. Raises InvalidValue with the path of each mistake."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: str
    values: Annotated[tuple[KnobValue, ...], Listed()]
    # By default numeric where all values are numbers, else categorical.
    kind: KnobKind | None = None
    # The value that holds where nobody sets the knob; by default `omit`, else the first one, of a size the largest.
    default: KnobValue | None = None
    # The condition under which it is active; empty: always. See `search_spaces.conditions`.
    when: str = ""
    # How the job is told, one way at the most: words of its command line with {value} in them (and {devices/value}: how
    # often its devices have so many), the name of a variable, a dotted key of its configuration file ("FILE:KEY" where
    # it has several), an option of the built-in trainer.
    # None of them: the command has the placeholder {name}.
    argument: str | None = None
    env: str | None = None
    config: str | None = None
    option: str | None = None
    # The value with which the job is told nothing.
    omit: KnobValue | None = None
    # What the job is told in place of a value, by the value as a word.
    words: Mapping[str, str] = field(default_factory=dict)
    # The dotted field of the recipe (section `training`) that a value is, such as rollout.share: what physics expects.
    sets: str | None = None
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
        numbers = all(is_number(value) for value in self.values)
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
        problem = "must be lower-case letters, digits and _, a letter first, 40 at the most"
        checks.require(KNOB_NAME.fullmatch(self.name) is not None, "", problem)
        problem = f"{self.name} is a field of every plan: bound it in `space`"
        checks.require(self.name not in PLAN_FIELDS, "", problem)

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
                problem = f"{word(value)} is not among the values {listed(map(word, self.values))}"
                checks.require(any(same_value(value, one) for one in self.values), name, problem)
        for name, members in {"kind": KnobKind, "numerics": Numerics, **dict.fromkeys(EFFECTS, Direction)}.items():
            if (way := getattr(self, name)) is not None:
                checks.member(members, name, way)
        numbered = self.kind != KnobKind.NUMERIC or any(is_number(value) for value in self.values)
        checks.require(numbered, "kind", "numeric needs a number among the values")

    def _check_telling(self, checks: Checks) -> None:
        ways = [name for name in _WAYS if getattr(self, name) is not None]
        checks.require(len(ways) <= 1, "", f"is told in one way at the most, not by {' and '.join(ways)}")
        if self.name in SIZES:
            whole = all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in self.values)
            checks.require(whole, "values", "must be whole numbers of at least 1")
            problem = "sizes the job, and takes `values` and `default` alone"
            checks.require(not ways and not self.when and not self.words and self.omit is None, "", problem)
        if self.argument is not None:
            checks.require(bool(self.argument.split()), "argument", "must have a word")
            rest = self.argument.replace("{value}", "").replace(DEVICES_OVER_VALUE, "")
            told = f"has no other placeholder than {{value}} and {DEVICES_OVER_VALUE}"
            checks.require("{" not in rest and "}" not in rest, "argument", told)
            problem = f"without {{value}} only one value is told: give `omit`, not {listed(map(word, self.values))}"
            flag = "{value}" in self.argument or len(self.values) - (self.omit is not None) <= 1
            checks.require(flag, "argument", problem)
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

    def arguments(self, value: KnobValue, devices: int = 1) -> list[str]:
        """The words of the command line for a value, of a knob that is told by an argument. devices: of the job."""
        delivered = self.told(value)
        if delivered is None or self.argument is None:
            return []
        share = devices // max(1, value) if isinstance(value, int) else devices
        argument = self.argument.replace(DEVICES_OVER_VALUE, str(share))
        return [part.replace("{value}", word(delivered)) for part in argument.split()]

    def in_recipe(self, value: KnobValue) -> dict[str, Any]:
        """The value as a document of the recipe has it; empty where the knob sets none of its fields."""
        *outer, last = (self.sets or "").split(".")
        return reduce(lambda below, name: {name: below}, reversed(outer), {last: value}) if self.sets else {}

    def declared(self, effect: str) -> int:
        """The sign of a declared effect; 0 where none was declared."""
        return {None: 0, Direction.LESS: -1, Direction.MORE: 1}[getattr(self, effect)]


EFFECTS = ("memory", "compute", "communication")
