"""The routes that show a campaign's trials: pages of them, one, the best, the front, and the analysis."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import TypeAdapter

from meshtune.api.campaign_cache import NOT_MODIFIED, CacheHandle, DocumentsHandle, respond
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
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.results.analysis.analysis import Analysis
from meshtune.tuner.results.comparison import FEWEST, MOST, TrialComparison, side_by_side
from meshtune.tuner.results.quantities import trial_briefs
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.recommendation import front_of
from meshtune.tuner.results.views import BestView, best_view, ranked_views
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.views.campaigns import ParetoView
from meshtune.tuner.service.views.trials import TrialBriefPage, TrialPage, TrialsAnswer, TrialView, trial_view

router = APIRouter(prefix="/v1", dependencies=[reads], tags=["trials"])
DEFAULT_TOP = 10
_WHOLE_PAGE: TypeAdapter[TrialPage] = TypeAdapter(TrialPage)
_BRIEF_PAGE: TypeAdapter[TrialBriefPage] = TypeAdapter(TrialBriefPage)
_BEST: TypeAdapter[BestView] = TypeAdapter(BestView)
_COMPARISON: TypeAdapter[TrialComparison] = TypeAdapter(TrialComparison)
Compared = Annotated[
    list[Annotated[int, Query(ge=0, le=MAX_NUMBER)]],
    Query(description="Numbers, 2 to 5.", min_length=FEWEST, max_length=MOST, examples=[[0, 7]]),
]
_PARETO: TypeAdapter[ParetoView] = TypeAdapter(ParetoView)


@router.get("/campaigns/{campaign_id}/trials", response_model=TrialsAnswer, responses=NOT_MODIFIED)
def list_trials(
    request: Request,
    campaign_id: CampaignId,
    query: Annotated[TrialQuery, Query()],
    service: ServiceHandle,
    cache: CacheHandle,
) -> Response:
    """Trials in the order of planning unless `sort` says otherwise: complete with attempts and every step time, or,
    with view=brief, one line of numbers for each."""
    wanted, brief = query.wanted(), query.view == "brief"

    def page() -> bytes:
        rows = service.pages.trials(campaign_id, wanted, listed=brief)
        shown = rows[: query.page_size]
        token = query.next_token(shown[-1][2], shown[-1][0]) if len(rows) > query.page_size else None
        trials = [trial for _, trial, _ in shown if isinstance(trial, Trial)]
        wrong = [trial for _, trial, _ in shown if isinstance(trial, str)]
        if brief:
            briefs = trial_briefs(service.campaign(campaign_id).spec, trials, service.pages.baseline(campaign_id))
            return _BRIEF_PAGE.dump_json(TrialBriefPage(trials=briefs, next_page_token=token, unreadable=wrong))
        views = list(map(trial_view, trials))
        return _WHOLE_PAGE.dump_json(TrialPage(trials=views, next_page_token=token, unreadable=wrong))

    return respond(request, cache.answer(campaign_id, f"trials {request.url.query}", page))


@router.get("/campaigns/{campaign_id}/trials/{number}")
def get_trial(campaign_id: CampaignId, number: TrialNumber, service: ServiceHandle) -> TrialView:
    """One trial."""
    return trial_view(service.trial(campaign_id, number))


@router.get("/campaigns/{campaign_id}/trial-comparison", response_model=TrialComparison, responses=NOT_MODIFIED)
def compare_trials(
    request: Request, campaign_id: CampaignId, service: ServiceHandle, cache: CacheHandle, trial: Compared
) -> Response:
    """Two to five trials side by side: the plans that differ, speed, memory, and where the time of a step went."""
    numbers = list(dict.fromkeys(trial))

    def comparison() -> bytes:
        trials = [service.trial(campaign_id, number) for number in numbers]
        return _COMPARISON.dump_json(side_by_side(service.campaign(campaign_id), trials))

    return respond(request, cache.answer(campaign_id, f"trial comparison {numbers}", comparison))


@router.get("/campaigns/{campaign_id}/best", response_model=BestView, responses=NOT_MODIFIED)
def best_trials(
    request: Request,
    campaign_id: CampaignId,
    service: ServiceHandle,
    cache: CacheHandle,
    top: Annotated[int, Query(ge=1, le=MAX_PER_PAGE)] = DEFAULT_TOP,
) -> Response:
    """The best plans measured, the front of speed and memory left over, and the recommendation with its reason."""
    answer = cache.answer(campaign_id, f"best {top}", lambda: _best(service, campaign_id, top))
    return respond(request, answer)


@router.get("/campaigns/{campaign_id}/pareto", response_model=ParetoView, responses=NOT_MODIFIED)
def pareto_front(request: Request, campaign_id: CampaignId, service: ServiceHandle, cache: CacheHandle) -> Response:
    """The plans of which none is both slower and fuller than another one."""
    return respond(request, cache.answer(campaign_id, "pareto", lambda: _pareto(service, campaign_id)))


@router.get("/campaigns/{campaign_id}/analysis", response_model=Analysis, responses=NOT_MODIFIED)
async def analyse_campaign(
    request: Request, campaign_id: CampaignId, caller: CallerHandle, documents: DocumentsHandle
) -> Response:
    """What the trials teach: the knobs that matter, failures, what was expected, and why the best plans win."""
    return respond(request, await documents.analysis(campaign_id, caller.sha256))


def _best(service: Service, campaign_id: str, top: int) -> bytes:
    campaign = service.campaign(campaign_id)
    ranking = rank(campaign, service.pages.listed(campaign_id))
    return _BEST.dump_json(best_view(campaign, ranking, top, partial(service.pages.numbered, campaign_id)))


def _pareto(service: Service, campaign_id: str) -> bytes:
    campaign = service.campaign(campaign_id)
    front = front_of(rank(campaign, service.pages.listed(campaign_id)))
    shown = ranked_views(campaign, front, partial(service.pages.numbered, campaign_id))
    return _PARETO.dump_json(ParetoView(campaign=campaign_id, front=shown))
