"""The trainer's job file (`job.json`, version 1): everything one profiling run needs. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

from meshtune.runners.json_files import read_versioned, render_versioned
from meshtune.runners.measuring import is_tight
from meshtune.search_spaces.checks import CLOSED, Checks
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.compat import StrEnum
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute, Schedule

JOB_FILE = "job.json"
JOB_VERSION = 1


class JobMalformed(ValueError):
    """The job file breaks the contract; the message names the field."""


class Dtype(StrEnum):
    """The number format of weights and activations."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Router(StrEnum):
    """Who sends tokens to experts: the model, or a fixed rule that gives every expert equally many."""

    LEARNED = "learned"
    BALANCED = "balanced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How long to measure. Warm-up is dropped: the steps until step times settle, at most max_warmup_steps of them.
    Then steps are timed until the 95 % interval of their median lies within +- precision (relative), at least min_steps
    and at most max_steps of them; after max_seconds of timed steps min_steps are enough. profile_steps: how many steps
    are taken apart afterwards. loss_steps: how many of the first losses to report. stall_s: a rank that finishes no
    step for so long gives up."""

    __pydantic_config__: ClassVar[Any] = CLOSED

    max_warmup_steps: int = 10
    min_steps: int = 6
    max_steps: int = 30
    max_seconds: float = 60.0
    precision: float = 0.03
    profile_steps: int = 5
    loss_steps: int = 4
    stall_s: float = 120.0

    def __post_init__(self) -> None:
        checks = Checks()
        checks.at_least(
            0, max_warmup_steps=self.max_warmup_steps, profile_steps=self.profile_steps, loss_steps=self.loss_steps
        )
        checks.at_least(1, min_steps=self.min_steps)
        checks.require(self.stall_s > 0, "stall_s", f"must be positive, not {self.stall_s}")
        checks.require(self.max_seconds > 0, "max_seconds", f"must be positive, not {self.max_seconds}")
        checks.require(0 < self.precision < 1, "precision", f"must lie between 0 and 1, not {self.precision}")
        checks.require(
            self.max_steps >= self.min_steps,
            "max_steps",
            f"max_steps({self.max_steps}) is below min_steps({self.min_steps})",
        )
        checks.done()

    def enough(self, step_times_s: Sequence[float]) -> bool:
        """Whether these timed steps are all that are wanted."""
        if len(step_times_s) < self.min_steps:
            return False
        spent = len(step_times_s) >= self.max_steps or sum(step_times_s) >= self.max_seconds
        return spent or is_tight(step_times_s, self.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One profiling run of `model` under `plan`.

    memory_limit_bytes: on CPU, the cap each rank sets on itself. peak_flops: FLOP/s of one device in `dtype`, where
    known, for MFU. incumbent_step_time_s: the run stops as PRUNED once it is surely slower than this; best the upper
    end of the incumbent's interval, scaled to this plan's tokens per step."""

    __pydantic_config__: ClassVar[Any] = CLOSED

    name: str
    model: ModelSpec
    plan: Plan
    device: DeviceKind = DeviceKind.CPU
    dtype: Dtype = Dtype.FLOAT32
    learning_rate: float = 1e-3
    seed: int = 0
    router: Router = Router.LEARNED
    memory_limit_bytes: int | None = None
    peak_flops: float | None = None
    incumbent_step_time_s: float | None = None
    measuring: Measuring = field(default_factory=Measuring)

    def __post_init__(self) -> None:
        checks = Checks()
        for name in ("peak_flops", "incumbent_step_time_s"):
            value = getattr(self, name)
            checks.require(value is None or 0 < value < inf, name, f"must be positive, not {value}")
        checks.done()
        object.__setattr__(self, "device", DeviceKind(self.device))
        object.__setattr__(self, "dtype", Dtype(self.dtype))
        object.__setattr__(self, "router", Router(self.router))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactPeak:
    """What the tensors of one rank of a job take at most, as `trainer.exact` finds it."""

    rank: int
    stage: int
    peak_bytes: int
    # Of the peak, what stays from step to step.
    lasting_bytes: int
    parameters: int
    # Fewer layers were run.
    extrapolated: bool
    # How many were run.
    micro_batches: int
    seconds: float


def render_job(job: Job) -> str:
    return render_versioned(job, JOB_VERSION)


def parse_job(text: str) -> Job:
    """Raises JobMalformed."""
    try:
        return read_versioned(Job, text, JOB_VERSION)
    except ValueError as error:
        raise JobMalformed(str(error)) from error


def require_supported(job: Job) -> None:
    """Raise InvalidValue naming everything that the trainer cannot run as asked; memory is not judged."""
    checks = Checks()
    _check_features(job, checks)
    _check_shapes(job, checks)
    checks.done()


