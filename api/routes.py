"""The routes of REST /v1. They translate: each calls the service or the store once or twice and shows the answer."""

from __future__ import annotations

import threading
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response, status

from api.analysis_views import AnalysisView, analysis_view
from api.body import json_document
from api.quote_views import QuoteView, quote_view
from api.schema import SPEC_BODY, problems
from api.trial_views import TrialPage, TrialView, trial_view
from api.views import (
    BestView,
    CampaignPage,
    CampaignView,
    EventView,
    SpaceView,
    best_view,
    campaign_view,
    event_view,
    space_view,
)
from tuner.analysis import analyse
from tuner.campaign import Campaign, CampaignState
from tuner.documents import read_spec
from tuner.driver import Driver
from tuner.prediction import Basis
from tuner.quote import make_quote
from tuner.ranking import rank
from tuner.recommend import recommend
from tuner.service import Service
from tuner.space import space_of

router = APIRouter(prefix="/v1", responses=problems(422, 503))
MOST_PER_PAGE = 500
# What the database's integer columns hold.
MOST_NUMBER = 2**31 - 1


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def driver_of(request: Request) -> Driver:
    driver: Driver = request.app.state.driver
    return driver


ServiceHandle = Annotated[Service, Depends(service_of)]
DriverHandle = Annotated[Driver, Depends(driver_of)]
# Ids hold no ':', so that `{id}:pause` is never taken for an id.
ID_PATTERN = r"^[A-Za-z0-9._-]+$"
CampaignId = Annotated[str, Path(pattern=ID_PATTERN, max_length=100)]
PageSize = Annotated[int, Query(ge=1, le=MOST_PER_PAGE, description="Most entries on this page.")]
PageToken = Annotated[
    str | None, Query(description="`next_page_token` of the page before.", pattern=ID_PATTERN, max_length=100)
]
SpecDocument = Annotated[object, Depends(json_document)]

# A space holds up to 10^7 combinations, about 1 GB while it is enumerated: requests take turns.
ONE_SPACE = threading.Lock()
CREATED: dict[int | str, dict[str, Any]] = {
    201: {"headers": {"Location": {"description": "Path of the new campaign.", "schema": {"type": "string"}}}}
}


@router.post(
    "/campaigns",
    status_code=status.HTTP_201_CREATED,
    openapi_extra=SPEC_BODY,
    responses={**CREATED, **problems(409, 413, 415)},
    tags=["campaigns"],
)
def create_campaign(document: SpecDocument, service: ServiceHandle, response: Response) -> CampaignView:
    """Start a campaign. The body is a campaign spec; all its mistakes come back at once, with their paths."""
    with ONE_SPACE:
        campaign = service.create(document)
    response.headers["Location"] = f"/v1/campaigns/{campaign.id}"
    return campaign_view(campaign, {}, "")


@router.get("/campaigns", responses=problems(404), tags=["campaigns"])
def list_campaigns(
    service: ServiceHandle,
    driver: DriverHandle,
    page_size: PageSize = 50,
    page_token: PageToken = None,
    state: Annotated[list[CampaignState] | None, Query(description="Only campaigns in these states.")] = None,
) -> CampaignPage:
    """Campaigns, newest first."""
    found = service.store.campaigns(limit=page_size + 1, before=page_token, states=state)
    shown = found[:page_size]
    counts = service.store.verdict_counts([campaign.id for campaign in shown])
    return CampaignPage(
        campaigns=[
            campaign_view(campaign, counts.get(campaign.id, {}), driver.troubles.get(campaign.id, ""))
            for campaign in shown
        ],
        next_page_token=shown[-1].id if len(found) > page_size else None,
    )


@router.get("/campaigns/{campaign_id}", responses=problems(404), tags=["campaigns"])
def get_campaign(campaign_id: CampaignId, service: ServiceHandle, driver: DriverHandle) -> CampaignView:
    """One campaign, with its trials counted by verdict."""
    return _show(service.current(campaign_id), service, driver)


@router.post("/campaigns/{campaign_id}:pause", responses=problems(404, 409), tags=["campaigns"])
def pause_campaign(campaign_id: CampaignId, service: ServiceHandle, driver: DriverHandle) -> CampaignView:
    """Start no more trials; those that run are measured to their end."""
    return _show(service.pause(campaign_id), service, driver)


