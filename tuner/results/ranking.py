"""Ranks the measured plans, one entry for each, and compares them with the baseline.

A plan that was measured again is ranked by the geometric mean of its second runs (`tuner.campaign.second_runs`). The
first one had a part in choosing it, so it is high by luck as well as by merit (docs/decisions/choosing.md#d0014); it
is shown beside the mean.

The gain of a plan that ran in turns with the baseline is the mean ratio of their runs round by round. Else it is the
ratio of two speeds, each with the interval of the mean of its steps (`runners.measuring`), widened by how far runs
of one plan lie apart as soon as any was measured again. Speeds of jobs of different sizes compare as the objective
does: by one device, or by the whole job (`Objective.speed`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, log
from typing import Literal

from meshtune.runners.outcome import Measurement
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.eligibility import (
    Ground,
    LossCheck,
    changed_numerics,
    eligibility,
    ground_of,
    may_be_recommended,
    trains_otherwise,
)
from meshtune.tuner.campaign.node_kinds import comparable
from meshtune.tuner.campaign.objective import Objective, Yardstick, yardstick_of
from meshtune.tuner.campaign.second_runs import (
    Cells,
    RunVariance,
    cells_of,
    is_worth_it,
    paired_gain,
    run_variance,
)
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.campaign.units import Estimate

NO_LOSSES = "told no losses, while the baseline did: whether it trains the same is not known"


def run_variance_of(ranking: Sequence[Ranked]) -> RunVariance | None:
    """None where nothing was measured twice."""
    return ranking[0].ground.variance if ranking else None


def interval_known(variance: RunVariance | None) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """How the second runs of a plan ended. trial: the one whose speed is nearest to their mean; where none was measured
    the last. runs: how many were measured. first: the objective as the first run measured it. change: the mean speed of
    the second runs over the first minus 1; None where none was measured."""

    trial: Trial
    runs: int
    first: float
    change: float | None

    @property
    def failed(self) -> bool:
        """True when the plan itself failed in a second run."""
        return self.change is None and _failed(self.trial)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """The facts that all entries of a ranking are compared by. base: the runs of the baseline; None where it was not
    measured. cells: of the second runs."""

    rules: Ground
    yardstick: Yardstick
    base: Runs | None
    cells: Cells
    variance: RunVariance | None


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The runs of one plan. trial: the first one, which chose the plan; measured. again: the second runs that ended, by
    round."""

    trial: Trial
    again: tuple[Trial, ...] = field(repr=False)

    @cached_property
    def counted(self) -> tuple[Measurement, ...]:
        """Of the second runs where there are any, of the first where not."""
        measured = [trial.measurement for trial in self.again if trial.measurement is not None]
        return tuple(measured) or (_measurement(self.trial),)

    @cached_property
    def step_time_s(self) -> float:
        """The geometric mean over the runs that count."""
        return exp(sum(log(run.step_time_s) for run in self.counted) / len(self.counted))

    @cached_property
    def measured_by(self) -> Trial:
        """The trial nearest to the mean: what speeds do not tell is taken from it."""
        runs = [trial for trial in self.again if trial.measurement is not None] or [self.trial]
        return min(runs, key=lambda trial: abs(log(_measurement(trial).step_time_s / self.step_time_s)))

    @property
    def measurement(self) -> Measurement:
        """Of the trial `measured_by`; of its speeds only the mean over all second runs counts."""
        return _measurement(self.measured_by)

    def speed_at(self, objective: Objective) -> float:
        """At the mean step time, as the objective compares speeds."""
        return objective.speed(self.measurement, self.step_time_s)

    def estimate(self, interval: Estimate, value: float, variance: RunVariance | None) -> Estimate:
        """A quantity of these runs. interval: at the steps of `measured_by`, for a single run."""
        runs = len(self.counted)
        own = interval if runs == 1 else Estimate(value, value, value)
        return over_runs(own, variance, runs=1 / runs)


