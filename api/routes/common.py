"""Routes about spaces, events and analyses, and the view of a campaign that several routes answer with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from meshtune.api.analysis_process import AnalysesHandle
from meshtune.api.campaign_cache import NOT_MODIFIED, CacheHandle, CampaignCache, respond
from meshtune.api.dependencies import ONE_SPACE, CampaignId, DriverHandle, ServiceHandle
from meshtune.api.openapi import SPEC_BODY, problems
from meshtune.api.requests.authorization import HarmlessSpec, reads
from meshtune.api.schemas.campaigns import CampaignView, EventView, SpaceView, campaign_view, event_view, space_view
from meshtune.api.schemas.summary import SummaryView, summary_view, trial_counts
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.prediction.predict import Basis
from meshtune.tuner.prediction.quote import Quote, make_quote
from meshtune.tuner.results.analysis.analysis import Analysis
from meshtune.tuner.service.loop import Driver
from meshtune.tuner.specs.read import read_spec
from meshtune.tuner.store import Store

router = APIRouter(prefix="/v1", dependencies=[reads], responses=problems(422, 503))


@router.get(
    "/campaigns/{campaign_id}/analysis",
    response_model=Analysis,
    responses=problems(404) | NOT_MODIFIED,
    tags=["trials"],
)
async def analyse_campaign(request: Request, campaign_id: CampaignId, analyses: AnalysesHandle) -> Response:
    """What the trials teach: the knobs that matter, failures, what was expected, and why the best plans win."""
    return respond(request, await analyses.of(campaign_id))


@router.get("/campaigns/{campaign_id}/space", responses=problems(404), tags=["spaces"])
def campaign_space(campaign_id: CampaignId, service: ServiceHandle) -> SpaceView:
    """The campaign's space: how many plans are legal, and what rejects the others."""
    spec = service.store.campaign(campaign_id).spec
    with ONE_SPACE:
        return space_view(space_of(spec))


@router.post("/spaces", openapi_extra=SPEC_BODY, responses=problems(413, 415), tags=["spaces"])
def count_space(document: HarmlessSpec, service: ServiceHandle) -> SpaceView:
    """The space of a spec, without starting anything."""
    with ONE_SPACE:
        return space_view(read_spec(document, None)[1])


@router.post("/estimates", openapi_extra=SPEC_BODY, responses=problems(413, 415), tags=["spaces"])
def estimate_campaign(document: HarmlessSpec, service: ServiceHandle) -> Quote:
    """What a campaign of this spec will meet and cost, predicted without any measurement; nothing is started."""
    with ONE_SPACE:
        return make_quote(*read_spec(document, None), Basis())


@router.get("/campaigns/{campaign_id}/events", responses=problems(404), tags=["campaigns"])
def list_events(
    campaign_id: CampaignId,
    service: ServiceHandle,
    after: Annotated[int, Query(ge=0, le=2**63 - 1, description="Only events with larger ids.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[EventView]:
    """What happened, in order."""
    service.store.campaign(campaign_id)
    return [event_view(event) for event in service.store.events(campaign_id, after=after, limit=limit)]


def show_campaign(campaign: Campaign, store: Store, driver: Driver, cache: CampaignCache) -> CampaignView:
    """The campaign with what became of its trials and what it waits for. Raises NotFound."""

    def summary() -> tuple[dict[str, int], SummaryView]:
        trials = store.pages.listed(campaign.id)
        return trial_counts(trials), summary_view(campaign, trials)

    event = store.newest_event(campaign.id)
    counts, shown = cache.get((campaign.id, "summary"), event, summary)
    return campaign_view(campaign, counts, shown, driver.troubles.get(campaign.id, ""))


async def shower_of(
    service: ServiceHandle, driver: DriverHandle, cache: CacheHandle
) -> Callable[[Campaign], CampaignView]:
    return partial(show_campaign, store=service.store, driver=driver, cache=cache)


ShowCampaign = Annotated[Callable[[Campaign], CampaignView], Depends(shower_of)]
