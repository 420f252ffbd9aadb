"""The objectives: their units, words and formulas. A yardstick holds what a formula needs beside the measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from meshtune.runners.outcome import Measurement
from meshtune.runners.registry import create_workload
from meshtune.search_spaces.model import ModelSpec
from meshtune.tuner.campaign.units import Estimate

if TYPE_CHECKING:
    from meshtune.tuner.campaign.spec import CampaignSpec

# The number of tokens that a cost is given for: the figures of real jobs are then neither tiny nor huge.
COST_TOKENS = 1e9
Formula: TypeAlias = "Callable[[Yardstick, Measurement, float], float]"


class Objective(StrEnum):
    """The measure by which one plan is better than another. With one global batch on equal devices they all order plans
    alike: only what they tell differs. Jobs of different sizes are ordered by their time to train (`step_time`), or by
    what one device does (all others)."""

    # name, unit, smaller is better, words for people, formula: the value if a step of the measured job took step_s
    TOKENS_PER_S_PER_DEVICE = (
        *("tokens_per_s_per_device", "tokens/s/device", False, "tokens that one device trains in a second"),
        lambda _, measured, step_s: _tokens_per_s_per_device(measured, step_s),
    )
    STEP_TIME = ("step_time", "s", True, "the time of one optimizer step", lambda _, __, step_s: step_s)
    TFLOPS_PER_DEVICE = (
        *("tflops_per_device", "TFLOP/s", False, "the model's own floating-point operations per second and device"),
        lambda yardstick, measured, step_s: _known(yardstick.tflops_per_device(measured, step_s)),
    )
    MFU = (
        *("mfu", "%", False, "model FLOPs utilization: the share of the device's peak"),
        lambda yardstick, measured, step_s: 100.0 * _known(yardstick.mfu(measured, step_s)),
    )
    COST = (
        *("cost", "device-hours/1e9 tokens", True),
        "what 10^9 tokens cost: device-hours, or money where the cluster has a price",
        lambda yardstick, measured, step_s: yardstick.cost(measured, step_s),
    )

    unit: str
    smaller_is_better: bool
    words: str
    formula: Formula

    def __new__(cls, name: str, unit: str, smaller_is_better: bool, words: str, formula: Formula) -> Objective:
        member = str.__new__(cls, name)
        member._value_, member.unit, member.words, member.formula = name, unit, words, formula
        member.smaller_is_better = smaller_is_better
        return member

    @property
    def per_device(self) -> bool:
        """Whether jobs of different sizes compare by what one device does; else by what the whole job does, which is
        the time to train where the batch is fixed."""
        return self is not Objective.STEP_TIME

    def speed(self, measurement: Measurement, step_time_s: float) -> float:
        """What gains and intervals of gains are ratios of, if a step of the measured job took `step_time_s`: tokens per
        second of one device, or of the whole job."""
        rate = measurement.tokens_per_step / step_time_s
        return rate / measurement.devices if self.per_device else rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """An objective, with what a measurement does not say."""

    objective: Objective
    model: ModelSpec
    # FLOP/s of one device in the number format that the workload computes in; None: unknown.
    peak_flops: float | None = None
    # Memory of one device; None: unknown.
    device_bytes: int | None = None
    # Of one device, in the user's currency; None: a cost is given in device-hours.
    device_hour_price: float | None = None
    generates: bool = False  # a step generates its rows as well: what its tokens take is not known

    @property
    def unit(self) -> str:
        priced = self.objective is Objective.COST and self.device_hour_price is not None
        return self.model.worded("cost/1e9 tokens" if priced else self.objective.unit)

    def of(self, measurement: Measurement, step_time_s: float | None = None) -> float:
        """The objective in its unit if a step of the measured job took `step_time_s`; by default its mean step. Raises
        ValueError for MFU without a peak."""
        return self.objective.formula(self, measurement, step_time_s or measurement.step_time_s)

    def best_so_far(self, runs: Iterable[Measurement | None]) -> list[float | None]:
        """After each run, as `of`; None before anything was measured."""
        best = accumulate(runs, lambda *two: max(filter(None, two), key=self.score, default=None))
        return [None if run is None else self.of(run) for run in best]

    def best(self, values: Iterable[float]) -> float | None:
        return (min if self.objective.smaller_is_better else max)(values, default=None)

    def reached(self, measurement: Measurement) -> Estimate:
        """The objective at the mean step time, with its ends at those of the mean's interval."""
        interval = measurement.step_time_interval_s
        low, high = sorted(self.of(measurement, step) for step in (interval.low, interval.high))
        return Estimate(self.of(measurement), low, high)

    def score(self, measurement: Measurement) -> float:
        """The objective at the mean step time as a number to maximise; step times, of unlike tokens, by token."""
        value = self.of(measurement) / (1 if self.objective.per_device else measurement.tokens_per_step)
        return -value if self.objective.smaller_is_better else value

    @property
    def flops_by_shapes(self) -> float | None:
        """Of a token."""
        return self.model.flops_per_token if self.model.known and not self.generates else None

    def tflops_per_device(self, measurement: Measurement, step_time_s: float) -> float | None:
        """By the job's own number of FLOPs per token, or by the model's shapes where the job reports none; None where
        neither is known."""
        flops = measurement.model_flops_per_token or self.flops_by_shapes
        return None if flops is None else flops * _tokens_per_s_per_device(measurement, step_time_s) / 1e12

    def mfu(self, measurement: Measurement, step_time_s: float) -> float | None:
        """A share of the device's peak by the cluster's description; None where that has none."""
        tflops = self.tflops_per_device(measurement, step_time_s)
        return None if self.peak_flops is None or tflops is None else 1e12 * tflops / self.peak_flops

    def share_of_peak(self, measurement: Measurement, step_time_s: float) -> float | None:
        """As `mfu`, by the job's own word where the cluster's description has no peak; None where neither has one."""
        mfu = self.mfu(measurement, step_time_s)
        return measurement.mfu if mfu is None else mfu

    def headroom_bytes(self, runs: Iterable[Measurement]) -> float | None:
        """Memory of the device that the fullest rank left free in the fullest of the runs; None where no peak is
        known."""
        peaks = [peak for run in runs if (peak := run.fullest_rank_bytes) is not None]
        return self.device_bytes - max(peaks) if peaks and self.device_bytes is not None else None

    def cost(self, measurement: Measurement, step_time_s: float) -> float:
        """Of COST_TOKENS, in device-hours or money."""
        device_hours = COST_TOKENS / _tokens_per_s_per_device(measurement, step_time_s) / 3600.0
        return device_hours * (1.0 if self.device_hour_price is None else self.device_hour_price)


def yardstick_of(spec: CampaignSpec) -> Yardstick:
    dtype = create_workload(spec.workload.kind, spec.workload.options).dtype
    return Yardstick(
        objective=spec.objective,
        model=spec.model,
        peak_flops=spec.cluster.device.peak_flops.get(dtype),
        device_bytes=spec.cluster.device.memory_bytes,
        device_hour_price=spec.cluster.device_hour_price,
        generates=spec.training.rollout is not None,
    )


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError("the objective needs the model's shapes, and mfu the device's peak FLOP/s")
    return value


def _tokens_per_s_per_device(measurement: Measurement, step_time_s: float) -> float:
    return measurement.tokens_per_step / step_time_s / measurement.devices
