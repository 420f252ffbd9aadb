"""The routes that show campaigns and their events, start campaigns, and move them from state to state."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from meshtune.api.campaign_cache import NOT_MODIFIED, CacheHandle, CampaignCache, Rendered, answer_of, etag_of, respond
from meshtune.api.dependencies import (
    AfterId,
    CallerHandle,
    CampaignId,
    ChangeableId,
    DriverHandle,
    PageSize,
    PermittedSpec,
    ServiceHandle,
    SpecDocument,
    clones,
    deletes,
    launches,
    launches_unless_dry,
    reads,
    require_permitted,
)
from meshtune.api.openapi import CHANGES_BODY, SPEC_BODY
from meshtune.api.page_queries import CampaignQuery
from meshtune.api.routes.plans import predictable_space, quote_of
from meshtune.api.worker_pool import Asked, AskedHandle
from meshtune.runners.documents import json_of, plain
from meshtune.search_spaces.space import Counts
from meshtune.tuner.access.tokens import Scope
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.spec import CampaignSpec, document_of
from meshtune.tuner.prediction.predict import Basis
from meshtune.tuner.prediction.quote import Quote
from meshtune.tuner.service.driving.loop import Driver
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.views import campaigns as views
from meshtune.tuner.service.views.campaigns import CampaignView
from meshtune.tuner.specs.document import changed_document
from meshtune.tuner.specs.read import limits_left_open
from meshtune.tuner.store import Unreadable

router = APIRouter(prefix="/v1", tags=["campaigns"])
CREATED: dict[int | str, dict[str, Any]] = {
    201: {"headers": {"Location": {"description": "Path of the new campaign.", "schema": {"type": "string"}}}}
}


def show_campaign(campaign: Campaign, service: Service, driver: Driver, cache: CampaignCache) -> CampaignView:
    """The campaign with what became of its trials and what it waits for. Raises NotFound."""

    def summary() -> tuple[dict[str, int], views.SummaryView]:
        overview = service.pages.overview(campaign.id, views.order_of(campaign.spec), views.MAX_FIRST)
        every = partial(service.pages.listed, campaign.id)
        return views.trial_counts(overview), views.summary_view(campaign, overview, every)

    event = service.newest_event(campaign.id)
    counts, shown = cache.get((campaign.id, "summary"), event, summary)
    return views.campaign_view(campaign, counts, shown, str(driver.troubles.get(campaign.id, "")))


async def shower_of(
    service: ServiceHandle, driver: DriverHandle, cache: CacheHandle, caller: CallerHandle, response: Response
) -> Callable[[Campaign], CampaignView]:
    """What shows a campaign, with its ETag, to a caller that moved it: without its spec to one that may not read."""

    def show(campaign: Campaign) -> CampaignView:
        view = show_campaign(campaign, service, driver, cache)
        response.headers["ETag"] = etag_of(json_of(view), view.version)
        return view if caller.may(Scope.READ) else replace(view, spec={})

    return show


ShowCampaign = Annotated[Callable[[Campaign], CampaignView], Depends(shower_of)]


@router.get("/campaigns", response_model=views.CampaignsAnswer, dependencies=[reads], responses=NOT_MODIFIED)
def list_campaigns(
    request: Request,
    query: Annotated[CampaignQuery, Query()],
    caller: CallerHandle,
    service: ServiceHandle,
    driver: DriverHandle,
    cache: CacheHandle,
) -> Response:
    """The campaigns that the caller may read, newest first unless `sort` says otherwise, each with what became of its
    trials, or, with view=brief, one line."""
    troubles = dict(driver.troubles)
    stamps = service.pages.stamps(query.wanted(), caller)
    shown = stamps[: query.page_size]
    token = query.next_token(shown[-1].value, shown[-1].id) if len(stamps) > query.page_size else None
    # Of each: its newest event, when its row was changed last, and what it waits for.
    versions = {stamp.id: (stamp.event, stamp.updated_at, str(troubles.get(stamp.id, ""))) for stamp in shown}

    def row(id: str) -> bytes:
        view = show_campaign(service.campaign(id), service, driver, cache)
        return json_of(views.campaign_brief(view) if query.view == "brief" else view)

    def page() -> Rendered:
        """Only campaigns that have changed are rendered anew."""
        rows, wrong = [], []
        for id, version in versions.items():
            try:
                rows.append(cache.get((id, query.view), version, partial(row, id)))
            except Unreadable as error:
                wrong.append(str(error))
        rest = json.dumps({"next_page_token": token, "unreadable": wrong}).encode()
        return answer_of(b'{"campaigns":[%b],%b' % (b",".join(rows), rest[1:]))

    key = ("campaigns", None if caller.reads_all else caller.sha256, request.url.query)
    return respond(request, cache.get(key, (tuple(versions.items()), token), page))


@router.get("/campaigns/{campaign_id:id}", response_model=CampaignView, dependencies=[reads], responses=NOT_MODIFIED)
def get_campaign(
    request: Request, campaign_id: CampaignId, service: ServiceHandle, driver: DriverHandle, cache: CacheHandle
) -> Response:
    """One campaign, with what became of its trials."""
    view = show_campaign(service.current(campaign_id), service, driver, cache)
    return respond(request, answer_of(json_of(view), version=view.version))


@router.get("/campaigns/{campaign_id}/events", dependencies=[reads])
def list_events(
    campaign_id: CampaignId,
    service: ServiceHandle,
    after: AfterId = 0,
    page_size: PageSize = 100,
    page_token: AfterId = 0,
) -> views.EventPage:
    """What happened, in order."""
    events = service.events(campaign_id, after=max(after, page_token), limit=page_size + 1)
    shown = [views.event_view(event) for event in events[:page_size]]
    return views.EventPage(events=shown, next_page_token=str(shown[-1].id) if len(events) > page_size else None)


@router.post(
    "/campaigns",
    status_code=201,
    response_model=CampaignView,
    dependencies=[launches_unless_dry],
    openapi_extra=SPEC_BODY,
    responses={200: {"model": Quote, "description": "The quote of a dry run"}, **CREATED},
)
async def create_campaign(
    request: Request,
    document: PermittedSpec,
    asked: AskedHandle,
    show: ShowCampaign,
    response: Response,
    dry_run: Annotated[bool, Query(description="Only say what it would meet and cost.")] = False,
) -> CampaignView | Response:
    """Start a campaign. The body is a campaign spec; all its mistakes come back at once, with their paths.

    With `dry_run` the spec is checked as it would be, the runner's part too, and 200 answers with the quote.
    """
    if dry_run:
        return JSONResponse(plain(await asked.of_spec(quote_of, document, asked.service.home)))
    campaign = await _create(document, asked, request.state.text)
    response.headers["Location"] = f"/v1/campaigns/{campaign.id}"
    return await run_in_threadpool(show, campaign)


@router.post(
    "/campaigns/{campaign_id}:clone",
    status_code=201,
    dependencies=[clones],
    openapi_extra=CHANGES_BODY,
    responses=CREATED,
)
async def clone_campaign(
    campaign_id: CampaignId, changes: SpecDocument, asked: AskedHandle, show: ShowCampaign, response: Response
) -> CampaignView:
    """Start a campaign like this one. The body is laid over its spec as RFC 7396 has it: {} for the same. The spec is
    complete, so a preset that is named in place of a description takes its place whole only as a text."""
    original = await run_in_threadpool(asked.service.campaign, campaign_id)
    document = await run_in_threadpool(changed_document, document_of(original.spec), changes)
    require_permitted(asked.caller, document)
    campaign = await _create(document, asked)
    response.headers["Location"] = f"/v1/campaigns/{campaign.id}"
    return await run_in_threadpool(show, campaign)


@router.delete("/campaigns/{campaign_id:id}", status_code=204, dependencies=[deletes])
def delete_campaign(campaign_id: ChangeableId, service: ServiceHandle) -> None:
    """Forget a campaign that is over, with its trials, events and job folders. Campaigns that learnt from it keep its
    name."""
    service.delete(campaign_id)


@router.post("/campaigns/{campaign_id}:pause", dependencies=[launches])
def pause_campaign(campaign_id: ChangeableId, service: ServiceHandle, show: ShowCampaign) -> CampaignView:
    """Start no more trials; those that run are measured to their end."""
    return show(service.pause(campaign_id))


@router.post("/campaigns/{campaign_id}:cancel", status_code=202, dependencies=[launches])
def cancel_campaign(campaign_id: ChangeableId, service: ServiceHandle, show: ShowCampaign) -> CampaignView:
    """End the campaign and its running jobs; what was measured stays."""
    return show(service.cancel(campaign_id))


async def _create(document: object, asked: Asked, text: str = "") -> Campaign:
    """text: the document as it was written. Raises InvalidSpec, and as the pool; then nothing was written."""
    spec, counts = await asked.of_spec(limited, document, asked.service.home)
    return await run_in_threadpool(partial(asked.service.add, spec, counts, asked.caller.name, text=text))


def limited(document: object, spec: CampaignSpec, basis: Basis) -> tuple[CampaignSpec, Counts]:
    """The spec with the limits that it leaves open, and the size of its space. Raises InvalidSpec where no plan is
    legal or its time limit cannot hold the baseline, and TooCostly: searches predict what all of them need."""
    space = predictable_space(spec)
    return limits_left_open(document, spec, space, basis).laid_over(spec), space.totals
