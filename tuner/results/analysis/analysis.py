"""The analysis of a campaign: importance and effect of knobs, failure rates, forecasts against outcomes, and why the
best plans win.

Pure: a campaign, its space and its trials in, a value out. Measured and predicted numbers are kept apart, and each says
which it is. Plans that do not train as the baseline does are left out: their speed is of another computation. Those
that change the numerics by a knob that says so stay, and their effects are marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshtune.runners.base import Cause
from meshtune.runners.outcome import FAILED, Verdict
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knob_values import KnobValue
from meshtune.search_spaces.physics.training import missing
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.prediction.predict import Basis, learn, training_of
from meshtune.tuner.results.analysis.forecast_check import ForecastCheck, check_forecasts
from meshtune.tuner.results.analysis.knob_effects import (
    Effect,
    Evidence,
    by_size,
    measured_effects,
    predicted_effects,
    reverse,
)
from meshtune.tuner.results.analysis.knob_importance import Sensitivity, sensitivity
from meshtune.tuner.results.analysis.why_faster import Winner, explain_winners
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.recommendation import comparable_text, recommend_among
from meshtune.tuner.results.sizes import SizePoint, scaling_curve

# Trials of one window: a rate in steps of 10 %.
WINDOW = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Some trials in the order of planning, from number `first` to `last`. rate: the share that failed."""

    first: int
    last: int
    trials: int
    failed: int
    rate: float
    verdicts: Mapping[Verdict, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSoFar:
    """All trials up to this one."""

    trial: int
    failed: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueFailures:
    """The ended trials of plans with one value of a knob. causes: of those that failed, with how many each."""

    knob: str
    value: KnobValue
    trials: int
    failed: int
    causes: Mapping[Cause, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failed trials: of all (null before any trial has ended), after each trial, in windows of 10, and by the values of
    the knobs that are active in them."""

    all: Window | None
    so_far: tuple[RateSoFar, ...]
    windows: tuple[Window, ...]
    by_value: tuple[ValueFailures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What the trials of a campaign teach. simulated: nothing of it was measured on any device. trials: that have
    ended. comparable: how many measured plans may be recommended, and why not the others; empty where all may. effects:
    the largest first. scaling: the best of each size, where a knob sizes the jobs. basis: of the predictions; null, for
    the reason in `unpredicted`, where there are none."""

    campaign: str
    simulated: bool
    trials: int
    comparable: str
    sensitivity: Sensitivity
    effects: tuple[Effect, ...]
    failures: Failures
    hindsight: ForecastCheck
    winners: tuple[Winner, ...]
    scaling: tuple[SizePoint, ...]
    basis: Basis | None
    unpredicted: str


def analyse(campaign: Campaign, space: Space, trials: Sequence[Trial]) -> Analysis:
    everything = rank(campaign, trials)
    ranking = [entry for entry in everything if not entry.trains_otherwise]
    usable = [entry for entry in ranking if entry.usable]
    measured = {entry.trial.plan: entry.first_speed for entry in ranking}
    training = training_of(campaign.spec)
    unknown = ", ".join(problem.path for problem in missing(training))
    of = " of the cluster" * training.model.known
    basis = None if unknown else learn(campaign.label, campaign.spec, trials)
    runs = Evidence.SIMULATED if campaign.simulated else Evidence.MEASURED
    effects = measured_effects(space, measured, runs)
    if basis is not None and usable:
        known = {effect.moves for effect in effects}
        failed = {trial.plan: end for trial in trials if (end := trial.verdict) is not None and end in FAILED}
        predicted = predicted_effects(space, training, basis.calibration, usable[0].trial.plan, failed)
        effects += [one for one in predicted if not {one.moves, reverse(one.moves)} & known]
    return Analysis(
        campaign=campaign.id,
        simulated=campaign.simulated,
        trials=sum(trial.state.final for trial in trials),
        comparable=comparable_text(everything),
        sensitivity=sensitivity(space, measured),
        effects=tuple(by_size(effects)),
        failures=count_failures(trials, space.knobs),
        hindsight=check_forecasts(trials),
        winners=explain_winners(training, usable, basis, runs, recommend_among(campaign.spec, everything).choice),
        scaling=scaling_curve(campaign, ranking),
        basis=basis,
        unpredicted=f"no times can be predicted: {unknown} is not known{of}" if unknown else "",
    )


def count_failures(trials: Sequence[Trial], knobs: Sequence[Knob] = ()) -> Failures:
    """The failures among the trials that have ended: those without a speed, and not by intent. A pruned trial ran and
    was slower; a cancelled one is left out."""
    over = [trial for trial in trials if trial.verdict not in (None, Verdict.CANCELLED)]
    over.sort(key=lambda trial: trial.number)
    ended = [(trial.number, trial.verdict) for trial in over if trial.verdict is not None]
    so_far, failed = [], 0
    for count, (number, verdict) in enumerate(ended, start=1):
        failed += verdict in FAILED
        so_far.append(RateSoFar(trial=number, failed=failed, rate=failed / count))
    return Failures(
        all=_window(ended) if ended else None,
        so_far=tuple(so_far),
        windows=tuple(_window(ended[start : start + WINDOW]) for start in range(0, len(ended), WINDOW)),
        by_value=tuple(
            _of_value(knob, value, [trial for trial in over if knob.position(trial.plan.knobs.get(knob.name)) == place])
            for knob in knobs
            for place, value in enumerate(knob.values)
        ),
    )


def _of_value(knob: Knob, value: KnobValue, trials: Sequence[Trial]) -> ValueFailures:
    causes = Counter(trial.outcome.failure for trial in trials if trial.outcome is not None and trial.verdict in FAILED)
    return ValueFailures(
        knob=knob.name,
        value=value,
        trials=len(trials),
        failed=sum(causes.values()),
        causes={cause: count for cause, count in causes.most_common() if cause is not None},
    )


def _window(ended: Sequence[tuple[int, Verdict]]) -> Window:
    counts = Counter(verdict for _, verdict in ended)
    failed = sum(counts[verdict] for verdict in FAILED)
    return Window(
        first=ended[0][0],
        last=ended[-1][0],
        trials=len(ended),
        failed=failed,
        rate=failed / len(ended),
        # In the order of Verdict, so that windows read alike.
        verdicts={verdict: counts[verdict] for verdict in Verdict if verdict in counts},
    )