def _check_features(job: Job, checks: Checks) -> None:
    plan = job.plan
    on_cpu = job.device is DeviceKind.CPU
    checks.require(
        not (on_cpu and plan.context is ContextParallel.RING),
        "plan.context",
        "ring attention runs on cuda only: torch has no ring over its CPU attention kernel",
    )
    checks.require(
        not (on_cpu and job.dtype is Dtype.FLOAT16),
        "dtype",
        "float16 runs on cuda only; on cpu use bfloat16 or float32",
    )
    checks.require(
        plan.zero_stage < 3 or not plan.schedule.splits_backward,
        "plan.zero_stage",
        f"zero_stage({plan.zero_stage}) with schedule({plan.schedule}) would train wrongly without an error: "
        "split backward passes meet resharded weights",
    )
    checks.require(
        plan.recompute is not Recompute.SELECTIVE or not plan.schedule.splits_backward,
        "plan.recompute",
        f"selective with schedule({plan.schedule}): torch allows one backward pass of what is recomputed selectively",
    )
    checks.require(
        plan.schedule.interleaves == (plan.vpp > 1) and (plan.pp > 1 or plan.vpp == 1),
        "plan.vpp",
        f"vpp({plan.vpp}) does not go with schedule({plan.schedule}) and pp({plan.pp})",
    )
    checks.require(
        plan.schedule is not Schedule.ZBV or plan.vpp == 2, "plan.vpp", f"zbv needs vpp(2), not vpp({plan.vpp})"
    )


def _check_shapes(job: Job, checks: Checks) -> None:
    plan, model = job.plan, job.model
    for name in ("heads", "ffn"):
        size = getattr(model, name)
        checks.require(size % plan.tp == 0, "plan.tp", f"tp({plan.tp}) does not divide {name}({size})")
    checks.require(
        model.kv_heads % plan.tp == 0 or plan.tp % model.kv_heads == 0,
        "plan.tp",
        f"tp({plan.tp}) and kv_heads({model.kv_heads}): neither divides the other",
    )
    slices = plan.cp * (2 if plan.context is ContextParallel.RING else 1)
    checks.require(
        model.seq_len % slices == 0, "plan.cp", f"cp({plan.cp}) does not cut seq_len({model.seq_len}) into {slices}"
    )
    checks.require(
        not plan.sequence_parallel or model.seq_len // plan.cp % plan.tp == 0,
        "plan.tp",
        f"tp({plan.tp}) does not divide seq_len({model.seq_len}) / cp({plan.cp})",
    )
    if plan.context is ContextParallel.ULYSSES:
        for name in ("heads", "kv_heads"):
            size = getattr(model, name)
            checks.require(
                size % (plan.tp * plan.cp) == 0,
                "plan.cp",
                f"tp({plan.tp}) * cp({plan.cp}) = {plan.tp * plan.cp} does not divide {name}({size})",
            )
    _check_pipeline(job, checks)
    _check_experts(job, checks)


def _check_pipeline(job: Job, checks: Checks) -> None:
    plan, model = job.plan, job.model
    stages = plan.pp * plan.vpp
    checks.require(
        stages <= model.layers, "plan.pp", f"pp({plan.pp}) * vpp({plan.vpp}) is above layers({model.layers})"
    )
    # torch's Schedule1F1B refuses fewer micro-batches than stages; GPipe does not.
    checks.require(
        plan.schedule is Schedule.GPIPE or plan.pp == 1 or plan.grad_accum_steps >= plan.pp,
        "plan.grad_accum_steps",
        f"{plan.schedule} needs grad_accum_steps({plan.grad_accum_steps}) of at least pp({plan.pp})",
    )
    rounds = max(1, plan.grad_accum_steps // plan.pp)
    checks.require(
        plan.schedule not in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE) or plan.grad_accum_steps % rounds == 0,
        "plan.grad_accum_steps",
        f"{plan.schedule} needs grad_accum_steps({plan.grad_accum_steps}) to be a multiple of its {rounds} rounds",
    )


def _check_experts(job: Job, checks: Checks) -> None:
    plan, model = job.plan, job.model
    checks.require(plan.dp % plan.ep == 0, "plan.ep", f"ep({plan.ep}) does not divide dp({plan.dp})")
    checks.require(
        plan.ep == 1 or (model.experts > 0 and model.experts % plan.ep == 0),
        "plan.ep",
        f"ep({plan.ep}) does not divide experts({model.experts})" if model.experts else "the model has no experts",
    )
    copies = model.seq_len // plan.cp * model.top_k
    checks.require(
        model.experts == 0 or job.router is Router.LEARNED or copies % model.experts == 0,
        "router",
        f"experts({model.experts}) do not share seq_len({model.seq_len}) / cp({plan.cp}) * top_k({model.top_k}) = "
        f"{copies} tokens evenly",
    )
