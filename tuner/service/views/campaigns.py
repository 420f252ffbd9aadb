"""What the REST API shows: values made from the tuner's, with times as RFC 3339 and derived numbers beside raw ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from typing_extensions import TypeAliasType

from meshtune.runners.base import Cause
from meshtune.search_spaces.changes import Moves
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Event, Lesson
from meshtune.tuner.campaign.changes import extendable, version_of
from meshtune.tuner.campaign.listing import STEP_TIME, TOKENS_PER_S_PER_DEVICE, Order, TrialKey
from meshtune.tuner.campaign.objective import Objective
from meshtune.tuner.campaign.second_runs import planned_runs
from meshtune.tuner.campaign.spec import Budget, CampaignSpec, document_of, space_of
from meshtune.tuner.campaign.trial import Origin, Trial, TrialState
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.prediction.limits import Limits
from meshtune.tuner.prediction.memory_needs import memory_needs
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.results.quantities import rfc3339
from meshtune.tuner.results.ranking import Ranked, baseline_of, rank
from meshtune.tuner.results.recommendation import choice_among_first
from meshtune.tuner.results.views import KnobView, ObjectiveView, Page, RankedView, knob_view, objective_view, view_of
from meshtune.tuner.results.winners import winners_of

if TYPE_CHECKING:  # clients of a service read these views, and need no database
    from meshtune.tuner.store.pages import Overview

# A summary looks at so many of the best trials first.
MAX_FIRST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryBestView:
    """A setting. trial: the one that chose it; the numbers are of its second runs where there are any, but for the
    fastest once. first_run: the objective by its first run. interval_known: always true. gain_over_baseline: a ratio of
    speeds minus 1; null without a measured baseline. gain_rounds, changes, changed_numerics, runs: as of RankedView."""

    trial: int
    plan_key: str
    changes: Moves
    changed_numerics: tuple[str, ...]
    runs: int
    headroom_bytes: float | None
    objective: ObjectiveView
    first_run: ObjectiveView
    interval_known: bool
    step_time_s: float
    gain_over_baseline: Estimate | None
    gain_rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryBaselineView:
    trial: int
    objective: ObjectiveView
    step_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryView:
    """done: trials that have ended; confirmations: those of them that ran a plan again, beyond the budget;
    second_runs: the fewest and the most such that are planned; in_flight: those that were sent and have not; failed:
    those that ended without a speed and not by intent, and failures: the same by cause. budget: null where it sets no
    limit. device_hours: of jobs that have ended.

    fastest_once: the plan with the best first run. fastest_confirmed: the best of those that were measured again, by
    their second runs. recommended: the one to use, for the recommended_reason; `best` has more of it. Each null where
    there is none; the reason then says what would fit, where all ran out of memory.
    """

    done: int
    confirmations: int
    second_runs: tuple[int, int]
    in_flight: int
    failed: int
    failures: Mapping[Cause, int]
    budget: Budget
    device_hours: float
    fastest_once: SummaryBestView | None
    fastest_confirmed: SummaryBestView | None
    recommended: SummaryBestView | None
    recommended_reason: str
    recommended_is_baseline: bool
    baseline: SummaryBaselineView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """What every view of a campaign has."""

    id: str
    name: str
    version: str
    state: CampaignState
    reason: str
    trouble: str
    created_at: datetime
    updated_at: datetime
    owner: str
    project: str
    model: str
    cluster: str
    nodes: int
    devices: int
    tags: tuple[str, ...]
    simulated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignView(_Line):
    """A campaign. version: another after each change of its name, tags, notes, budget or limits of trials; If-Match
    takes it. trials: how many, by verdict, or by state while they have none. trouble: what it waits for now.

    search_ended: why no more plans are chosen; empty while the search goes on. Then the best ones are measured once
    more. chance_left: the probability that some plan which was not tried is better than the best by more than the
    spec's `stop.tolerance`, as the search said when it was last asked; null where it never said. lessons: the earlier
    campaigns that the search learns from. owner: the name of the token that created it, empty for the command line.
    project, nodes, devices, model, cluster: names and sizes from the spec. tags, notes: by people, for people.
    extendable: it has ended, and goes on with a larger budget. spec: empty in the answer to a move by a
    token that may not read. simulated: no device measures its numbers.
    """

    elapsed_s: float
    combinations: int
    legal: int
    trials: Mapping[str, int]
    search_ended: str
    chance_left: float | None
    lessons: tuple[Lesson, ...]
    notes: str
    extendable: bool
    summary: SummaryView
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignPage(Page):
    campaigns: list[CampaignView]


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignBrief(_Line):
    """A campaign as one line: fields as of CampaignView and its summary. planned: the budget of trials. objective:
    the recommended plan's, in the unit; gain: its gain_over_baseline."""

    done: int
    planned: int | None
    objective: float | None
    unit: str
    gain: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignBriefPage(Page):
    campaigns: list[CampaignBrief]


