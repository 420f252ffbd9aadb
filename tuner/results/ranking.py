"""Ranks the measured plans, one entry for each, and compares them with the baseline.

A plan that was measured again is ranked by its second run. The first one had a part in choosing it, so it is high by
luck as well as by merit; the second was chosen by nothing, and the second runs follow each other, so that they meet the
same cluster. The mean of both would scatter less, but it keeps half of that luck (docs/decisions/0014 has the figures).
The first value is shown beside it.

Intervals come from the order statistics of the step times (`runners.measuring`). The interval of a gain
divides the ends of two such intervals, so it covers the true ratio of medians with at least 0.95 * 0.95 = 90 %; it is
wide on purpose. As soon as a plan was measured again, all intervals are widened by the `RunVariance` found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log, sqrt
from typing import Literal

from meshtune.runners.outcome import Measurement
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.objective import Yardstick, yardstick_of
from meshtune.tuner.campaign.spec import workload_of
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.campaign.units import Estimate

# Two trainings are the same when their first losses differ by at most this, by number format. float32 layouts of the
# built-in trainer agree to 1e-6 (docs/log.md); bfloat16 rounds at 2**-8 per operation.
LOSS_TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}
# Student's t, 97.5 %, for 1 to 3 degrees of freedom. The last one stays for more: the winner is then the best of more
# second runs, chosen by luck once again, and narrower intervals would cover it too seldom (docs/decisions/0014).
T_QUANTILES = (12.706, 4.303, 3.182)


@dataclass(frozen=True, slots=True)
class LossCheck:
    """The first losses of two trainings, compared. equal: None where there are none. step: the first loss (from 0) that
    differs by more than the tolerance; of equal trainings the one that differs the most."""

    equal: bool | None
    step: int | None = None
    difference: float | None = None

    def __str__(self) -> str:
        if self.equal is None:
            return "no losses to compare"
        words = "trains the same" if self.equal else "does not train the same"
        return f"{words}: the losses of step {self.step} differ by {self.difference:.2g}"


def check_losses(first: Sequence[float], second: Sequence[float], tolerance: float) -> LossCheck:
    """Compare step by step, as far as both go. A loss that is not finite equals nothing, not even another.

    The global batch is fixed and the data are the same, so the first losses of two plans agree up to rounding: later
    ones contain the earlier updates, so a wrong gradient, sum or shard shows there.
    """
    pairs = zip(first, second, strict=False)
    differences = [abs(a - b) if isfinite(a) and isfinite(b) else inf for a, b in pairs]
    if not differences:
        return LossCheck(None)
    above = [step for step, difference in enumerate(differences) if difference > tolerance]
    step = above[0] if above else differences.index(max(differences))
    return LossCheck(not above, step, differences[step])


@dataclass(frozen=True, slots=True)
class RunVariance:
    """How far two runs of one plan lie apart, from the plans that were measured again.

    changes: of each such plan, the second speed over the first minus 1; at least one. log_sd: the standard deviation of
    the logarithm of one run's speed.

    The logarithm of a plan's second speed over its first has twice the variance of one run, so m such pairs give one
    run's standard deviation with m degrees of freedom, and Student's t an interval around it. The pairs are not
    centred: a first run was chosen for being fast, and a whole cluster may have slowed down.
    """

    changes: tuple[float, ...]
    log_sd: float

    def around(self, estimate: Estimate, *, runs: int) -> Estimate:
        """A positive quantity with an interval that covers its own and 95 % of what another run would have measured.

        runs: the number of single runs in the quantity: 1 for a speed, 2 for the ratio of two.
        """
        quantile = T_QUANTILES[min(len(self.changes), len(T_QUANTILES)) - 1]
        wide = Estimate.around(estimate.value, exp(quantile * self.log_sd * sqrt(runs)))
        return Estimate(estimate.value, min(estimate.low, wide.low), max(estimate.high, wide.high))

    def __str__(self) -> str:
        settings = "1 setting" if len(self.changes) == 1 else f"{len(self.changes)} settings"
        least, most = min(self.changes), max(self.changes)
        span = f"{100 * least:+.1f} %" if least == most else f"{100 * least:+.1f} to {100 * most:+.1f} %"
        return f"{settings} measured again: {span} against the first run; the intervals cover such differences"


def variance_of(changes: Sequence[float]) -> RunVariance | None:
    """None without changes: then intervals are those of single runs."""
    if not changes:
        return None
    return RunVariance(tuple(changes), sqrt(sum(log(1 + change) ** 2 for change in changes) / (2 * len(changes))))


def run_variance(ranking: Sequence[Ranked]) -> RunVariance | None:
    """None where nothing was measured twice."""
    confirmations = [entry.confirmation for entry in ranking if entry.confirmation is not None]
    return variance_of([known.change for known in confirmations if known.change is not None])


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
    """One measured plan. trial: the one that chose it. measurement: of the second run where there is one. objective: in
    the objective's unit. memory_bytes: of tensors on the most loaded rank. headroom_bytes: memory of the device that
    the fullest rank left free in the fuller of the runs; None where no peak is known. mfu: a share; None where the
    device's peak is unknown. gain: over the baseline, a ratio of speeds minus 1 (0.25: 25 % faster); None without a
    measured baseline. training: the first losses against the baseline's; None without a measured baseline, and for
    another global batch, which trains otherwise by intent."""

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
    training: LossCheck | None = None
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
        """True, or a sentence about the difference; None where there is nothing to compare."""
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
    variance = variance_of([run.change for run in runs if run.change is not None])
    base = next((run.measurement for run in runs if run.trial.origin is Origin.BASELINE), None)
    # The coarsest for a format without one of its own: a false alarm would hide a good setting.
    tolerance = LOSS_TOLERANCES.get(workload_of(spec).dtype, max(LOSS_TOLERANCES.values()))
    ranking = []
    for position, run in enumerate(runs, start=1):
        measured = run.measurement
        mfu = yardstick.mfu(measured, measured.step_time_s)
        ranking.append(
            Ranked(
                rank=position,
                trial=run.trial,
                measurement=measured,
                objective=over_runs(yardstick.reached(measured), variance, runs=1),
                tokens_per_s=over_runs(rate_of(measured, measured.tokens_per_step), variance, runs=1),
                memory_bytes=measured.max_memory_bytes,
                headroom_bytes=run.headroom_bytes(spec.cluster.device.memory_bytes),
                tflops_per_device=yardstick.tflops_per_device(measured, measured.step_time_s),
                # By the job's own word where the cluster's description has no peak.
                mfu=measured.mfu if mfu is None else mfu,
                gain=None if base is None else _gain(measured, base, variance),
                training=None if base is None else _training(measured, base, tolerance),
                confirmation=run.confirmation(yardstick),
            )
        )
    return ranking


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


def _training(measurement: Measurement, base: Measurement, tolerance: float) -> LossCheck | None:
    if measurement.tokens_per_step != base.tokens_per_step:
        return None
    if measurement is base:
        return LossCheck(True, 0, 0.0) if base.first_losses else LossCheck(None)
    return check_losses(measurement.first_losses, base.first_losses, tolerance)


def rate_of(measurement: Measurement, tokens: float) -> Estimate:
    """Tokens per second, of these in a step."""
    interval = measurement.step_time_interval_s
    return Estimate(tokens / measurement.step_time_s, tokens / interval.high, tokens / interval.low)


def _gain(measurement: Measurement, base: Measurement, variance: RunVariance | None) -> Estimate:
    """The ratio of tokens per second and device to the base's, minus 1."""
    if measurement is base:
        return Estimate(0.0, 0.0, 0.0)
    own, other = (rate_of(one, one.tokens_per_step / one.devices) for one in (measurement, base))
    return over_runs(own.over(other), variance, runs=2).as_gain()


def over_runs(estimate: Estimate, variance: RunVariance | None, *, runs: int) -> Estimate:
    """As `RunVariance.around`; the estimate itself where no plan was measured twice."""
    return estimate if variance is None else variance.around(estimate, runs=runs)
