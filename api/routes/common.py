"""The routes of REST /v1. They translate: each calls the service or the store once or twice and shows the answer."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from meshtune.api.answers import NOT_MODIFIED
from meshtune.api.dependencies import ONE_SPACE, CampaignId, ServiceHandle
from meshtune.api.makers import Turns, make
from meshtune.api.openapi import SPEC_BODY, problems
from meshtune.api.reading import PolledHandle, ReadingHandle
from meshtune.api.requests.access import HarmlessSpec, reads
from meshtune.api.schemas.campaigns import CampaignView, EventView, SpaceView, campaign_view, event_view, space_view
from meshtune.api.summaries import summary_of
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.space import space_of
from meshtune.tuner.prediction.predict import Basis
from meshtune.tuner.prediction.quote import Quote, make_quote
from meshtune.tuner.results.analysis.analysis import Analysis
from meshtune.tuner.service.loop import Driver
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.read import read_spec

router = APIRouter(prefix="/v1", dependencies=[reads], responses=problems(422, 503))


@router.get(
    "/campaigns/{campaign_id}/analysis",
    response_model=Analysis,
    responses=problems(404) | NOT_MODIFIED,
    tags=["trials"],
)
async def analyse_campaign(
    request: Request, campaign_id: CampaignId, reading: ReadingHandle, polled: PolledHandle
) -> Response:
    """What the trials teach: the knobs that matter, failures, what was expected, and why the best plans win."""
    answer = await make(Turns.SHORT, reading.known_analysis, campaign_id)
    if answer is None:
        answer = await make(Turns.ANALYSIS, reading.analysis, campaign_id)
    return polled.leave(request, answer, campaign_id=campaign_id)


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


def show_campaign(campaign: Campaign, service: Service, driver: Driver) -> CampaignView:
    """The campaign with what became of its trials and what it waits for."""
    return campaign_view(campaign, summary_of(service.store, campaign), driver.troubles.get(campaign.id, ""))