# Named, so that the document has one model for the route's answer.
CampaignsAnswer = TypeAliasType("CampaignsAnswer", CampaignPage | CampaignBriefPage)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoView:
    """The plans of which none is both slower and fuller than another one, the fastest first."""

    campaign: str
    front: list[RankedView]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceView:
    """A space: combinations of layouts spanned, legal layouts, and how many combinations each rule rejects (they
    overlap). plans: legal layouts times what their knobs can be. memory_needs: as in a quote, without calibration.
    limits: of the trials of a spec; null for a campaign, whose spec has them, and where plans are too many to be
    predicted."""

    combinations: int
    legal: int
    plans: int
    memory_needs: list[str]
    rejected: Mapping[str, int]
    dimensions: Mapping[str, list[Any]]
    knobs: list[KnobView]
    limits: Limits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventView:
    id: int
    campaign_id: str
    at: datetime
    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    events: list[EventView]
    next_page_token: str | None


def campaign_view(campaign: Campaign, trials: Mapping[str, int], summary: SummaryView, trouble: str) -> CampaignView:
    spec = campaign.spec
    return view_of(
        CampaignView,
        campaign,
        spec,
        spec.cluster,
        version=version_of(campaign),
        created_at=rfc3339(campaign.created_at),
        updated_at=rfc3339(campaign.updated_at),
        trials=trials,
        trouble=trouble,
        model=spec.model.name,
        cluster=spec.cluster.name,
        extendable=extendable(campaign),
        summary=summary,
        spec=document_of(spec),
    )


def campaign_brief(campaign: CampaignView) -> CampaignBrief:
    best = campaign.summary.recommended
    return view_of(
        CampaignBrief,
        campaign,
        campaign.summary,
        planned=campaign.summary.budget.trials,
        objective=None if best is None else best.objective.value,
        unit="" if best is None else best.objective.unit,
        gain=None if best is None or best.gain_over_baseline is None else best.gain_over_baseline.value,
    )


def space_view(space: Space, training: Training) -> SpaceView:
    return view_of(
        SpaceView,
        space.counts,
        space,
        limits=None,
        memory_needs=list(memory_needs(space, training)),
        rejected=dict(space.counts.rejected),
        dimensions={name: list(values) for name, values in space.dimensions.items()},
        knobs=list(map(knob_view, space.knobs)),
    )


def event_view(event: Event) -> EventView:
    return view_of(EventView, event, at=rfc3339(event.at))


def trial_counts(overview: Overview) -> dict[str, int]:
    """By verdict, or by state while they have none."""
    counts: Counter[str] = Counter()
    for tally in overview.tallies:
        counts[str(tally.verdict or tally.state)] += tally.attempts if tally.last else 0
    return dict(sorted((+counts).items()))


def summary_view(campaign: Campaign, overview: Overview, every: Callable[[], Sequence[Trial]]) -> SummaryView:
    """overview: of the MAX_FIRST first trials by `order_of`. every: all trials, where these do not suffice."""
    spec, ranking = campaign.spec, rank(campaign, overview.trials)
    if len(overview.first) == MAX_FIRST and choice_among_first(spec, ranking, overview.first) is None:
        ranking = rank(campaign, every())
    winners = winners_of(spec, ranking)
    baseline = baseline_of(ranking)
    last = [tally for tally in overview.tallies if tally.last]
    failures = {cause: sum(tally.attempts for tally in last if tally.failure is cause) for cause in Cause}
    full = campaign.state.final and not ranking and failures[Cause.OOM] > 0
    needs = memory_needs(space_of(spec), training_of(spec)) if full else ()
    own = None
    if baseline is not None:
        reached = objective_view(spec, baseline.objective)
        own = view_of(SummaryBaselineView, baseline, trial=baseline.trial.number, objective=reached)
    return SummaryView(
        done=sum(tally.attempts for tally in last if tally.state.final),
        confirmations=sum(
            tally.attempts for tally in last if tally.origin is Origin.CONFIRMATION and tally.state.final
        ),
        second_runs=planned_runs(campaign.spec, campaign.legal)[1],
        in_flight=sum(tally.attempts for tally in last if tally.state in (TrialState.SUBMITTED, TrialState.RUNNING)),
        failed=sum(failures.values()),
        failures={cause: count for cause, count in failures.items() if count},
        budget=spec.budget,
        device_hours=sum(tally.device_s for tally in overview.tallies) / 3600.0,
        fastest_once=_best_view(spec, winners.fastest_once),
        fastest_confirmed=_best_view(spec, winners.fastest_confirmed),
        recommended=_best_view(spec, winners.recommended),
        recommended_reason="; ".join([winners.recommendation.why, *needs]),
        recommended_is_baseline=winners.recommended is not None and winners.recommended.trial.origin is Origin.BASELINE,
        baseline=own,
    )


def order_of(spec: CampaignSpec) -> Order[TrialKey]:
    """The order of trials by the spec's objective. All objectives but one order as tokens per second and device do."""
    if spec.objective is Objective.STEP_TIME:
        return Order(STEP_TIME)
    return Order(TOKENS_PER_S_PER_DEVICE, descending=True)


def _best_view(spec: CampaignSpec, entry: Ranked | None) -> SummaryBestView | None:
    if entry is None:
        return None
    return view_of(
        SummaryBestView,
        entry,
        trial=entry.trial.number,
        plan_key=entry.trial.plan.key,
        runs=len(entry.runs) - 1,
        objective=objective_view(spec, entry.objective),
        first_run=objective_view(spec, entry.first_run),
        gain_over_baseline=entry.gain,
    )
