"""The routes that show campaigns, one and many."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api.access import reads
from api.answers import NOT_MODIFIED, respond
from api.handles import CampaignId, DriverHandle, ServiceHandle
from api.page_queries import CampaignQuery
from api.reading import PolledHandle, ReadingHandle
from api.schema import problems
from api.views import CampaignPage, CampaignView

router = APIRouter(prefix="/v1", dependencies=[reads], responses=problems(422, 503), tags=["campaigns"])


@router.get("/campaigns", response_model=CampaignPage, responses=NOT_MODIFIED)
def list_campaigns(
    request: Request,
    query: Annotated[CampaignQuery, Query()],
    service: ServiceHandle,
    reading: ReadingHandle,
    polled: PolledHandle,
) -> Response:
    """Campaigns, newest first unless `sort` says otherwise, each with what became of its trials."""
    troubles = polled.troubles()
    found = service.store.pages.stamps(query.wanted())
    shown = found[: query.page_size]
    token = query.next_token(shown[-1].value, shown[-1].id) if len(found) > query.page_size else None
    return polled.leave(request, reading.campaigns(request.url.query, shown, dict(troubles), token), troubles=troubles)


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
