"""What the REST API shows of a campaign in a list: how its trials ended, their cost, and the best setting so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshtune.runners.failure_cause import Cause
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.campaign.objective import Objective, yardstick_of
from meshtune.tuner.campaign.spec import Budget, CampaignSpec
from meshtune.tuner.campaign.summary import Summary, SummarySetting


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
    return ObjectiveView(
        name=spec.objective,
        value=reached.value,
        low=reached.low,
        high=reached.high,
        unit=yardstick_of(spec).unit,
        smaller_is_better=spec.objective.smaller_is_better,
    )


def summary_view(spec: CampaignSpec, summary: Summary) -> SummaryView:
    return SummaryView(
        done=summary.done,
        confirmations=summary.confirmations,
        in_flight=summary.in_flight,
        failed=summary.failed,
        failures=dict(summary.failures),
        budget=spec.budget,
        device_hours=summary.device_hours,
        best=None if summary.best is None else _best_view(spec, summary.best),
        baseline=None if summary.baseline is None else _baseline_view(spec, summary.baseline),
    )


def _best_view(spec: CampaignSpec, entry: SummarySetting) -> SummaryBestView:
    return SummaryBestView(
        trial=entry.trial,
        plan_key=entry.plan_key,
        objective=objective_view(spec, entry.objective),
        step_time_s=entry.step_time_s,
        gain_over_baseline=entry.gain,
    )


def _baseline_view(spec: CampaignSpec, entry: SummarySetting) -> SummaryBaselineView:
    return SummaryBaselineView(
        trial=entry.trial,
        objective=objective_view(spec, entry.objective),
        step_time_s=entry.step_time_s,
    )
