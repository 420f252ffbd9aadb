"""The routes that show campaigns, one and many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from meshtune.api.answers import NOT_MODIFIED, Answer, respond
from meshtune.api.dependencies import CampaignId, DriverHandle, ServiceHandle
from meshtune.api.makers import Turns, make
from meshtune.api.openapi import problems
from meshtune.api.reading import PolledHandle, Reading, ReadingHandle
from meshtune.api.requests.access import reads
from meshtune.api.requests.page_queries import CampaignQuery
from meshtune.api.schemas.campaigns import CampaignPage, CampaignView
from meshtune.tuner.service.service import Service

router = APIRouter(prefix="/v1", dependencies=[reads], responses=problems(422, 503), tags=["campaigns"])


@router.get("/campaigns", response_model=CampaignPage, responses=NOT_MODIFIED)
async def list_campaigns(
    request: Request,
    query: Annotated[CampaignQuery, Query()],
    service: ServiceHandle,
    reading: ReadingHandle,
    polled: PolledHandle,
) -> Response:
    """Campaigns, newest first unless `sort` says otherwise, each with what became of its trials."""
    troubles = polled.troubles()
    answer = await make(Turns.SHORT, _page, service, reading, request.url.query, query, dict(troubles))
    return polled.leave(request, answer, troubles=troubles)


@router.get("/campaigns/{campaign_id}", response_model=CampaignView, responses=problems(404) | NOT_MODIFIED)
def get_campaign(
    request: Request,
    campaign_id: CampaignId,
    service: ServiceHandle,
    driver: DriverHandle,
    reading: ReadingHandle,
) -> Response:
    """One campaign, with what became of its trials."""
    campaign = service.current(campaign_id)
    return respond(request, reading.campaign(campaign, driver.troubles.get(campaign.id, "")))


def _page(
    service: Service, reading: Reading, question: str, query: CampaignQuery, troubles: Mapping[str, str]
) -> Answer:
    found = service.store.pages.stamps(query.wanted())
    shown = found[: query.page_size]
    token = query.next_token(shown[-1].value, shown[-1].id) if len(found) > query.page_size else None
    return reading.campaigns(question, shown, troubles, token)
