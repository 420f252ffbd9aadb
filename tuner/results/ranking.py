"""Ranks the measured plans, one entry for each, and compares them with the baseline.

A plan that was measured again is ranked by its second run. The first one had a part in choosing it, so it is high by
luck as well as by merit; the second was chosen by nothing, and the second runs follow each other, so that they meet the
same cluster. The mean of both would scatter less, but it keeps half of that luck (docs/decisions/0014 has the figures).
The first value is shown beside it.

Intervals come from the order statistics of the step times (`runners.measuring.median_interval`). The interval of a gain
divides the ends of two such intervals, so it covers the true ratio of medians with at least 0.95 * 0.95 = 90 %; it is
wide on purpose. Differences between runs (another node, another hour) are in them as soon as a plan was measured
again, and in those of plans that were not, too (`tuner.results.run_variance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from meshtune.runners.outcome import Measurement
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.campaign.objective import Yardstick, yardstick_of
from meshtune.tuner.campaign.space import workload_of
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.results.loss_check import TOLERANCES, Comparison, same_training
from meshtune.tuner.results.run_variance import Reproduction, reproduction_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """How the second run of a plan ended. first: the objective as the first run measured it. change: the second speed
    over the first minus 1; None where the second run measured nothing."""

    trial: Trial
    first: float
    change: float | None

    @property
    def failed(self) -> bool:
        """True when the plan itself failed the second time; a job that was lost or cancelled says nothing of it."""
        verdict = self.trial.verdict
        return self.change is None and verdict is not None and verdict.informative


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One measured plan. trial: the one that chose it. measurement: of the second run where there is one.
    objective: in the objective's unit. gain: how much better than the baseline, as a ratio of speeds minus 1 (0.25:
    25 % faster); None without a measured baseline. memory: of tensors on the most loaded rank, which is what a plan
    needs. headroom: what the fullest rank left of its device in the fuller of the runs, None where no peak is known.
    mfu: a share, None where the device's peak is unknown. training: the first losses against the baseline's; None
    without a measured baseline, and for another global batch, which trains otherwise by intent."""

    rank: int
    trial: Trial
    measurement: Measurement
    objective: Estimate
    tokens_per_s: Estimate
    memory_bytes: int | None
    headroom_bytes: float | None
    tflops_per_device: float
    mfu: float | None
    gain: Estimate | None
    training: Comparison | None = None
    confirmation: Confirmation | None = None

    @property
    def measured_by(self) -> Trial:
        """The trial whose measurement this is."""
        return self.trial if self.confirmation is None or not self.confirmed else self.confirmation.trial

    @property
    def confirmed(self) -> bool:
        """True when the plan was measured twice."""
        return self.confirmation is not None and self.confirmation.change is not None

    @property
    def failed_again(self) -> bool:
        """True when the plan ran once and failed when it was to be measured again."""
        return self.confirmation is not None and self.confirmation.failed

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

    @property
    def usable(self) -> bool:
        """False for what is ranked and never recommended."""
        return not self.trains_otherwise and not self.failed_again


def rank(campaign: Campaign, trials: Sequence[Trial]) -> list[Ranked]:
    """Every measured plan, the best first; equal ones in the order of their numbers."""
    spec, yardstick = campaign.spec, yardstick_of(campaign.spec)
    runs = _runs(trials)
    runs.sort(key=lambda run: (-yardstick.score(run.measurement), run.trial.number))
    reproduction = reproduction_of([run.change for run in runs if run.change is not None])
    base = next((run.measurement for run in runs if run.trial.origin is Origin.BASELINE), None)
    tolerance = _tolerance(spec)
    return [
        Ranked(
            rank=position,
            trial=run.trial,
            measurement=run.measurement,
            objective=_over_runs(yardstick.reached(run.measurement), reproduction, runs=1),
            tokens_per_s=_per_step(run.measurement, float(run.measurement.tokens_per_step), reproduction),
            memory_bytes=run.measurement.max_memory_bytes,
            headroom_bytes=run.headroom_bytes(spec.cluster.device.memory_bytes),
            tflops_per_device=yardstick.tflops_per_device(run.measurement, run.measurement.step_time_s),
            mfu=_mfu(yardstick, run.measurement),
            gain=None if base is None else _gain(run.measurement, base, reproduction),
            training=None if base is None else _training(run.measurement, base, tolerance),
            confirmation=run.confirmation(yardstick),
        )
        for position, run in enumerate(runs, start=1)
    ]


