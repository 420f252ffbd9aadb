"""The trainer's job file (`job.json`, version 1): everything one profiling run needs. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

from meshtune.runners.json_files import read_versioned, render_versioned
from meshtune.runners.measuring.median_interval import is_tight
from meshtune.search_spaces.checks import CLOSED, Checks, StrEnum
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

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
    Then steps are timed until the 95 % interval of their median lies within +- precision (relative), at least
    min_steps and at most max_steps of them; after max_seconds of timed steps min_steps are enough. profile_steps: how
    many steps are taken apart afterwards. loss_steps: how many of the first losses to report. stall_s: a rank that
    finishes no step for so long gives up."""

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
    end of the incumbent's interval, scaled to this plan's tokens per step.
    """

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


def render_job(job: Job) -> str:
    return render_versioned(job, JOB_VERSION)


def parse_job(text: str) -> Job:
    """Raises JobMalformed."""
    try:
        return read_versioned(Job, text, JOB_VERSION)
    except ValueError as error:
        raise JobMalformed(str(error)) from error
