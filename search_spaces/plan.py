"""A Plan is one way to lay a training job over the devices, with the values of its active knobs: the unit that is
proposed, run and compared.

A Plan checks only itself (positive degrees, known enums). Whether it is legal for a model on a cluster is the
business of `search_spaces.space`, which can say why not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar

from meshtune.search_spaces.checks import MAX_WHOLE, Checks, StrEnum
from meshtune.search_spaces.knob_values import KNOB_NAME, KnobValue, KnobValues, unfit_value, word


class Recompute(StrEnum):
    """Activations that the backward pass computes again instead of keeping them (Korthikanti et al. 2022)."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Selective(StrEnum):
    """What selective recomputation computes again.

    products: what is cheap (norms, activation functions, rotations, casts); results of matrix products and of attention
    are kept. attention: core attention alone; all else is kept (Korthikanti et al. 2022, section 5, as in Megatron-LM).
    half_products: as products, and every second matrix product with a weight (torchtitan)."""

    PRODUCTS = "products"
    ATTENTION = "attention"
    HALF_PRODUCTS = "half_products"


# Of tokens, in which the built-in trainer computes its loss where nobody says otherwise.
LOSS_CHUNKS = 8


class Schedule(StrEnum):
    """The order of forward and backward micro-batches in a pipeline.

    interleaved: Narayanan et al. 2021; zero_bubble (ZB1P) and zbv (ZB-V): Qi et al. 2023.
    """

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero_bubble"
    ZBV = "zbv"

    @property
    def interleaves(self) -> bool:
        """True when a pipeline rank holds more than one model chunk (vpp > 1)."""
        return self in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE, Schedule.ZBV)

    @property
    def splits_backward(self) -> bool:
        """True when gradients of inputs and of weights are computed in passes of their own."""
        return self in (Schedule.ZERO_BUBBLE, Schedule.ZBV)


class ContextParallel(StrEnum):
    """The way in which attention sees the whole sequence when each rank holds a slice of it.

    all_gather: of keys and values (Dubey et al. 2024); ulysses: all-to-all, heads for sequence (Jacobs et al. 2023);
    ring: keys and values pass from rank to rank (Liu et al. 2023).
    """

    ALL_GATHER = "all_gather"
    ULYSSES = "ulysses"
    RING = "ring"


# More than any model has.
_MOST_LAYERS = 1_000_000


def _axis(default: Any, key: str, words: str, description: str, **more: Any) -> Any:
    """A field whose metadata are fields of `Axis`. tried: None where a space chooses the values, else the default."""
    return field(default=default, metadata={"key": key, "words": words, "description": description, **more})


