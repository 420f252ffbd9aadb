"""A Plan is one way to lay a training job over the devices: the unit that is proposed, run and compared.

A Plan checks only itself (positive degrees, known enums). Whether it is legal for a model on a cluster is the
business of `search_spaces.space`, which can say why not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from meshtune.search_spaces.checks import CLOSED, Checks
from meshtune.search_spaces.compat import StrEnum


class Recompute(StrEnum):
    """Which activations the backward pass computes again instead of keeping (Korthikanti et al. 2022)."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


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
    """How attention sees the whole sequence when each rank holds a slice of it.

    all_gather: of keys and values (Dubey et al. 2024); ulysses: all-to-all, heads for sequence (Jacobs et al. 2023);
    ring: keys and values pass from rank to rank (Liu et al. 2023).
    """

    ALL_GATHER = "all_gather"
    ULYSSES = "ulysses"
    RING = "ring"


_ENUMS: dict[str, type[StrEnum]] = {"recompute": Recompute, "schedule": Schedule, "context": ContextParallel}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One parallelism setting.

    tp, pp, dp, cp: tensor, pipeline, data and context parallel degrees; their product is the number of devices.
    ep: expert parallel degree, taken out of dp. vpp: model chunks per pipeline rank. micro_batch_size: sequences
    per forward pass and data-parallel replica. grad_accum_steps: micro-batches per optimizer step and replica
    (in a pipeline: the micro-batches in flight). zero_stage: 0 nothing, 1 optimizer state, 2 and gradients,
    3 and parameters are sharded over dp and cp (Rajbhandari et al. 2020). sequence_parallel: with tp, activations
    between the blocks are split along the sequence. recompute_interval: every so many-th layer recomputes. context:
    with cp, how attention sees the whole sequence.
    """

    __pydantic_config__: ClassVar[Any] = CLOSED

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    vpp: int = 1
    micro_batch_size: int = 1
    grad_accum_steps: int = 1
    zero_stage: int = 0
    recompute: Recompute = Recompute.NONE
    schedule: Schedule = Schedule.ONE_F_ONE_B
    sequence_parallel: bool = True
    recompute_interval: int = 1
    context: ContextParallel = ContextParallel.ALL_GATHER

    def __post_init__(self) -> None:
        checks = Checks()
        for field in fields(self):
            value = getattr(self, field.name)
            if (kind := _ENUMS.get(field.name)) is not None:
                object.__setattr__(self, field.name, checks.member(kind, field.name, value))
            elif field.name == "sequence_parallel":
                checks.require(isinstance(value, bool), field.name, f"must be true or false, not {value!r}")
            elif field.name == "zero_stage":
                if checks.whole(0, zero_stage=value):
                    checks.require(value <= 3, field.name, f"must be 0, 1, 2 or 3, not {value}")
            else:
                checks.whole(1, **{field.name: value})
        checks.done()

    @property
    def world_size(self) -> int:
        """Devices (= ranks) that the plan occupies."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step, over all replicas."""
        return self.micro_batch_size * self.grad_accum_steps * self.dp

    @property
    def key(self) -> str:
        """A short, canonical, reversible-by-eye name: equal plans have equal keys. Defaults are left out."""
        parts = [f"tp{self.tp}", f"pp{self.pp}", f"dp{self.dp}"]
        parts += [
            f"{name}{value}" for name, value in (("cp", self.cp), ("ep", self.ep), ("vpp", self.vpp)) if value > 1
        ]
        parts += [f"mbs{self.micro_batch_size}", f"ga{self.grad_accum_steps}", f"zero{self.zero_stage}"]
        if self.recompute is not Recompute.NONE:
            parts.append(f"recompute-{self.recompute}")
        if self.schedule is not Schedule.ONE_F_ONE_B:
            parts.append(str(self.schedule))
        if not self.sequence_parallel:
            parts.append("nosp")
        if self.recompute_interval > 1:
            parts.append(f"every{self.recompute_interval}")
        if self.context is not ContextParallel.ALL_GATHER:
            parts.append(str(self.context))
        return " ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, one per field; `Plan(**plan.as_dict()) == plan`."""
        return {name: str(value) if isinstance(value, StrEnum) else value for name, value in asdict(self).items()}


PLAN_FIELDS: tuple[str, ...] = tuple(field.name for field in fields(Plan))
