"""What the REST API shows of a campaign's trials in a list: how they ended, their cost, and the best setting so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshtune.api.schemas.trials import view_of
from meshtune.runners.failure_cause import Cause
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.objective import Objective, yardstick_of
from meshtune.tuner.campaign.spec import Budget, CampaignSpec
from meshtune.tuner.campaign.trial import Origin, Trial, TrialState
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.results.ranking import Ranked, rank
from meshtune.tuner.results.recommendation import recommend_among


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveView:
    """A measured objective in its unit, with the ends of its 95 % interval."""

    name: Objective
    value: float
    low: float
    high: float
    unit: str
    smaller_is_better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryBestView:
    """The recommended setting. trial: the one that chose it; the numbers are of its second run where there is one.
    gain_over_baseline: a ratio of speeds minus 1; null without a measured baseline."""

    trial: int
    plan_key: str
    objective: ObjectiveView
    step_time_s: float
    gain_over_baseline: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryBaselineView:
    trial: int
    objective: ObjectiveView
    step_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryView:
    """done: trials that have ended; confirmations: those of them that ran a setting again, beyond the budget;
    in_flight: those that were sent and have not; failed: those that ended without a speed and not by intent, and
    failures: the same by cause. budget: null where it sets no limit. device_hours: of jobs that have ended. best: null
    before anything was measured."""

    done: int
    confirmations: int
    in_flight: int
    failed: int
    failures: Mapping[Cause, int]
    budget: Budget
    device_hours: float
    best: SummaryBestView | None
    baseline: SummaryBaselineView | None


def objective_view(spec: CampaignSpec, reached: Estimate) -> ObjectiveView:
    return view_of(
        ObjectiveView,
        reached,
        name=spec.objective,
        unit=yardstick_of(spec).unit,
        smaller_is_better=spec.objective.smaller_is_better,
    )


def trial_counts(trials: Sequence[Trial]) -> dict[str, int]:
    """By verdict, or by state while they have none."""
    return dict(sorted(Counter(str(trial.verdict or trial.state) for trial in trials).items()))


def summary_view(campaign: Campaign, trials: Sequence[Trial]) -> SummaryView:
    spec, ranking = campaign.spec, rank(campaign, trials)
    baseline = next((entry for entry in ranking if entry.trial.origin is Origin.BASELINE), None)
    failures = Counter(trial.outcome.failure for trial in trials if trial.outcome is not None)
    held_s = sum(attempt.running_s for trial in trials for attempt in trial.attempts)
    return SummaryView(
        done=sum(trial.state.final for trial in trials),
        confirmations=sum(trial.origin is Origin.CONFIRMATION and trial.state.final for trial in trials),
        in_flight=sum(trial.state in (TrialState.SUBMITTED, TrialState.RUNNING) for trial in trials),
        failed=sum(failures[cause] for cause in Cause),
        failures={cause: failures[cause] for cause in Cause if failures[cause]},
        budget=spec.budget,
        device_hours=held_s * spec.cluster.devices / 3600.0,
        best=_best_view(spec, recommend_among(spec, ranking).choice),
        baseline=None if baseline is None else _baseline_view(spec, baseline),
    )


def _best_view(spec: CampaignSpec, entry: Ranked | None) -> SummaryBestView | None:
    if entry is None:
        return None
    return SummaryBestView(
        trial=entry.trial.number,
        plan_key=entry.trial.plan.key,
        objective=objective_view(spec, entry.objective),
        step_time_s=entry.measurement.step_time_s,
        gain_over_baseline=entry.gain,
    )


def _baseline_view(spec: CampaignSpec, entry: Ranked) -> SummaryBaselineView:
    return SummaryBaselineView(
        trial=entry.trial.number,
        objective=objective_view(spec, entry.objective),
        step_time_s=entry.measurement.step_time_s,
    )
