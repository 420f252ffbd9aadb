"""The analysis of a campaign: importance and effect of knobs, failure rates, forecasts against outcomes, and why the
best plans win.

Pure: a campaign, its space and its trials in, a value out. Measured and predicted numbers are kept apart, and each says
which it is. Plans that do not train as the baseline does are left out: their speed is of another computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshtune.search_spaces.physics.training import missing
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.prediction.predict import Basis, learn, training_of
from meshtune.tuner.results.analysis.failure_rates import FAILED, Failures, count_failures
from meshtune.tuner.results.analysis.forecast_check import ForecastCheck, check_forecasts
from meshtune.tuner.results.analysis.knob_effects import Effect, by_size, measured_effects, predicted_effects, reverse
from meshtune.tuner.results.analysis.knob_importance import Sensitivity, sensitivity
from meshtune.tuner.results.analysis.why_faster import Winner, explain_winners
from meshtune.tuner.results.ranking import rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What the trials of a campaign teach. simulated: nothing of it was measured on any device. trials: that have
    ended. effects: the largest first. basis: of the predictions; null, for the reason in `unpredicted`, where there are
    none."""

    campaign: str
    simulated: bool
    trials: int
    sensitivity: Sensitivity
    effects: tuple[Effect, ...]
    failures: Failures
    hindsight: ForecastCheck
    winners: tuple[Winner, ...]
    basis: Basis | None
    unpredicted: str


def analyse(campaign: Campaign, space: Space, trials: Sequence[Trial]) -> Analysis:
    """The analysis of a campaign over its space, at any time of its life."""
    ranking = [entry for entry in rank(campaign, trials) if not entry.trains_otherwise]
    usable = [entry for entry in ranking if entry.usable]
    measured = {entry.trial.plan: entry.tokens_per_s.value for entry in ranking}
    training = training_of(campaign.spec)
    unknown = ", ".join(problem.path for problem in missing(training))
    basis = None if unknown else learn(campaign.label, campaign.spec, trials)
    effects = measured_effects(space, measured)
    if basis is not None and usable:
        known = {effect.moves for effect in effects}
        failed = {trial.plan: trial.verdict for trial in trials if trial.verdict in FAILED}
        predicted = predicted_effects(space, training, basis.calibration, usable[0].trial.plan, failed)
        effects += [one for one in predicted if not {one.moves, reverse(one.moves)} & known]
    return Analysis(
        campaign=campaign.id,
        simulated=campaign.simulated,
        trials=sum(trial.state.final for trial in trials),
        sensitivity=sensitivity(space, measured),
        effects=tuple(by_size(effects)),
        failures=count_failures(trials),
        hindsight=check_forecasts(trials),
        winners=explain_winners(training, usable, basis),
        basis=basis,
        unpredicted=f"no times can be predicted: {unknown} is not known of the cluster" if unknown else "",
    )
