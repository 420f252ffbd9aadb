"""The routes that show campaigns, one and many."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import TypeAdapter

from meshtune.api.campaign_cache import NOT_MODIFIED, CacheHandle, CampaignCache, answer_of, respond
from meshtune.api.dependencies import CampaignId, DriverHandle, ServiceHandle
from meshtune.api.openapi import problems
from meshtune.api.requests.authorization import reads
from meshtune.api.requests.page_queries import CampaignQuery
from meshtune.api.routes.common import show_campaign
from meshtune.api.schemas.campaigns import CampaignPage, CampaignView
from meshtune.tuner.service.loop import Driver
from meshtune.tuner.store import Store

router = APIRouter(prefix="/v1", dependencies=[reads], responses=problems(422, 503), tags=["campaigns"])
_CAMPAIGN: TypeAdapter[CampaignView] = TypeAdapter(CampaignView)
# Of a campaign: its newest event, when its row was changed last, and what it waits for.
Version = tuple[int, float, str]


@router.get("/campaigns", response_model=CampaignPage, responses=NOT_MODIFIED)
def list_campaigns(
    request: Request,
    query: Annotated[CampaignQuery, Query()],
    service: ServiceHandle,
    driver: DriverHandle,
    cache: CacheHandle,
) -> Response:
    """Campaigns, newest first unless `sort` says otherwise, each with what became of its trials."""
    store, troubles = service.store, dict(driver.troubles)
    found = store.pages.stamps(query.wanted())
    shown = found[: query.page_size]
    token = query.next_token(shown[-1].value, shown[-1].id) if len(found) > query.page_size else None
    versions = {stamp.id: (stamp.event, stamp.updated_at, troubles.get(stamp.id, "")) for stamp in shown}
    answer = cache.get(
        ("campaigns", request.url.query),
        (tuple(versions.items()), token),
        lambda: answer_of(_page(store, driver, cache, versions, token)),
    )
    return respond(request, answer)


@router.get("/campaigns/{campaign_id}", response_model=CampaignView, responses=problems(404) | NOT_MODIFIED)
def get_campaign(
    request: Request, campaign_id: CampaignId, service: ServiceHandle, driver: DriverHandle, cache: CacheHandle
) -> Response:
    """One campaign, with what became of its trials."""
    view = show_campaign(service.current(campaign_id), service.store, driver, cache)
    return respond(request, answer_of(_CAMPAIGN.dump_json(view)))


def _page(
    store: Store, driver: Driver, cache: CampaignCache, versions: Mapping[str, Version], token: str | None
) -> bytes:
    """The JSON of a CampaignPage, in which only campaigns that have changed are rendered anew."""

    def rendered(id: str) -> bytes:
        return _CAMPAIGN.dump_json(show_campaign(store.campaign(id), store, driver, cache))

    views = [cache.get((id, "listed"), version, partial(rendered, id)) for id, version in versions.items()]
    return b'{"campaigns":[%b],"next_page_token":%b}' % (b",".join(views), json.dumps(token).encode())
