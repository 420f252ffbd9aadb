"""What the REST API shows: values made from the tuner's, with times as RFC 3339 and derived numbers beside raw ones.

Trials are in `api.schemas.trials`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from meshtune.api.schemas.summary import ObjectiveView, SummaryView, objective_view
from meshtune.api.schemas.trials import rfc3339, view_of
from meshtune.runners.documents import plain
from meshtune.runners.outcome import Verdict
from meshtune.runners.step_breakdown import Straggler
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Event, Lesson
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Origin, PartTime, Trial, time_by_part
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.results.ranking import Confirmation, Ranked
from meshtune.tuner.results.recommendation import Recommendation, front_of
from meshtune.tuner.specs.read import FREE


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignView:
    """A campaign. trials: how many, by verdict, or by state while they have none. trouble: what it waits for now.

    search_ended: why no more plans are chosen; empty while the search goes on. Then the best ones are measured once
    more. chance_left: the probability that some plan which was not tried is better than the best by more than the
    spec's `stop.tolerance`, as the search said when it was last asked; null where it never said. lessons: the earlier
    campaigns that the search learns from. owner: the name of the token that created it, empty for the command line.
    nodes, devices, model, cluster: sizes and names from the spec.
    """

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
    search_ended: str
    chance_left: float | None
    lessons: tuple[Lesson, ...]
    owner: str
    nodes: int
    devices: int
    model: str
    cluster: str
    summary: SummaryView
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignPage:
    campaigns: list[CampaignView]
    next_page_token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAgainView:
    """The trial that measured a setting once more, by a fresh job. first: the objective's value as the first trial
    measured it. change: the second speed over the first minus 1; null where it ended without a measurement."""

    trial: int
    verdict: Verdict
    first: float
    change: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedView:
    """One measured setting. gain_over_baseline: a ratio of speeds minus 1 (0.25: 25 % faster), with at least 90 %.

    peak_memory_bytes: of tensors, on the most loaded rank. headroom_bytes: what the fullest rank left of its device;
    null where the job told no memory. mfu: a share of the device's peak. time_by_part: where the time of a profiled
    step went, means over the ranks; empty where it was not profiled. trains_as_baseline: true, or how the first losses
    differ from the baseline's; null where there is nothing to compare. measured_again: what all the numbers come from
    where it measured something; null where nobody tried.
    """

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
    headroom_bytes: float | None
    tflops_per_device: float
    mfu: float | None
    time_by_part: list[PartTime]
    straggler: Straggler | None
    first_losses: tuple[float, ...]
    gain_over_baseline: Estimate | None
    trains_as_baseline: Literal[True] | str | None
    measured_again: MeasuredAgainView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationView:
    """The setting to use, None before anything was measured."""

    reason: str
    better_than_baseline: bool
    setting: RankedView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BestView:
    """The same as `meshtune best --json`. front: the settings of which none is both slower and fuller than another one,
    the fastest first, as many as there are."""

    campaign: str
    recommendation: RecommendationView
    best: list[RankedView]
    front: list[RankedView]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoView:
    """The settings of which none is both slower and fuller than another one, the fastest first."""

    campaign: str
    front: list[RankedView]


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


def campaign_view(campaign: Campaign, trials: Mapping[str, int], summary: SummaryView, trouble: str) -> CampaignView:
    spec = campaign.spec
    return view_of(
        CampaignView,
        campaign,
        name=spec.name,
        created_at=rfc3339(campaign.created_at),
        updated_at=rfc3339(campaign.updated_at),
        trials=trials,
        trouble=trouble,
        nodes=spec.cluster.nodes,
        devices=spec.cluster.devices,
        model=spec.model.name,
        cluster=spec.cluster.name,
        summary=summary,
        spec=spec_document(spec),
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


def space_view(space: Space) -> SpaceView:
    return SpaceView(
        combinations=space.counts.combinations,
        legal=space.counts.legal,
        rejected=dict(space.counts.rejected),
        dimensions={name: list(values) for name, values in space.dimensions.items()},
    )


def best_view(
    campaign: Campaign, recommendation: Recommendation, ranking: Sequence[Ranked], top: int, whole: Mapping[int, Trial]
) -> BestView:
    """whole: by number, the complete trials of the measurements that are shown."""
    spec, choice = campaign.spec, recommendation.choice
    return BestView(
        campaign=campaign.id,
        recommendation=RecommendationView(
            reason=recommendation.reason,
            better_than_baseline=recommendation.better,
            setting=None if choice is None else _ranked_view(spec, choice, whole),
        ),
        best=[_ranked_view(spec, entry, whole) for entry in ranking[:top]],
        front=[_ranked_view(spec, entry, whole) for entry in front_of(ranking)],
    )


def pareto_view(campaign: Campaign, front: Sequence[Ranked], whole: Mapping[int, Trial]) -> ParetoView:
    """whole: as of `best_view`."""
    return ParetoView(campaign=campaign.id, front=[_ranked_view(campaign.spec, entry, whole) for entry in front])


def event_view(event: Event) -> EventView:
    return view_of(EventView, event, at=rfc3339(event.at))


def _ranked_view(spec: CampaignSpec, entry: Ranked, whole: Mapping[int, Trial]) -> RankedView:
    measured = whole[entry.measured_by.number].measurement
    assert measured is not None  # or it would not be ranked
    profile = measured.profile
    return view_of(
        RankedView,
        entry,
        trial=entry.trial.number,
        origin=entry.trial.origin,
        plan=entry.trial.plan,
        plan_key=entry.trial.plan.key,
        objective=objective_view(spec, entry.objective),
        step_time_s=measured.step_time_s,
        timed_steps=len(measured.step_times_s),
        peak_memory_bytes=entry.memory_bytes,
        time_by_part=list(time_by_part(profile)),
        straggler=None if profile is None else profile.straggler,
        first_losses=measured.first_losses,
        gain_over_baseline=entry.gain,
        measured_again=None if entry.confirmation is None else _measured_again_view(entry.confirmation),
    )


def _measured_again_view(known: Confirmation) -> MeasuredAgainView:
    assert known.trial.verdict is not None  # it has ended
    return view_of(MeasuredAgainView, known, trial=known.trial.number, verdict=known.trial.verdict)
