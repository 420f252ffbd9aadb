"""The routes that show a campaign's trials: pages of them, one, the best, and the front."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import TypeAdapter

from meshtune.api.answers import NOT_MODIFIED
from meshtune.api.dependencies import MOST_PER_PAGE, CampaignId, ServiceHandle, TrialNumber
from meshtune.api.makers import Turns, make
from meshtune.api.openapi import problems
from meshtune.api.reading import PolledHandle, ReadingHandle
from meshtune.api.requests.access import reads
from meshtune.api.requests.page_queries import TrialQuery
from meshtune.api.schemas.campaigns import BestView, ParetoView
from meshtune.api.schemas.trial_brief import TrialsAnswer, brief_page
from meshtune.api.schemas.trials import TrialPage, TrialView, trial_view
from meshtune.api.summaries import TOP
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.listing import TrialsWanted
from meshtune.tuner.store import Store

router = APIRouter(prefix="/v1", dependencies=[reads], responses=problems(404, 422, 503), tags=["trials"])
_FULL: TypeAdapter[TrialPage] = TypeAdapter(TrialPage)


@router.get("/campaigns/{campaign_id}/trials", response_model=TrialsAnswer, responses=NOT_MODIFIED)
async def list_trials(
    request: Request,
    campaign_id: CampaignId,
    query: Annotated[TrialQuery, Query()],
    service: ServiceHandle,
    reading: ReadingHandle,
    polled: PolledHandle,
) -> Response:
    """Trials in the order of planning unless `sort` says otherwise: complete with attempts and every step time, or,
    with view=brief, one line of numbers for each."""
    wanted, page = query.wanted(), _full_page if query.view == "full" else _brief_page
    question = f"trials {request.url.query}"
    answer = await make(
        Turns.SHORT,
        reading.of_trials,
        campaign_id,
        question,
        lambda campaign, _: page(service.store, campaign, query, wanted),
    )
    return polled.leave(request, answer, campaign_id=campaign_id)


@router.get("/campaigns/{campaign_id}/trials/{number}")
def get_trial(campaign_id: CampaignId, number: TrialNumber, service: ServiceHandle) -> TrialView:
    """One trial."""
    return trial_view(service.store.trial(campaign_id, number))


@router.get("/campaigns/{campaign_id}/best", response_model=BestView, responses=NOT_MODIFIED)
async def best_trials(
    request: Request,
    campaign_id: CampaignId,
    reading: ReadingHandle,
    polled: PolledHandle,
    top: Annotated[int, Query(ge=1, le=MOST_PER_PAGE)] = TOP,
) -> Response:
    """The best settings measured, the front of speed and memory left over, and the recommendation with its reason."""
    return polled.leave(request, await make(Turns.LONG, reading.best, campaign_id, top), campaign_id=campaign_id)


@router.get("/campaigns/{campaign_id}/pareto", response_model=ParetoView, responses=NOT_MODIFIED)
async def pareto_front(
    request: Request, campaign_id: CampaignId, reading: ReadingHandle, polled: PolledHandle
) -> Response:
    """The settings of which none is both slower and fuller than another one."""
    return polled.leave(request, await make(Turns.LONG, reading.pareto, campaign_id), campaign_id=campaign_id)


def _full_page(store: Store, campaign: Campaign, query: TrialQuery, wanted: TrialsWanted) -> bytes:
    found = store.pages.trials(campaign.id, wanted)
    shown = found[: query.page_size]
    token = query.next_token(shown[-1][1], shown[-1][0].number) if len(found) > query.page_size else None
    return _FULL.dump_json(TrialPage(trials=[trial_view(trial) for trial, _ in shown], next_page_token=token))


def _brief_page(store: Store, campaign: Campaign, query: TrialQuery, wanted: TrialsWanted) -> bytes:
    found = store.pages.briefs(campaign.id, wanted)
    shown = found[: query.page_size]
    token = query.next_token(shown[-1].value, shown[-1].number) if len(found) > query.page_size else None
    return brief_page(campaign.spec, shown, token)