@router.post("/campaigns/{campaign_id}:resume", responses=problems(404, 409), tags=["campaigns"])
def resume_campaign(campaign_id: CampaignId, service: ServiceHandle, driver: DriverHandle) -> CampaignView:
    """Go on with a paused campaign; one that runs stays as it is."""
    return _show(service.resume(campaign_id), service, driver)


@router.post(
    "/campaigns/{campaign_id}:cancel",
    status_code=status.HTTP_202_ACCEPTED,
    responses=problems(404, 409),
    tags=["campaigns"],
)
def cancel_campaign(campaign_id: CampaignId, service: ServiceHandle, driver: DriverHandle) -> CampaignView:
    """End the campaign and its running jobs; what was measured stays."""
    return _show(service.cancel(campaign_id), service, driver)


@router.get("/campaigns/{campaign_id}/trials", responses=problems(404), tags=["trials"])
def list_trials(
    campaign_id: CampaignId,
    service: ServiceHandle,
    page_size: PageSize = 100,
    page_token: Annotated[int, Query(ge=-1, le=MOST_NUMBER, description="`next_page_token` of the page before.")] = -1,
) -> TrialPage:
    """Trials in the order of planning, complete with attempts and every step time."""
    service.store.campaign(campaign_id)
    found = service.store.trials(campaign_id, after=page_token, limit=page_size + 1)
    shown = found[:page_size]
    return TrialPage(
        trials=[trial_view(trial) for trial in shown],
        next_page_token=str(shown[-1].number) if len(found) > page_size else None,
    )


@router.get("/campaigns/{campaign_id}/trials/{number}", responses=problems(404), tags=["trials"])
def get_trial(
    campaign_id: CampaignId, number: Annotated[int, Path(ge=0, le=MOST_NUMBER)], service: ServiceHandle
) -> TrialView:
    """One trial."""
    return trial_view(service.store.trial(campaign_id, number))


@router.get("/campaigns/{campaign_id}/best", responses=problems(404), tags=["trials"])
def best_trials(
    campaign_id: CampaignId, service: ServiceHandle, top: Annotated[int, Query(ge=1, le=MOST_PER_PAGE)] = 10
) -> BestView:
    """The best settings measured, the front of speed and memory left over, and the recommendation with its reason."""
    campaign = service.store.campaign(campaign_id)
    trials = service.store.trials(campaign_id)
    return best_view(campaign, recommend(campaign, trials), rank(campaign, trials), top)


@router.get("/campaigns/{campaign_id}/analysis", responses=problems(404), tags=["trials"])
def analyse_campaign(campaign_id: CampaignId, service: ServiceHandle) -> AnalysisView:
    """What the trials teach: the knobs that matter, failures, what was expected, and why the best plans win."""
    campaign = service.store.campaign(campaign_id)
    trials = service.store.trials(campaign_id)
    with ONE_SPACE:
        space = space_of(campaign.spec)
    return analysis_view(analyse(campaign, space, trials))


@router.get("/campaigns/{campaign_id}/space", responses=problems(404), tags=["spaces"])
def campaign_space(campaign_id: CampaignId, service: ServiceHandle) -> SpaceView:
    """The campaign's space: how many plans are legal, and what rejects the others."""
    spec = service.store.campaign(campaign_id).spec
    with ONE_SPACE:
        return space_view(space_of(spec))


@router.post("/spaces", openapi_extra=SPEC_BODY, responses=problems(413, 415), tags=["spaces"])
def count_space(document: SpecDocument, service: ServiceHandle) -> SpaceView:
    """The space of a spec, without starting anything."""
    with ONE_SPACE:
        return space_view(read_spec(document, None)[1])


@router.post("/estimates", openapi_extra=SPEC_BODY, responses=problems(413, 415), tags=["spaces"])
def estimate_campaign(document: SpecDocument, service: ServiceHandle) -> QuoteView:
    """What a campaign of this spec will meet and cost, predicted without any measurement; nothing is started."""
    with ONE_SPACE:
        return quote_view(make_quote(*read_spec(document, None), Basis()))


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


def _show(campaign: Campaign, service: Service, driver: Driver) -> CampaignView:
    counts = service.store.verdict_counts([campaign.id]).get(campaign.id, {})
    return campaign_view(campaign, counts, driver.troubles.get(campaign.id, ""))
