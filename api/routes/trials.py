"""The routes that show a campaign's trials: pages of them, one, the best, the front, and the analysis."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from meshtune.api.campaign_cache import NOT_MODIFIED, CachedAnswer, DocumentsHandle, respond
from meshtune.api.dependencies import (
    MAX_NUMBER,
    MAX_PER_PAGE,
    CallerHandle,
    CampaignId,
    ServiceHandle,
    TrialNumber,
    reads,
)
from meshtune.api.page_queries import TrialQuery
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.results.analysis.analysis import Analysis
from meshtune.tuner.results.comparison import FEWEST, MOST, TrialComparison, side_by_side
from meshtune.tuner.results.quantities import settings_of, trial_briefs
from meshtune.tuner.results.ranking import Ranked, rank
from meshtune.tuner.results.recommendation import front_of
from meshtune.tuner.results.views import BestView, best_view, ranked_views
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.views.campaigns import MAX_FIRST, ParetoView, order_of
from meshtune.tuner.service.views.trials import TrialBriefPage, TrialPage, TrialsAnswer, TrialView, trial_view
from meshtune.tuner.store import StoreError

router = APIRouter(prefix="/v1", dependencies=[reads], tags=["trials"])
DEFAULT_TOP = 10
Compared = Annotated[
    list[Annotated[int, Query(ge=0, le=MAX_NUMBER)]],
    Query(description="Numbers, 2 to 5.", min_length=FEWEST, max_length=MOST, examples=[[0, 7]]),
]


@router.get("/campaigns/{campaign_id}/trials", response_model=TrialsAnswer, responses=NOT_MODIFIED)
def list_trials(
    request: Request,
    campaign_id: CampaignId,
    query: Annotated[TrialQuery, Query()],
    service: ServiceHandle,
    answer: CachedAnswer,
) -> Response:
    """Trials in the order of planning unless `sort` says otherwise: complete with attempts and every step time, or,
    with view=brief, one line of numbers for each."""
    wanted, brief = query.wanted(), query.view == "brief"

    def page() -> TrialPage | TrialBriefPage:
        rows = service.pages.trials(campaign_id, wanted, listed=brief)
        shown = rows[: query.page_size]
        token = query.next_token(shown[-1][2], shown[-1][0]) if len(rows) > query.page_size else None
        trials = [trial for _, trial, _ in shown if isinstance(trial, Trial)]
        wrong = [trial for _, trial, _ in shown if isinstance(trial, str)]
        if brief:
            campaign = service.campaign(campaign_id)
            briefs = trial_briefs(campaign, trials, _compared(service, campaign))
            return TrialBriefPage(trials=briefs, next_page_token=token, unreadable=wrong)
        return TrialPage(trials=list(map(trial_view, trials)), next_page_token=token, unreadable=wrong)

    return answer(f"trials {request.url.query}", page)


@router.get("/campaigns/{campaign_id}/trials/{number}")
def get_trial(campaign_id: CampaignId, number: TrialNumber, service: ServiceHandle) -> TrialView:
    """One trial."""
    trial, campaign = service.trial(campaign_id, number), service.campaign(campaign_id)
    return trial_view(trial, settings_of(rank(campaign, _compared(service, campaign))).get(trial.plan))


@router.get("/campaigns/{campaign_id}/trial-comparison", response_model=TrialComparison, responses=NOT_MODIFIED)
def compare_trials(campaign_id: CampaignId, service: ServiceHandle, answer: CachedAnswer, trial: Compared) -> Response:
    """Two to five trials side by side: the plans that differ, speed, memory, and where the time of a step went."""
    numbers = list(dict.fromkeys(trial))

    def comparison() -> TrialComparison:
        trials = [service.trial(campaign_id, number) for number in numbers]
        return side_by_side(service.campaign(campaign_id), trials)

    return answer(f"trial comparison {numbers}", comparison)


@router.get("/campaigns/{campaign_id}/best", response_model=BestView, responses=NOT_MODIFIED)
def best_trials(
    campaign_id: CampaignId,
    service: ServiceHandle,
    answer: CachedAnswer,
    top: Annotated[int, Query(ge=1, le=MAX_PER_PAGE)] = DEFAULT_TOP,
) -> Response:
    """The best plans measured, the front of speed and memory left over, and the recommendation with its reason."""
    whole = partial(service.pages.numbered, campaign_id)
    return answer(f"best {top}", lambda: best_view(*_ranked(service, campaign_id), top, whole))


@router.get("/campaigns/{campaign_id}/pareto", response_model=ParetoView, responses=NOT_MODIFIED)
def pareto_front(campaign_id: CampaignId, service: ServiceHandle, answer: CachedAnswer) -> Response:
    """The plans of which none is both slower and fuller than another one."""

    def pareto() -> ParetoView:
        campaign, ranking = _ranked(service, campaign_id)
        shown = ranked_views(campaign, front_of(ranking), partial(service.pages.numbered, campaign_id))
        return ParetoView(campaign=campaign_id, front=shown)

    return answer("pareto", pareto)


@router.get("/campaigns/{campaign_id}/analysis", response_model=Analysis, responses=NOT_MODIFIED)
async def analyse_campaign(
    request: Request, campaign_id: CampaignId, caller: CallerHandle, documents: DocumentsHandle
) -> Response:
    """What the trials teach: the knobs that matter, failures, what was expected, and why the best plans win."""
    return respond(request, await documents.analysis(campaign_id, caller.sha256))


def _ranked(service: Service, campaign_id: str) -> tuple[Campaign, list[Ranked]]:
    campaign = service.campaign(campaign_id)
    return campaign, rank(campaign, service.pages.listed(campaign_id))


def _compared(service: Service, campaign: Campaign) -> Sequence[Trial]:
    """What a campaign's summary is made of; nothing where a row of it cannot be read."""
    with suppress(StoreError):
        return service.pages.overview(campaign.id, order_of(campaign.spec), MAX_FIRST).trials
    return ()
