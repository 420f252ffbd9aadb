"""A yardstick turns measurements into the objective's numbers: it holds what the objective needs beside them."""

from __future__ import annotations

from dataclasses import dataclass

from meshtune.runners.outcome import Measurement
from meshtune.search_spaces.model import ModelSpec
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.campaign.space import workload_of
from meshtune.tuner.campaign.spec import CampaignSpec, Objective

# What a cost is told for: enough tokens for the figures of real jobs to be neither tiny nor huge.
COST_TOKENS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """An objective, with what a measurement does not say.

    peak_flops: FLOP/s of one device in the number format that the workload computes in, None where unknown.
    device_hour_price: of one device, in the user's currency; None: a cost is told in device-hours.
    """

    objective: Objective
    model: ModelSpec
    peak_flops: float | None = None
    device_hour_price: float | None = None

    @property
    def unit(self) -> str:
        return unit_of(self.objective, priced=self.device_hour_price is not None)

    def of(self, measurement: Measurement, step_time_s: float) -> float:
        """The objective in its unit if a step of the measured job took `step_time_s`. Raises ValueError for MFU without
        a peak."""
        match self.objective:
            case Objective.STEP_TIME:
                return step_time_s
            case Objective.TFLOPS_PER_DEVICE:
                return self.tflops_per_device(measurement, step_time_s)
            case Objective.MFU:
                mfu = self.mfu(measurement, step_time_s)
                if mfu is None:
                    raise ValueError("the objective mfu needs the device's peak FLOP/s")
                return 100.0 * mfu
            case Objective.COST:
                device_hours = COST_TOKENS / _tokens_per_s_per_device(measurement, step_time_s) / 3600.0
                return device_hours * (1.0 if self.device_hour_price is None else self.device_hour_price)
            case Objective.TOKENS_PER_S_PER_DEVICE:
                return _tokens_per_s_per_device(measurement, step_time_s)

    def reached(self, measurement: Measurement) -> Estimate:
        """The objective at the median step time, with its ends at those of the median's interval."""
        interval = measurement.step_time_interval_s
        low, high = sorted(self.of(measurement, step) for step in (interval.low, interval.high))
        return Estimate(self.of(measurement, measurement.step_time_s), low, high)

    def score(self, measurement: Measurement) -> float:
        """The objective at the median step time as a number to maximise."""
        value = self.of(measurement, measurement.step_time_s)
        return -value if self.objective.smaller_is_better else value

    def tflops_per_device(self, measurement: Measurement, step_time_s: float) -> float:
        """By the job's own number of FLOPs per token, or by the model's shapes where the job reports none."""
        flops_per_token = measurement.model_flops_per_token or self.model.flops_per_token
        return flops_per_token * _tokens_per_s_per_device(measurement, step_time_s) / 1e12

    def mfu(self, measurement: Measurement, step_time_s: float) -> float | None:
        """A share of the device's peak by the cluster's description; None where that has none."""
        if self.peak_flops is None:
            return None
        return 1e12 * self.tflops_per_device(measurement, step_time_s) / self.peak_flops


def unit_of(objective: Objective, *, priced: bool) -> str:
    """What an objective is told in. priced: the cluster's description has a price."""
    match objective:
        case Objective.STEP_TIME:
            return "s"
        case Objective.TFLOPS_PER_DEVICE:
            return "TFLOP/s"
        case Objective.MFU:
            return "%"
        case Objective.COST:
            return f"{'cost' if priced else 'device-hours'}/1e9 tokens"
        case Objective.TOKENS_PER_S_PER_DEVICE:
            return "tokens/s/device"


def yardstick_of(spec: CampaignSpec) -> Yardstick:
    """What a campaign's plans are measured by."""
    return Yardstick(
        objective=spec.objective,
        model=spec.model,
        peak_flops=spec.cluster.device.peak_flops.get(workload_of(spec).dtype),
        device_hour_price=spec.cluster.device_hour_price,
    )


def _tokens_per_s_per_device(measurement: Measurement, step_time_s: float) -> float:
    return measurement.tokens_per_step / step_time_s / measurement.devices