@dataclass(frozen=True, kw_only=True)
class Ranked(Runs):
    """One measured plan. Derived numbers are computed when they are asked for: a
    recommendation from a thousand plans looks at few."""

    rank: int
    ground: _Ground = field(repr=False)

    @property
    def unit(self) -> str:
        return self.ground.yardstick.unit

    @cached_property
    def objective(self) -> Estimate:
        """In the objective's unit."""
        yardstick = self.ground.yardstick
        reached = yardstick.reached(self.measurement)
        return self.estimate(reached, yardstick.of(self.measurement, self.step_time_s), self.ground.variance)

    @cached_property
    def tokens_per_s(self) -> Estimate:
        tokens = self.measurement.tokens_per_step
        return self.estimate(rate_of(self.measurement, tokens), tokens / self.step_time_s, self.ground.variance)

    @property
    def once(self) -> Ranked:
        """The same setting with the numbers of its first run alone, against the baseline's first run."""
        base = None if self.ground.base is None else replace(self.ground.base, again=())
        rules = replace(self.ground.rules, baseline=None if base is None else base.measurement)
        return replace(self, again=(), ground=replace(self.ground, rules=rules, base=base, cells={}))

    @property
    def first_run(self) -> Estimate:
        """The objective by the first run alone."""
        return self.once.objective

    @property
    def first_score(self) -> float:
        """The objective by the first run as a number to maximise."""
        return self.ground.yardstick.score(_measurement(self.trial))

    @property
    def interval_known(self) -> bool:
        return interval_known(self.ground.variance)

    @property
    def gain_text(self) -> str:
        """For people, with the interval where one is known; empty without a measured baseline."""
        if self.gain is None:
            return ""
        return self.gain.percent_text("+") if self.interval_known else f"{100 * self.gain.value:+.1f} %"

    @property
    def speed(self) -> Estimate:
        """What gains are ratios of: tokens per second of one device, or of the whole job, as the objective compares."""
        per_device = self.ground.yardstick.objective.per_device
        return self.tokens_per_s.times(1 / self.measurement.devices) if per_device else self.tokens_per_s

    @property
    def memory_bytes(self) -> int | None:
        """Of tensors on the most loaded rank."""
        return self.measurement.max_memory_bytes

    @property
    def headroom_bytes(self) -> float | None:
        """As the yardstick has it, in the fullest of the runs."""
        runs = [trial.measurement for trial in (self.trial, *self.again)]
        return self.ground.yardstick.headroom_bytes(run for run in runs if run is not None)

    @property
    def tflops_per_device(self) -> float:
        return self.ground.yardstick.tflops_per_device(self.measurement, self.step_time_s)

    @property
    def mfu(self) -> float | None:
        """A share, as the yardstick has it."""
        return self.ground.yardstick.share_of_peak(self.measurement, self.step_time_s)

    @cached_property
    def gain(self) -> Estimate | None:
        """Over the baseline, a ratio of speeds minus 1 (0.25: 25 % faster); None without a measured baseline."""
        base, variance = self.ground.base, self.ground.variance
        objective = self.ground.yardstick.objective
        if base is None or self.trial is base.trial:
            return None if base is None else Estimate(0.0, 0.0, 0.0)
        paired = None
        if variance is not None:
            paired = paired_gain(self.trial.plan, base.trial.plan, self.ground.cells, variance)
        if paired is not None:
            return paired
        if len(self.counted) == len(base.counted) == 1:
            rate, other = (speed_of(objective, one) for one in (self.measurement, base.measurement))
            return over_runs(rate.over(other), variance, runs=2).as_gain()
        ratio = self.speed_at(objective) / base.speed_at(objective)
        runs = 1 / len(self.counted) + 1 / len(base.counted)
        return over_runs(Estimate(ratio, ratio, ratio), variance, runs=runs).as_gain()

    @cached_property
    def _pairs(self) -> list[tuple[Measurement, Measurement]]:
        """Its second runs, each with the baseline's of the same round."""
        base = () if self.ground.base is None else self.ground.base.again
        by_round = {trial.round: trial.measurement for trial in base}
        pairs = [(trial.measurement, by_round.get(trial.round)) for trial in self.again]
        return [(own, other) for own, other in pairs if own is not None and other is not None]

    @property
    def in_turns(self) -> bool:
        """True when it ran so often beside the baseline that its gain has an interval of use."""
        return bool(self._pairs)

    @property
    def worth_it(self) -> bool:
        """True when it is surely faster than the baseline, and enough; only what ran in turns with that can be."""
        gain = self.gain if self.in_turns else None
        return gain is not None and is_worth_it(gain, self.ground.rules.spec.stop.tolerance)

    @property
    def faster_by_median(self) -> bool:
        """Whether its steps, but for the few that are much longer than the others, are faster than the baseline's."""
        speed = self.ground.yardstick.objective.speed
        speeds = [[speed(run, run.median_step_time_s) for run in pair] for pair in self._pairs]
        return sum(log(own / other) for own, other in speeds) > 0

    @cached_property
    def training(self) -> LossCheck | None:
        """The first losses against the baseline's; None where there is nothing to compare."""
        return self.ground.rules.losses(self.measurement)

    @property
    def confirmation(self) -> Confirmation | None:
        again = self.again
        if not again:
            return None
        first = _measurement(self.trial)
        measured = [trial for trial in again if trial.measurement is not None]
        failed = next((trial for trial in again if _failed(trial)), None)
        return Confirmation(
            trial=failed or (self.measured_by if measured else again[-1]),
            runs=len(measured),
            first=self.ground.yardstick.of(first, first.step_time_s),
            change=first.step_time_s / self.step_time_s - 1 if measured and failed is None else None,
        )

    @property
    def confirmed(self) -> bool:
        """True when the plan was measured again, and never failed meanwhile."""
        confirmation = self.confirmation
        return confirmation is not None and confirmation.change is not None

    @property
    def failed_again(self) -> bool:
        """True when the plan ran once and failed when it was to be measured again."""
        return self.confirmation is not None and self.confirmation.failed

    @property
    def trains_otherwise(self) -> bool:
        """True when the first losses show that this is not the baseline's training, and no knob declares that."""
        return trains_otherwise(self.training, self.changed_numerics)

    @cached_property
    def changed_numerics(self) -> tuple[str, ...]:
        """The knobs by which it computes something else than the baseline, such as "fp8 = mxfp8"."""
        return changed_numerics(self.ground.rules.spec, self.trial.plan)

    @property
    def unaccepted_numerics(self) -> bool:
        """True when it changes the numerics, which the spec does not accept."""
        return not may_be_recommended(self.ground.rules.spec, self.trial.plan)

    @property
    def other_hardware(self) -> str:
        """How the hardware that it was measured on differs from the baseline's, for people; empty where it does not, as
        far as both are known."""
        return self.ground.rules.other_hardware(self.measurement)

    @property
    def hides_losses(self) -> bool:
        """True when the baseline told its first losses, and this plan's runs told none."""
        base = self.ground.rules.baseline
        return base is not None and bool(base.first_losses) and self.training == LossCheck(None)

    @property
    def trains_as_baseline(self) -> Literal[True] | str | None:
        """True, or a sentence about the difference; None where there is nothing to compare."""
        if self.hides_losses:
            return NO_LOSSES
        if self.training is None or self.training.equal is None:
            return None
        return True if self.training.equal else str(self.training)

    @property
    def usable(self) -> bool:
        """False for what is ranked and never recommended."""
        return not self.failed_again and eligibility(self.ground.rules, self.trial.plan, self.measurement) is None