def reproduction(ranking: Sequence[Ranked]) -> Reproduction | None:
    """How well first runs were reproduced; None where nothing was measured twice."""
    confirmations = [entry.confirmation for entry in ranking if entry.confirmation is not None]
    return reproduction_of([known.change for known in confirmations if known.change is not None])


@dataclass(frozen=True, slots=True)
class _Run:
    """A measured trial, and the finished one that repeated its plan."""

    trial: Trial
    first: Measurement
    again: Trial | None

    @property
    def second(self) -> Measurement | None:
        return None if self.again is None else self.again.measurement

    @property
    def measurement(self) -> Measurement:
        return self.second or self.first

    @property
    def change(self) -> float | None:
        return None if self.second is None else self.second.tokens_per_s / self.first.tokens_per_s - 1

    def confirmation(self, yardstick: Yardstick) -> Confirmation | None:
        if self.again is None:
            return None
        first = yardstick.of(self.first, self.first.step_time_s)
        return Confirmation(trial=self.again, first=first, change=self.change)

    def headroom_bytes(self, device_bytes: int) -> float | None:
        peaks = [measured.fullest_rank_bytes for measured in (self.first, self.second) if measured is not None]
        known = [peak for peak in peaks if peak is not None]
        return device_bytes - max(known) if known else None


def _runs(trials: Sequence[Trial]) -> list[_Run]:
    ended = [trial for trial in trials if trial.state.final]
    again = {trial.plan: trial for trial in ended if trial.origin is Origin.CONFIRMATION}
    return [
        _Run(trial, trial.measurement, again.get(trial.plan))
        for trial in ended
        if trial.measurement is not None and trial.origin is not Origin.CONFIRMATION
    ]


def _tolerance(spec: CampaignSpec) -> float:
    """The coarsest for a format without one of its own: a false alarm would hide a good setting."""
    return TOLERANCES.get(workload_of(spec).dtype, max(TOLERANCES.values()))


def _mfu(yardstick: Yardstick, measurement: Measurement) -> float | None:
    """By the peak of the cluster's description; by the job's own word where that has none."""
    described = yardstick.mfu(measurement, measurement.step_time_s)
    return measurement.mfu if described is None else described


def _training(measurement: Measurement, base: Measurement, tolerance: float) -> Comparison | None:
    if measurement.tokens_per_step != base.tokens_per_step:
        return None
    if measurement is base:
        return Comparison(True, 0, 0.0) if base.first_losses else Comparison(None)
    return same_training(measurement.first_losses, base.first_losses, tolerance)


def _per_step(measurement: Measurement, amount: float, reproduction: Reproduction | None) -> Estimate:
    interval = measurement.step_time_interval_s
    rate = Estimate(amount / measurement.step_time_s, amount / interval.high, amount / interval.low)
    return _over_runs(rate, reproduction, runs=1)


def _gain(measurement: Measurement, base: Measurement, reproduction: Reproduction | None) -> Estimate:
    """How much more tokens per second and device than the base."""
    if measurement is base:
        return Estimate(0.0, 0.0, 0.0)
    own = _per_step(measurement, measurement.tokens_per_step / measurement.devices, None)
    other = _per_step(base, base.tokens_per_step / base.devices, None)
    ratio = Estimate(own.value / other.value, own.low / other.high, own.high / other.low)
    ratio = _over_runs(ratio, reproduction, runs=2)
    return Estimate(ratio.value - 1, ratio.low - 1, ratio.high - 1)


def _over_runs(estimate: Estimate, reproduction: Reproduction | None, *, runs: int) -> Estimate:
    return estimate if reproduction is None else reproduction.around(estimate, runs=runs)
