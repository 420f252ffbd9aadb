"""What the REST API shows: values made from the tuner's, with times as RFC 3339 and derived numbers beside raw ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from runners.outcome import Measurement, Verdict
from runners.reading import plain
from search_spaces.plan import Plan
from search_spaces.space import Space
from tuner.campaign import Campaign, CampaignState, Event
from tuner.documents import FREE
from tuner.recommend import Estimate, Ranked, Recommendation
from tuner.spec import CampaignSpec, Objective
from tuner.trial import Attempt, Origin, Trial, TrialState


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignView:
    """A campaign. trials: how many, by verdict, or by state while they have none. trouble: what it waits for now."""

    id: str
    name: str
    state: CampaignState
    reason: str
    created_at: datetime
    updated_at: datetime
    elapsed_s: float
    combinations: int
    legal: int
    trials: Mapping[str, int]
    trouble: str
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignPage:
    campaigns: list[CampaignView]
    next_page_token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementView:
    """A measurement: raw numbers, and the median with its 95 % interval."""

    step_times_s: tuple[float, ...]
    warmup_times_s: tuple[float, ...]
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    tokens_per_s: float
    tokens_per_s_per_device: float
    flops_per_s_per_device: float | None
    peak_memory_bytes: tuple[int, ...]
    first_losses: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    number: int
    job_name: str
    job_id: str | None
    state: TrialState
    verdict: Verdict | None
    reason: str
    failed_rank: int | None
    phase: str | None
    log_tail: str
    planned_at: datetime
    submitted_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    number: int
    origin: Origin
    state: TrialState
    verdict: Verdict | None
    plan: Plan
    plan_key: str
    measurement: MeasurementView | None
    attempts: list[AttemptView]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPage:
    trials: list[TrialView]
    next_page_token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveView:
    """A measured objective in its unit, with the ends of its 95 % interval."""

    name: Objective
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedView:
    """One measured setting. gain_over_baseline: a ratio of speeds minus 1 (0.25: 25 % faster), with at least 90 %."""

    rank: int
    trial: int
    origin: Origin
    plan: Plan
    plan_key: str
    objective: ObjectiveView
    tokens_per_s: Estimate
    step_time_s: float
    timed_steps: int
    peak_memory_bytes: int | None
    first_losses: tuple[float, ...]
    gain_over_baseline: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationView:
    """The setting to use, None before anything was measured."""

    reason: str
    better_than_baseline: bool
    setting: RankedView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BestView:
    """The same as `meshtune best --json`."""

    campaign: str
    recommendation: RecommendationView
    best: list[RankedView]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceView:
    """A space: combinations spanned, legal plans, and how many combinations each rule rejects (they overlap)."""

    combinations: int
    legal: int
    rejected: Mapping[str, int]
    dimensions: Mapping[str, list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventView:
    id: int
    campaign_id: str
    at: datetime
    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthView:
    status: str
    version: str


def campaign_view(campaign: Campaign, trials: Mapping[str, int], trouble: str) -> CampaignView:
    return CampaignView(
        id=campaign.id,
        name=campaign.spec.name,
        state=campaign.state,
        reason=campaign.reason,
        created_at=_time(campaign.created_at),
        updated_at=_time(campaign.updated_at),
        elapsed_s=campaign.elapsed_s,
        combinations=campaign.combinations,
        legal=campaign.legal,
        trials=dict(trials),
        trouble=trouble,
        spec=spec_document(campaign.spec),
    )


def spec_document(spec: CampaignSpec) -> dict[str, Any]:
    """The spec as a document that `read_spec` reads back to an equal one, so that a campaign can be posted again."""
    document: dict[str, Any] = plain(spec)
    for name in ("workload", "search", "runner"):
        backend = document[name]
        document[name] = {"kind": backend["kind"], **backend["options"]}
    if spec.global_batch_size is None:
        document["global_batch_size"] = FREE
    if spec.baseline is None:
        del document["baseline"]
    return document


def trial_view(trial: Trial) -> TrialView:
    return TrialView(
        number=trial.number,
        origin=trial.origin,
        state=trial.state,
        verdict=trial.verdict,
        plan=trial.plan,
        plan_key=trial.plan.key,
        measurement=None if trial.measurement is None else _measurement_view(trial.measurement),
        attempts=[_attempt_view(attempt) for attempt in trial.attempts],
    )


def space_view(space: Space) -> SpaceView:
    return SpaceView(
        combinations=space.counts.combinations,
        legal=space.counts.legal,
        rejected=dict(space.counts.broken),
        dimensions={name: list(values) for name, values in space.dimensions.items()},
    )


def best_view(campaign: Campaign, recommendation: Recommendation, best: Sequence[Ranked]) -> BestView:
    objective, choice = campaign.spec.objective, recommendation.choice
    return BestView(
        campaign=campaign.id,
        recommendation=RecommendationView(
            reason=recommendation.reason,
            better_than_baseline=recommendation.better,
            setting=None if choice is None else _ranked_view(objective, choice),
        ),
        best=[_ranked_view(objective, entry) for entry in best],
    )


def event_view(event: Event) -> EventView:
    return EventView(
        id=event.id, campaign_id=event.campaign_id, at=_time(event.at), kind=event.kind, data=dict(event.data)
    )


def _ranked_view(objective: Objective, entry: Ranked) -> RankedView:
    reached = entry.objective
    return RankedView(
        rank=entry.rank,
        trial=entry.trial.number,
        origin=entry.trial.origin,
        plan=entry.trial.plan,
        plan_key=entry.trial.plan.key,
        objective=ObjectiveView(name=objective, value=reached.value, low=reached.low, high=reached.high),
        tokens_per_s=entry.tokens_per_s,
        step_time_s=entry.measurement.step_time_s,
        timed_steps=len(entry.measurement.step_times_s),
        peak_memory_bytes=entry.memory_bytes,
        first_losses=entry.measurement.first_losses,
        gain_over_baseline=entry.gain,
    )


def _measurement_view(measured: Measurement) -> MeasurementView:
    interval = measured.step_time_interval_s
    return MeasurementView(
        step_times_s=measured.step_times_s,
        warmup_times_s=measured.warmup_times_s,
        step_time_s=measured.step_time_s,
        step_time_low_s=interval.low,
        step_time_high_s=interval.high,
        tokens_per_s=measured.tokens_per_s,
        tokens_per_s_per_device=measured.tokens_per_s_per_device,
        flops_per_s_per_device=measured.flops_per_s_per_device,
        peak_memory_bytes=measured.peak_memory_bytes,
        first_losses=measured.first_losses,
    )


def _attempt_view(attempt: Attempt) -> AttemptView:
    outcome = attempt.outcome
    return AttemptView(
        number=attempt.number,
        job_name=attempt.job_name,
        job_id=attempt.job_id,
        state=attempt.state,
        verdict=None if outcome is None else outcome.verdict,
        reason="" if outcome is None else outcome.reason,
        failed_rank=None if outcome is None else outcome.failed_rank,
        phase=None if outcome is None else outcome.phase,
        log_tail="" if outcome is None else outcome.log_tail,
        planned_at=_time(attempt.planned_at),
        submitted_at=_optional_time(attempt.submitted_at),
        started_at=_optional_time(attempt.started_at),
        finished_at=_optional_time(attempt.finished_at),
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _optional_time(seconds: float | None) -> datetime | None:
    return None if seconds is None else _time(seconds)
