"""Ranks the measured plans, one entry for each, and compares them with the baseline.

Like is compared with like (docs/explanation/measuring.md). Plans that were measured again and may be recommended come
first, by their second runs with the rounds taken out (`second_runs.plan_effects`), then the others by their first runs.
Intervals of single runs are those of the mean of their steps, and wider by how far runs of one plan lie apart once any
was measured again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, log
from typing import ClassVar, Literal

from meshtune.runners.outcome import Measurement
from meshtune.search_spaces.changes import Moves, plan_changes
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.eligibility import (
    Ground,
    Reason,
    TrainingCheck,
    changed_numerics,
    eligibility,
    ground_of,
    trains_otherwise,
)
from meshtune.tuner.campaign.node_kinds import comparable
from meshtune.tuner.campaign.objective import Objective, Yardstick, yardstick_of
from meshtune.tuner.campaign.second_runs import (
    Cells,
    RunVariance,
    cells_of,
    first_speeds,
    is_worth_it,
    paired_gain,
    plan_effects,
    run_variance,
)
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.campaign.units import Estimate

NOT_CONFIRMED = "first run, not confirmed"
NO_LOSSES = "told no losses, while the baseline did: whether it trains the same is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """How the second runs of a plan ended. trial: the one whose speed is nearest to their mean; where none was measured
    the last. runs: how many were measured. change: the mean speed of the second runs over the first minus 1; None where
    none was measured."""

    trial: Trial
    runs: int
    change: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """The facts that all entries of a ranking are compared by. base: the baseline; None where it was not measured.
    cells: of the second runs. effects: of the plans in them."""

    rules: Ground
    yardstick: Yardstick
    cells: Cells
    base: Ranked | None = None
    effects: Mapping[Plan, float] = field(default_factory=dict)
    variance: RunVariance | None = None


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One measured plan. trial: its first run, which chose it. again: its second runs that ended, by round. Derived
    numbers are computed when they are asked for: a recommendation from a thousand plans looks at few."""

    rank: int
    trial: Trial
    again: tuple[Trial, ...] = field(repr=False)
    ground: _Ground = field(repr=False)
    # Every interval is, since kinds of devices have a prior; views had others before.
    interval_known: ClassVar[bool] = True

    @cached_property
    def runs(self) -> tuple[Measurement, ...]:
        """The first, and the second ones that were measured."""
        return tuple(run for trial in (self.trial, *self.again) if (run := trial.measurement) is not None)

    @property
    def counted(self) -> tuple[Measurement, ...]:
        """Of the second runs where there are any, of the first where not."""
        return self.runs[1:] or self.runs

    @cached_property
    def step_time_s(self) -> float:
        """The geometric mean over the runs that count, which may have had unlike tokens: at those of `measurement`."""
        return self.measurement.tokens_per_step / self._tokens_per_s

    @cached_property
    def _tokens_per_s(self) -> float:
        return exp(sum(log(run.tokens_per_s) for run in self.counted) / len(self.counted))

    @cached_property
    def measured_by(self) -> Trial:
        """The trial nearest to the mean: what speeds do not tell is taken from it."""
        runs = [trial for trial in self.again if trial.measurement is not None] or [self.trial]
        return min(runs, key=lambda trial: abs(log(_measurement(trial).tokens_per_s / self._tokens_per_s)))

    @property
    def measurement(self) -> Measurement:
        """Of the trial `measured_by`; of its speeds only the mean over all second runs counts."""
        return _measurement(self.measured_by)

    @property
    def first_speed(self) -> float:
        """As the objective compares speeds."""
        return self.ground.yardstick.objective.speed(self.runs[0], self.runs[0].step_time_s)

    def pairs(self, other: Ranked) -> list[tuple[Measurement, Measurement]]:
        """Its second runs, each with the other's of the same round."""
        by_round = {trial.round: trial.measurement for trial in other.again}
        pairs = [(trial.measurement, by_round.get(trial.round)) for trial in self.again]
        return [(own, its) for own, its in pairs if own is not None and its is not None]

    def alike(self, other: Ranked) -> tuple[Measurement, Measurement]:
        """Two runs that compare: of one round, else the first ones."""
        return next(iter(self.pairs(other)), (self.runs[0], other.runs[0]))

    def _estimate(self, interval: Estimate, value: float) -> Estimate:
        """A quantity of these runs. interval: at the steps of `measured_by`, for a single run."""
        runs, variance = len(self.counted), self.ground.variance
        own = interval if runs == 1 else Estimate(value, value, value)
        return own if variance is None else variance.around(own, runs=1 / runs)

    @property
    def unit(self) -> str:
        return self.ground.yardstick.unit

    @cached_property
    def objective(self) -> Estimate:
        """In the objective's unit."""
        yardstick = self.ground.yardstick
        reached = yardstick.reached(self.measurement)
        return self._estimate(reached, yardstick.of(self.measurement, self.step_time_s))

    @cached_property
    def tokens_per_s(self) -> Estimate:
        return self._estimate(rate_of(self.measurement, self.measurement.tokens_per_step), self._tokens_per_s)

    @property
    def once(self) -> Ranked:
        """The same plan with the numbers of its first run alone, against the baseline's first run."""
        base = None if self.ground.base is None else replace(self.ground.base, again=())
        return replace(self, again=(), ground=replace(self.ground, base=base, cells={}))

    @property
    def first_run(self) -> Estimate:
        """The objective by the first run alone."""
        return self.once.objective

    @property
    def first_score(self) -> float:
        """The objective by the first run as a number to maximise."""
        return self.ground.yardstick.score(self.runs[0])

    @property
    def merit(self) -> tuple[bool, float]:
        """What it is ranked by, the best last."""
        sure = self.confirmed and self.usable
        return sure, self.ground.effects[self.trial.plan] if sure else self.first_score

    @property
    def gain_text(self) -> str:
        """As of `text_over`; empty without a measured baseline."""
        return "" if self.ground.base is None else self.text_over(self.ground.base)

    def text_over(self, other: Ranked) -> str:
        """The gain for people, with its interval, and whether it is confirmed."""
        return self.over(other).percent_text("+", note="" if self.pairs(other) else NOT_CONFIRMED)

    @property
    def peak_memory_bytes(self) -> int | None:
        """Of tensors on the most loaded rank."""
        return self.measurement.max_memory_bytes

    @property
    def headroom_bytes(self) -> float | None:
        """As the yardstick has it, in the fullest of the runs."""
        return self.ground.yardstick.headroom_bytes(self.runs)

    @property
    def tflops_per_device(self) -> float | None:
        return self.ground.yardstick.tflops_per_device(self.measurement, self.step_time_s)

    @property
    def mfu(self) -> float | None:
        """A share, as the yardstick has it."""
        return self.ground.yardstick.share_of_peak(self.measurement, self.step_time_s)

    @cached_property
    def gain(self) -> Estimate | None:
        """Over the baseline; None without a measured baseline."""
        return None if self.ground.base is None else self.over(self.ground.base)

    def over(self, other: Ranked) -> Estimate:
        """The gain over another plan, a ratio of speeds minus 1 (0.25: 25 % faster): of the rounds in which both ran,
        else of the first runs."""
        plan, rival, variance = self.trial.plan, other.trial.plan, self.ground.variance
        if plan == rival:
            return Estimate(0.0, 0.0, 0.0)
        paired = None if variance is None else paired_gain(plan, rival, self.ground.cells, variance)
        return paired or gain_of(self.ground.yardstick.objective, *self.alike(other), variance)

    @property
    def gain_rounds(self) -> int:
        """The rounds that the gain is of; 0: of the first runs, and not confirmed."""
        return len(self._pairs)

    @cached_property
    def _pairs(self) -> list[tuple[Measurement, Measurement]]:
        return [] if self.ground.base is None else self.pairs(self.ground.base)

    @property
    def worth_it(self) -> bool:
        """True when it is surely faster than the baseline, and enough; only what ran in turns with that can be."""
        return self.gain is not None and is_worth_it(self.gain, self.ground.rules.spec.stop.tolerance)

    @property
    def faster_by_median(self) -> bool:
        """Whether its steps, but for the few that are much longer than the others, are faster than the baseline's."""
        speed = self.ground.yardstick.objective.speed
        speeds = [[speed(run, run.median_step_time_s) for run in pair] for pair in self._pairs]
        return sum(log(own / other) for own, other in speeds) > 0

    @cached_property
    def training(self) -> TrainingCheck | None:
        """The first losses and gradient norms against those of the baseline's first run, of a run that differs where
        one does; None where there is nothing to compare."""
        checks = [self.ground.rules.training(run) for run in self.runs]
        return next((check for check in checks if trains_otherwise(check, self.changed_numerics)), checks[-1])

    @property
    def confirmation(self) -> Confirmation | None:
        again = self.again
        if not again:
            return None
        first, *measured = self.runs
        failed = next((trial for trial in again if _failed(trial)), None)
        return Confirmation(
            trial=failed or (self.measured_by if measured else again[-1]),
            runs=len(measured),
            change=self._tokens_per_s / first.tokens_per_s - 1 if measured and failed is None else None,
        )

    @property
    def confirmed(self) -> bool:
        """True when the plan was measured again, and never failed meanwhile."""
        return len(self.runs) > 1 and not self.failed_again

    @property
    def runs_text(self) -> str:
        """What its numbers are of, for people."""
        runs = len(self.runs) - 1
        return f"{runs} second run{'' if runs == 1 else 's'}" if runs else "its first run alone"

    @property
    def failed_again(self) -> bool:
        """True when the plan ran once and failed when it was to be measured again."""
        return any(map(_failed, self.again))

    @property
    def trains_otherwise(self) -> bool:
        """True when the first losses show that this is not the baseline's training, and no knob declares that."""
        return trains_otherwise(self.training, self.changed_numerics)

    @cached_property
    def changed_numerics(self) -> tuple[str, ...]:
        """The knobs by which it computes something else than the baseline, such as "fp8 = mxfp8"."""
        return changed_numerics(self.ground.rules.spec, self.trial.plan)

    @property
    def changes(self) -> Moves:
        """From the spec's baseline to this plan."""
        baseline = self.ground.rules.spec.baseline
        return () if baseline is None else plan_changes(baseline, self.trial.plan)

    @property
    def other_hardware(self) -> str:
        """How the hardware that it was measured on differs from the baseline's, for people; empty where it does not, as
        far as both are known."""
        return self.ground.rules.other_hardware(self.measurement)

    @property
    def hides_losses(self) -> bool:
        """True when the baseline told its first losses, and this plan's runs told none."""
        base = self.ground.rules.baseline
        return base is not None and bool(base.first_losses) and self.training == TrainingCheck(None)

    @property
    def trains_as_baseline(self) -> Literal[True] | str | None:
        """True, or a sentence about the difference; None where there is nothing to compare."""
        if self.hides_losses:
            return NO_LOSSES
        if self.training is None or self.training.equal is None:
            return None
        return True if self.training.equal else str(self.training)

    @cached_property
    def ineligible(self) -> Reason | None:
        """As of `eligibility`; also where one run alone trains otherwise."""
        reason = eligibility(self.ground.rules, self.trial.plan, self.measurement)
        return Reason.TRAINING if reason is None and self.trains_otherwise else reason

    @property
    def usable(self) -> bool:
        """False for what is ranked and never recommended."""
        return not self.failed_again and self.ineligible is None


