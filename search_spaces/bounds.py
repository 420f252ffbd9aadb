"""The values that a space tries for each axis of a Plan: those that a spec bounds, and the defaults of the others."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from math import isqrt
from typing import Annotated, Any, ClassVar

from meshtune.search_spaces.checks import Checks, Limit, Listed, listed
from meshtune.search_spaces.columns import SpaceContext
from meshtune.search_spaces.plan import AXES, PLAN_FIELDS, Axis

# Of one value of a dimension; products of three (tp * pp * cp) fit numpy's int64.
MAX_VALUE = 1_000_000
DEFAULT_MICRO_BATCHES = (1, 2, 4, 8, 16)
DEFAULT_ACCUMULATIONS = (1, 2, 4, 8, 16, 32)
# Without bounds of its last two, these take no values of their own: each pipeline has the splits that suit it.
PIPELINE = ("pp", "vpp", "first_stage_less_layers", "last_stage_less_layers")


def _values_of(axis: Axis) -> tuple[str, Any, Any]:
    """The field of Bounds for an axis: name, type and default."""
    kind: Any = Annotated[int, Limit(axis.low, axis.high or MAX_VALUE)] if axis.kind is int else axis.kind
    values: Any = Annotated[tuple[kind, ...], Listed()]
    return axis.name, values | None if axis.tried is None else values, field(default=axis.tried)


_ValuesOfAxes: Any = make_dataclass(
    "_ValuesOfAxes", [_values_of(axis) for axis in AXES if axis.bounded], frozen=True, slots=True, kw_only=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds(_ValuesOfAxes):  # type: ignore[misc]  # one field for each bounded axis of a Plan
    """The values that each dimension may take. None: chosen from the model and the cluster (see `dimensions`).

    dp has no bounds, it follows from the devices; grad_accum_steps follows from a fixed global batch and may only be
    given where that is freed. Of first_stage_less_layers and last_stage_less_layers the one that is not given is 0
    where the other is. tp_across_nodes: let tensor parallel groups leave the node.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

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
            checks.require(len(set(values)) == len(values), axis.name, f"names a value twice: {listed(values)}")
            if axis.kind is int:
                high = MAX_VALUE if axis.high is None else axis.high
                for value in values:
                    limits = f"must be between {axis.low} and {high}, not {value}"
                    checks.require(axis.low <= value <= high, axis.name, limits)
        checks.done()


def dimensions(bounds: Bounds, context: SpaceContext) -> dict[str, tuple[Any, ...]]:
    """The values tried per dimension, with the defaults filled in: tp the divisors of a node's devices (of all where
    it may cross nodes), pp the divisors of the devices, micro_batch_size the powers of two up to 16 (and up to the
    global batch), grad_accum_steps, where it is free, the powers of two up to 32. Splits of a pipeline: even ones."""
    batch = context.global_batch_size
    tp_devices = context.devices if context.tp_across_nodes else (context.cluster.domain,)
    chosen: dict[str, tuple[Any, ...]] = {
        name: getattr(bounds, name) for name in PLAN_FIELDS if name not in ("dp", "grad_accum_steps")
    }
    chosen["tp"] = bounds.tp or divisors(*tp_devices)
    most_stages = context.model.layers if context.model.known else MAX_VALUE
    chosen["pp"] = bounds.pp or tuple(pp for pp in divisors(*context.devices) if pp <= most_stages)
    for name in PIPELINE[2:]:
        chosen[name] = getattr(bounds, name) or (0,)
    sizes = tuple(size for size in DEFAULT_MICRO_BATCHES if batch is None or size <= batch)
    chosen["micro_batch_size"] = bounds.micro_batch_size or sizes
    if batch is None:
        chosen["grad_accum_steps"] = bounds.grad_accum_steps or DEFAULT_ACCUMULATIONS
    return chosen


def divisors(*numbers: int) -> tuple[int, ...]:
    """Of any of the numbers, ascending."""
    small = [
        (number, divisor) for number in numbers for divisor in range(1, isqrt(number) + 1) if number % divisor == 0
    ]
    return tuple(sorted({part for number, divisor in small for part in (divisor, number // divisor)}))
