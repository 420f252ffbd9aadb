"""The routes that start a campaign and move it from state to state."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response, status
from fastapi.responses import JSONResponse

from meshtune.api.dependencies import ONE_SPACE, CampaignId, ServiceHandle, SpecDocument
from meshtune.api.openapi import CHANGES_BODY, SPEC_BODY, problems
from meshtune.api.requests.authorization import (
    CallerHandle,
    HarmlessSpec,
    administers,
    launches,
    launches_unless_dry,
    require_harmless,
)
from meshtune.api.routes.common import ShowCampaign
from meshtune.api.schemas.campaigns import CampaignView, spec_document
from meshtune.runners.documents import plain
from meshtune.tuner.prediction.predict import Basis
from meshtune.tuner.prediction.quote import Quote, make_quote
from meshtune.tuner.specs.document import changed_document
from meshtune.tuner.specs.read import read_spec

router = APIRouter(prefix="/v1", responses=problems(422, 503), tags=["campaigns"])
CREATED: dict[int | str, dict[str, Any]] = {
    201: {"headers": {"Location": {"description": "Path of the new campaign.", "schema": {"type": "string"}}}}
}


@router.post(
    "/campaigns",
    status_code=status.HTTP_201_CREATED,
    response_model=CampaignView,
    dependencies=[launches_unless_dry],
    openapi_extra=SPEC_BODY,
    responses={
        200: {"model": Quote, "description": "The quote of a dry run"},
        **CREATED,
        **problems(409, 413, 415),
    },
)
def create_campaign(
    document: HarmlessSpec,
    caller: CallerHandle,
    service: ServiceHandle,
    show: ShowCampaign,
    response: Response,
    dry_run: Annotated[bool, Query(description="Only say what it would meet and cost.")] = False,
) -> CampaignView | Response:
    """Start a campaign. The body is a campaign spec; all its mistakes come back at once, with their paths.

    With `dry_run` the spec is checked as it would be, the runner's part too, and 200 answers with the quote.
    """
    if dry_run:
        with ONE_SPACE:
            quote = make_quote(*read_spec(document, service.home), Basis())
        return JSONResponse(plain(quote))
    with ONE_SPACE:
        campaign = service.create(document, caller.name)
    response.headers["Location"] = f"/v1/campaigns/{campaign.id}"
    return show(campaign)


@router.post(
    "/campaigns/{campaign_id}:clone",
    status_code=status.HTTP_201_CREATED,
    dependencies=[launches],
    openapi_extra=CHANGES_BODY,
    responses={**CREATED, **problems(404, 409, 413, 415)},
)
def clone_campaign(
    campaign_id: CampaignId,
    changes: SpecDocument,
    caller: CallerHandle,
    service: ServiceHandle,
    show: ShowCampaign,
    response: Response,
) -> CampaignView:
    """Start a campaign like this one. The body is laid over its spec as RFC 7396 has it: {} for the same. The spec is
    complete, so a preset that is named in place of a description takes its place whole only as a text."""
    document = changed_document(spec_document(service.store.campaign(campaign_id).spec), changes)
    require_harmless(caller, document)
    with ONE_SPACE:
        campaign = service.create(document, caller.name)
    response.headers["Location"] = f"/v1/campaigns/{campaign.id}"
    return show(campaign)


@router.delete(
    "/campaigns/{campaign_id}",
    status_code=status.HTTP_204_NO_CONTENT,
    dependencies=[administers],
    responses=problems(404, 409),
)
def delete_campaign(campaign_id: CampaignId, service: ServiceHandle) -> None:
    """Forget a campaign that is over, with its trials, events and job folders. Campaigns that learnt from it keep its
    name."""
    service.delete(campaign_id)


@router.post("/campaigns/{campaign_id}:pause", dependencies=[launches], responses=problems(404, 409))
def pause_campaign(campaign_id: CampaignId, service: ServiceHandle, show: ShowCampaign) -> CampaignView:
    """Start no more trials; those that run are measured to their end."""
    return show(service.pause(campaign_id))


@router.post("/campaigns/{campaign_id}:resume", dependencies=[launches], responses=problems(404, 409))
def resume_campaign(campaign_id: CampaignId, service: ServiceHandle, show: ShowCampaign) -> CampaignView:
    """Go on with a paused campaign; one that runs stays as it is."""
    return show(service.resume(campaign_id))


@router.post(
    "/campaigns/{campaign_id}:cancel",
    status_code=status.HTTP_202_ACCEPTED,
    dependencies=[launches],
    responses=problems(404, 409),
)
def cancel_campaign(campaign_id: CampaignId, service: ServiceHandle, show: ShowCampaign) -> CampaignView:
    """End the campaign and its running jobs; what was measured stays."""
    return show(service.cancel(campaign_id))