def rank(campaign: Campaign, trials: Sequence[Trial]) -> list[Ranked]:
    """Every measured plan, the confirmed ones first, each by its merit; equal ones in the order of their numbers."""
    spec, alike, rules = campaign.spec, comparable(trials), ground_of(campaign.spec, trials)
    again: dict[Plan, list[Trial]] = defaultdict(list)
    for trial in sorted(alike, key=lambda trial: trial.round):
        if trial.state.final and trial.origin is Origin.CONFIRMATION:
            again[trial.plan].append(trial)
    ground = _Ground(rules=rules, yardstick=yardstick_of(spec), cells=cells_of(spec.objective, alike))
    entries = [
        Ranked(rank=0, trial=trial, again=tuple(again.get(trial.plan, ())), ground=ground)
        for trial in trials
        if trial.measurement is not None and trial.origin is not Origin.CONFIRMATION
    ]
    base = baseline_of(entries)
    like_it = [one.trial for one in entries if not rules.other_hardware(_measurement(one.trial))]
    first, plan = first_speeds(spec.objective, like_it), None if base is None else base.trial.plan
    # By what decided the rounds.
    fit = [one for one in alike if one.round and (run := one.measurement) and eligibility(rules, one.plan, run) is None]
    ground = replace(
        ground,
        base=base,
        effects=plan_effects(first, ground.cells) if ground.cells else {},
        variance=run_variance(first, cells_of(spec.objective, fit) or ground.cells, plan, spec),
    )
    ranked = [replace(one, ground=ground) for one in entries]
    ranked.sort(key=lambda one: (*one.merit, -one.trial.number), reverse=True)
    return [replace(one, rank=place) for place, one in enumerate(ranked, start=1)]


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


def gain_of(
    objective: Objective, one: Measurement, other: Measurement, variance: RunVariance | None = None
) -> Estimate:
    """Of one run over another that it compares with, a ratio of speeds minus 1: of one device, or of the whole job."""
    runs = (one, other)
    speed, base = (rate_of(run, run.tokens_per_step / (run.devices if objective.per_device else 1)) for run in runs)
    ratio = speed.over(base)
    return (ratio if variance is None else variance.around(ratio, runs=2)).as_gain()


def trial_gain(objective: Objective, trial: Trial, others: Mapping[int, Trial]) -> float | None:
    """Of one run over that of its round among the others, by round; None without one."""
    own, other = trial.measurement, getattr(others.get(trial.round), "measurement", None)
    return None if own is None or other is None else gain_of(objective, own, other).value


def baseline_of(ranking: Sequence[Ranked]) -> Ranked | None:
    """None where it was not measured."""
    return next((entry for entry in ranking if entry.trial.origin is Origin.BASELINE), None)