def _describe(schema: dict[str, Any]) -> None:
    """Puts the axes' descriptions and limits into the JSON schema of a Plan."""
    for axis in AXES:
        entry = schema["properties"][axis.name]
        entry.setdefault("description", axis.description)
        if axis.kind is int:
            entry |= {"minimum": axis.low, "maximum": axis.high or MAX_WHOLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One parallelism setting, and the values of the active knobs beside it (`search_spaces.knobs`)."""

    # Each field but `knobs` declares an axis: `AXES` lists them for the space, its bounds, search, store, API and page.
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "json_schema_extra": _describe}

    tp: int = _axis(1, "tp{}", "tensor", "tensor parallel degree", always_in_key=True, tried=None)
    pp: int = _axis(1, "pp{}", "pipeline", "pipeline parallel degree", always_in_key=True, tried=None)
    dp: int = _axis(
        1, "dp{}", "data", "data parallel degree; tp * pp * cp * dp = devices", always_in_key=True, bounded=False
    )
    cp: int = _axis(1, "cp{}", "context", "context parallel degree")
    ep: int = _axis(1, "ep{}", "experts", "expert parallel degree, taken out of dp; with etp out of tp, cp and dp")
    etp: int = _axis(
        0,
        "etp{}",
        "expert tensor",
        "tensor parallel degree of the experts, whose ranks etp and ep take out of tp, cp and dp (Liu et al. 2025, "
        "parallel folding); 0: that of all else, tp",
        low=0,
    )
    vpp: int = _axis(1, "vpp{}", "chunks", "model chunks per pipeline rank")
    first_stage_less_layers: int = _axis(
        0,
        "first-{}",
        "first stage less",
        "layers that the first chunk of the pipeline holds fewer than those between, for the embedding; negative: more",
        low=-_MOST_LAYERS,
        tried=None,
    )
    last_stage_less_layers: int = _axis(
        0,
        "last-{}",
        "last stage less",
        "layers that the last chunk of the pipeline holds fewer than those between, for the head; negative: more",
        low=-_MOST_LAYERS,
        tried=None,
    )
    micro_batch_size: int = _axis(
        1, "mbs{}", "micro-batch", "sequences per forward pass of a replica", always_in_key=True, tried=None
    )
    grad_accum_steps: int = _axis(
        1, "ga{}", "accumulation", "micro-batches per optimizer step of a replica", always_in_key=True, tried=None
    )
    zero_stage: int = _axis(
        0,
        "zero{}",
        "ZeRO",
        "sharded over dp and cp: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters "
        "(Rajbhandari et al. 2020)",
        always_in_key=True,
        low=0,
        high=3,
        tried=(0, 1, 2, 3),
    )
    zero_group: int = _axis(
        0,
        "group{}",
        "ZeRO group",
        "ranks next to each other that ZeRO shards over, each such group being a replica of the others (hybrid "
        "sharding, Zhao et al. 2023); 0: all of dp * cp",
        low=0,
    )
    recompute: Recompute = _axis(  # noqa: RUF009  # it is a field
        Recompute.NONE, "recompute-{}", "recompute", "activations that the backward pass computes again"
    )
    schedule: Schedule = _axis(  # noqa: RUF009  # it is a field
        Schedule.ONE_F_ONE_B, "{}", "schedule", "order of forward and backward micro-batches in a pipeline"
    )
    sequence_parallel: bool = _axis(
        True, "nosp", "sequence parallel", "with tp, activations between the blocks are split along the sequence"
    )
    recompute_interval: int = _axis(1, "every{}", "recompute every", "every so many-th layer recomputes")
    context: ContextParallel = _axis(  # noqa: RUF009  # it is a field
        ContextParallel.ALL_GATHER, "{}", "attention", "with cp, how attention sees the whole sequence"
    )
    knobs: Mapping[str, KnobValue] = field(default_factory=KnobValues)

    def __post_init__(self) -> None:
        checks = Checks()
        for axis in AXES:
            value = getattr(self, axis.name)
            if axis.members:
                object.__setattr__(self, axis.name, checks.member(axis.kind, axis.name, value))
            elif axis.kind is bool:
                checks.require(isinstance(value, bool), axis.name, f"must be true or false, not {value!r}")
            elif checks.whole(axis.low, **{axis.name: value}) and axis.high is not None:
                numbers = [str(number) for number in range(axis.low, axis.high + 1)]
                listed = f"{', '.join(numbers[:-1])} or {numbers[-1]}"
                checks.require(value <= axis.high, axis.name, f"must be {listed}, not {value}")
        for name, value in self.knobs.items():
            fit = KNOB_NAME.fullmatch(name) is not None and name not in PLAN_FIELDS
            checks.require(fit, f"knobs.{name}", "is no name of a knob: letters, digits and _, and no field of a plan")
            checks.require(not (unfit := unfit_value(value)), f"knobs.{name}", unfit)
        checks.done()
        if not isinstance(self.knobs, KnobValues):
            object.__setattr__(self, "knobs", KnobValues(self.knobs))

    @property
    def world_size(self) -> int:
        """Devices (= ranks) that the plan occupies."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def expert_tp(self) -> int:
        """The tensor parallel degree of the experts."""
        return self.etp or self.tp

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step, over all replicas."""
        return self.micro_batch_size * self.grad_accum_steps * self.dp

    @property
    def key(self) -> str:
        """A short, canonical name: equal plans have equal keys. Defaults are left out, except of the main axes and of
        knobs, which stand at the end as name=value."""
        values = ((axis, getattr(self, axis.name)) for axis in AXES)
        layout = [axis.key.format(value) for axis, value in values if axis.always_in_key or value != axis.default]
        return " ".join([*layout, *(f"{name}={word(value)}" for name, value in self.knobs.items())])

    @property
    def layout(self) -> Plan:
        """The same plan without knobs."""
        return replace(self, knobs=KnobValues()) if self.knobs else self

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, one per field; `Plan(**plan.as_dict()) == plan`."""
        return self.axes_as_dict() | {"knobs": dict(self.knobs)}

    def axes_as_dict(self) -> dict[str, Any]:
        """Plain JSON values of the axes alone."""
        values = ((name, getattr(self, name)) for name in PLAN_FIELDS)
        return {name: str(value) if isinstance(value, StrEnum) else value for name, value in values}


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One field of Plan."""

    name: str
    # int, bool or an enumeration of words.
    kind: Any
    default: Any
    # How a value stands in a plan's key, as a format of it.
    key: str
    # The name that tables, charts and reports show.
    words: str
    description: str
    # The words of an enumeration, in order; empty for a number or a truth value.
    members: tuple[StrEnum, ...]
    # The values of a space whose bounds name none; None: chosen from the model and the cluster.
    tried: tuple[Any, ...] | None
    # A space bounds the axis, else its value follows from the others.
    bounded: bool = True
    # The key holds the default value, too.
    always_in_key: bool = False
    # Limits of a number; high None: the largest whole number of all.
    low: int = 1
    high: int | None = None

    @property
    def is_factor(self) -> bool:
        """True for a degree or a size, a number from 1 up: what counts is its ratio to another one."""
        return self.kind is int and self.low > 0


def _axis_of(each: Field[Any]) -> Axis:
    kind = type(each.default)
    members = tuple(kind) if issubclass(kind, StrEnum) else ()
    derived = {"name": each.name, "kind": kind, "default": each.default, "members": members, "tried": (each.default,)}
    return Axis(**{**derived, **each.metadata})


# Every field but `knobs`, which has no fixed names.
AXES: tuple[Axis, ...] = tuple(_axis_of(each) for each in fields(Plan) if each.metadata)
PLAN_FIELDS: tuple[str, ...] = tuple(axis.name for axis in AXES)
