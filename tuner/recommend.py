"""Ranks what was measured, compares it with the baseline, and recommends only what was measured better.

What does not train as the baseline does, by its first losses, is ranked and never recommended: its speed is that of
another computation.

Intervals come from the order statistics of the step times (`runners.statistics`). The interval of a gain divides the
ends of two such intervals, so it covers the true ratio of medians with at least 0.95 * 0.95 = 90 %; it is wide on
purpose. Differences between runs (another node, another hour) are not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runners.outcome import Measurement
from tuner.analysis import TOLERANCES, Comparison, same_training
from tuner.campaign import Campaign
from tuner.space import workload_of
from tuner.spec import CampaignSpec, Objective
from tuner.trial import Origin, Trial


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured quantity with the ends of its interval, low <= value <= high."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One measured trial. objective: in the objective's unit. gain: how much better than the baseline, as a ratio of
    speeds minus 1 (0.25: 25 % faster); None without a measured baseline. memory: of tensors on the most loaded rank,
    which is what a plan needs. mfu: a share, None where the device's peak is unknown. training: the first losses
    against the baseline's; None without a measured baseline, and for another global batch, which trains otherwise
    by intent."""

    rank: int
    trial: Trial
    measurement: Measurement
    objective: Estimate
    tokens_per_s: Estimate
    memory_bytes: int | None
    tflops_per_device: float
    mfu: float | None
    gain: Estimate | None
    training: Comparison | None = None

    @property
    def trains_otherwise(self) -> bool:
        """True when the first losses show that this is not the baseline's training."""
        return self.training is not None and self.training.equal is False

    @property
    def trains_as_baseline(self) -> Literal[True] | str | None:
        """True, or the sentence of the difference; None where there is nothing to compare."""
        if self.training is None or self.training.equal is None:
            return None
        return True if self.training.equal else str(self.training)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The setting to use. better: it was measured better than the baseline beyond the noise. reason: for people."""

    choice: Ranked | None
    better: bool
    reason: str


def peak_flops(spec: CampaignSpec) -> float | None:
    """Peak FLOP/s of one device in the number format that the workload computes in, None where unknown."""
    return spec.cluster.device.peak_flops.get(_dtype(spec))


def rank(campaign: Campaign, trials: Sequence[Trial]) -> list[Ranked]:
    """Every trial with a measurement, the best first; equal ones in the order of their numbers."""
    spec, peak = campaign.spec, peak_flops(campaign.spec)
    # The coarsest for a format without a tolerance of its own: a false alarm would hide a good setting.
    tolerance = TOLERANCES.get(_dtype(spec), max(TOLERANCES.values()))
    measured = [(trial, trial.measurement) for trial in trials if trial.measurement is not None]
    measured.sort(key=lambda pair: (-spec.objective.score(pair[1], spec.model, peak), pair[0].number))
    base = next((measurement for trial, measurement in measured if trial.origin is Origin.BASELINE), None)
    return [
        Ranked(
            rank=position,
            trial=trial,
            measurement=measurement,
            objective=_objective(spec, measurement, peak),
            tokens_per_s=_per_step(measurement, float(measurement.tokens_per_step)),
            memory_bytes=max(measurement.peak_memory_bytes, default=None),
            tflops_per_device=Objective.TFLOPS_PER_DEVICE.of(measurement, measurement.step_time_s, spec.model, peak),
            mfu=_mfu(spec, measurement, peak),
            gain=None if base is None else _gain(measurement, base),
            training=None if base is None else _training(measurement, base, tolerance),
        )
        for position, (trial, measurement) in enumerate(measured, start=1)
    ]


def recommend(campaign: Campaign, trials: Sequence[Trial]) -> Recommendation:
    """What to use, and whether it is surely better than the baseline."""
    ranking = rank(campaign, trials)
    if not ranking:
        return Recommendation(None, False, "no setting was measured")
    if campaign.spec.baseline is None:
        reason = "the fastest setting measured; the spec names no baseline to compare with"
        return Recommendation(ranking[0], False, reason)
    baseline = next((entry for entry in ranking if entry.trial.origin is Origin.BASELINE), None)
    if baseline is None:
        return Recommendation(ranking[0], False, "the fastest setting measured; the baseline itself has no measurement")
    choice, better, reason = _against(baseline, [entry for entry in ranking if not entry.trains_otherwise])
    passed = _passed_over(ranking, choice)
    return Recommendation(choice, better, f"{reason}; {passed}" if passed else reason)


def _against(baseline: Ranked, ranking: Sequence[Ranked]) -> tuple[Ranked, bool, str]:
    """The choice, whether it is better, and why, among settings that train as the baseline does, which is one."""
    best = ranking[0]
    if best is baseline or best.gain is None:
        return baseline, False, "no setting was measured faster than the baseline"
    # Not always the first: a noisy measurement may rank above a sure one.
    sure = next((entry for entry in ranking if entry.gain is not None and entry.gain.low > 0), None)
    if sure is not None and sure.gain is not None:
        return sure, True, f"{_span(sure.gain)} faster than the baseline"
    reason = f"the fastest other setting, {best.trial.plan.key}, is {_span(best.gain)} faster: not beyond the noise"
    return baseline, False, f"keep the baseline; {reason}"


def _passed_over(ranking: Sequence[Ranked], choice: Ranked) -> str:
    """Says which settings rank above the choice and do not train as the baseline does; empty for none."""
    above = [entry for entry in ranking if entry.trains_otherwise and entry.rank < choice.rank]
    if not above:
        return ""
    others = f" ({len(above) - 1} more likewise)" if len(above) > 1 else ""
    return f"{above[0].trial.plan.key} ranks above it, but {above[0].training}{others}"


def _dtype(spec: CampaignSpec) -> str:
    return workload_of(spec).dtype


def _mfu(spec: CampaignSpec, measurement: Measurement, peak: float | None) -> float | None:
    """By the peak of the cluster's description; by the job's own word where that has none."""
    if peak is None:
        return measurement.mfu
    return Objective.MFU.of(measurement, measurement.step_time_s, spec.model, peak) / 100


def _training(measurement: Measurement, base: Measurement, tolerance: float) -> Comparison | None:
    if measurement.tokens_per_step != base.tokens_per_step:
        return None
    if measurement is base:
        return Comparison(True, 0, 0.0) if base.first_losses else Comparison(None)
    return same_training(measurement.first_losses, base.first_losses, tolerance)


def _span(gain: Estimate) -> str:
    return f"{100 * gain.value:+.1f} % ({100 * gain.low:+.1f} to {100 * gain.high:+.1f} %)"


def _objective(spec: CampaignSpec, measurement: Measurement, peak: float | None) -> Estimate:
    interval = measurement.step_time_interval_s
    ends = sorted(spec.objective.of(measurement, step, spec.model, peak) for step in (interval.low, interval.high))
    value = spec.objective.of(measurement, measurement.step_time_s, spec.model, peak)
    return Estimate(value, ends[0], ends[1])


def _per_step(measurement: Measurement, amount: float) -> Estimate:
    interval = measurement.step_time_interval_s
    return Estimate(amount / measurement.step_time_s, amount / interval.high, amount / interval.low)


def _gain(measurement: Measurement, base: Measurement) -> Estimate:
    """How much more tokens per second and device than the base."""
    own = _per_step(measurement, measurement.tokens_per_step / measurement.devices)
    other = _per_step(base, base.tokens_per_step / base.devices)
    if measurement is base:
        return Estimate(0.0, 0.0, 0.0)
    return Estimate(own.value / other.value - 1, own.low / other.high - 1, own.high / other.low - 1)