def rank(campaign: Campaign, trials: Sequence[Trial]) -> list[Ranked]:
    """Every measured plan, the best first; equal ones in the order of their numbers."""
    spec, yardstick, alike = campaign.spec, yardstick_of(campaign.spec), comparable(trials)
    ended = [trial for trial in trials if trial.state.final]
    again: dict[Plan, list[Trial]] = defaultdict(list)
    for trial in sorted(alike, key=lambda trial: trial.round):
        if trial.state.final and trial.origin is Origin.CONFIRMATION:
            again[trial.plan].append(trial)
    runs = [
        Runs(trial=trial, again=tuple(again.get(trial.plan, ())))
        for trial in ended
        if trial.measurement is not None and trial.origin is not Origin.CONFIRMATION
    ]
    sign = -1 if yardstick.objective.smaller_is_better else 1
    runs.sort(key=lambda one: (-sign * yardstick.of(one.measurement, one.step_time_s), one.trial.number))
    base = next((one for one in runs if one.trial.origin is Origin.BASELINE), None)
    cells = cells_of(spec.objective, alike)
    rules = replace(ground_of(spec, trials), baseline=None if base is None else base.measurement)
    first = {
        one.trial.plan: log(spec.objective.speed(_measurement(one.trial), _measurement(one.trial).step_time_s))
        for one in runs
        if not rules.other_hardware(_measurement(one.trial))
    }
    ground = _Ground(
        rules=rules,
        yardstick=yardstick,
        base=base,
        cells=cells,
        variance=run_variance(first, cells, None if base is None else base.trial.plan, spec),
    )
    return [
        Ranked(rank=place, trial=one.trial, again=one.again, ground=ground) for place, one in enumerate(runs, start=1)
    ]


def _measurement(trial: Trial) -> Measurement:
    assert trial.measurement is not None  # only measured ones are asked
    return trial.measurement


def _failed(trial: Trial) -> bool:
    """True when the plan itself failed; a job that was lost or cancelled says nothing of it."""
    return trial.measurement is None and trial.verdict is not None and trial.verdict.informative


def rate_of(measurement: Measurement, tokens: float) -> Estimate:
    """Tokens per second, of these in a step."""
    interval = measurement.step_time_interval_s
    return Estimate(tokens / measurement.step_time_s, tokens / interval.high, tokens / interval.low)


def speed_of(objective: Objective, measurement: Measurement) -> Estimate:
    """As `Ranked.speed`, of one measurement by itself."""
    tokens = measurement.tokens_per_step
    return rate_of(measurement, tokens / measurement.devices if objective.per_device else tokens)


def over_runs(estimate: Estimate, variance: RunVariance | None, *, runs: float) -> Estimate:
    """As `RunVariance.around`; the estimate itself where no plan was measured twice."""
    return estimate if variance is None else variance.around(estimate, runs=runs)


def baseline_of(ranking: Sequence[Ranked]) -> Ranked | None:
    """None where it was not measured."""
    return next((entry for entry in ranking if entry.trial.origin is Origin.BASELINE), None)
