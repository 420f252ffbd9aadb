"""Ranks what was measured, compares it with the baseline, and recommends only what was measured better.

Intervals come from the order statistics of the step times (`runners.statistics`). The interval of a gain divides the
ends of two such intervals, so it covers the true ratio of medians with at least 0.95 * 0.95 = 90 %; it is wide on
purpose. Differences between runs (another node, another hour) are not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runners.outcome import Measurement
from runners.registry import create_workload
from tuner.campaign import Campaign
from tuner.spec import CampaignSpec
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
    speeds minus 1 (0.25: 25 % faster); None without a measured baseline. memory: the most loaded rank's peak."""

    rank: int
    trial: Trial
    measurement: Measurement
    objective: Estimate
    tokens_per_s: Estimate
    memory_bytes: int | None
    gain: Estimate | None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The setting to use. better: it was measured better than the baseline beyond the noise. reason: for people."""

    choice: Ranked | None
    better: bool
    reason: str


def peak_flops(spec: CampaignSpec) -> float | None:
    """Peak FLOP/s of one device in the number format that the workload computes in, None where unknown."""
    dtype = create_workload(spec.workload.kind, spec.workload.options).dtype
    return spec.cluster.device.peak_flops.get(dtype)


def rank(campaign: Campaign, trials: Sequence[Trial]) -> list[Ranked]:
    """Every trial with a measurement, the best first; equal ones in the order of their numbers."""
    spec, peak = campaign.spec, peak_flops(campaign.spec)
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
            gain=None if base is None else _gain(measurement, base),
        )
        for position, (trial, measurement) in enumerate(measured, start=1)
    ]


def recommend(campaign: Campaign, trials: Sequence[Trial]) -> Recommendation:
    """What to use, and whether it is surely better than the baseline."""
    ranking = rank(campaign, trials)
    if not ranking:
        return Recommendation(None, False, "no setting was measured")
    best = ranking[0]
    if campaign.spec.baseline is None:
        return Recommendation(best, False, "the fastest setting measured; the spec names no baseline to compare with")
    if best.gain is None:
        return Recommendation(best, False, "the fastest setting measured; the baseline itself has no measurement")
    if best.trial.origin is Origin.BASELINE:
        return Recommendation(best, False, "no setting was measured faster than the baseline")
    # Not always the first: a noisy measurement may rank above a sure one.
    sure = next((entry for entry in ranking if entry.gain is not None and entry.gain.low > 0), None)
    if sure is not None and sure.gain is not None:
        return Recommendation(sure, True, f"{_span(sure.gain)} faster than the baseline")
    baseline = next(entry for entry in ranking if entry.trial.origin is Origin.BASELINE)
    reason = f"the fastest other setting, {best.trial.plan.key}, is {_span(best.gain)} faster: not beyond the noise"
    return Recommendation(baseline, False, f"keep the baseline; {reason}")


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
