"""The routes that change a campaign while it goes on or after its end: its details, its spec as written, plans put in
by hand, plans that are measured once more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Depends, Response
from starlette.concurrency import run_in_threadpool

from meshtune.api.dependencies import (
    CampaignId,
    ChangeableId,
    ServiceHandle,
    SpecDocument,
    TrialNumber,
    Versions,
    launches,
    optional_document,
    reads,
)
from meshtune.api.errors import InvalidBody
from meshtune.api.openapi import DETAILS_BODY, PLAN_BODY, RESUME_BODY, SPEC_REFERENCE
from meshtune.api.routes.campaigns import ShowCampaign
from meshtune.api.worker_pool import AskedHandle
from meshtune.search_spaces.checks import Mistaken, Problem, problems_as
from meshtune.tuner.campaign.spec import document_of, space_of
from meshtune.tuner.service.changing import legal_plan
from meshtune.tuner.service.views.campaigns import CampaignView
from meshtune.tuner.service.views.trials import TrialPage, TrialView, trial_view

router = APIRouter(prefix="/v1", tags=["campaigns"])
_YAML: dict[int | str, dict[str, Any]] = {200: {"content": {"application/yaml": {"schema": SPEC_REFERENCE}}}}


@router.patch("/campaigns/{campaign_id:id}", dependencies=[launches], openapi_extra=DETAILS_BODY)
def change_campaign(
    campaign_id: ChangeableId, versions: Versions, changes: SpecDocument, service: ServiceHandle, show: ShowCampaign
) -> CampaignView:
    """Change its name, tags, notes, budget or limits of trials: the body is laid over them as RFC 7396 has it, so null
    lifts a limit. A campaign that is complete goes on where its new budget leaves room. What drives it takes the change
    at once."""
    with problems_as(InvalidBody, of=Mistaken):
        return show(service.changing.change(campaign_id, changes, versions=versions))


@router.post("/campaigns/{campaign_id}:resume", dependencies=[launches], openapi_extra=RESUME_BODY)
def resume_campaign(
    campaign_id: ChangeableId,
    versions: Versions,
    changes: Annotated[object, Depends(optional_document)],
    service: ServiceHandle,
    show: ShowCampaign,
) -> CampaignView:
    """Go on with a paused campaign; one that runs stays as it is. With a `budget` in the body, one that is complete
    goes on, too; `trial` has other limits of trials."""
    if changes and (not isinstance(changes, Mapping) or not set(changes) <= {"budget", "trial"}):
        raise InvalidBody([Problem("", "must be an object with the keys budget and trial, or empty")])
    with problems_as(InvalidBody, of=Mistaken):
        return show(service.changing.change(campaign_id, changes or {}, versions=versions, resume=True))


@router.get("/campaigns/{campaign_id}/spec.yaml", dependencies=[reads], response_class=Response, responses=_YAML)
def spec_as_written(campaign_id: CampaignId, service: ServiceHandle) -> Response:
    """The spec as it was sent, comments and all: YAML, or JSON, which is YAML too. Of a campaign that was cloned, or
    did not come as a text, its complete spec. Later changes of its details are not in it."""
    text = service.store.spec_text(campaign_id)
    if not text:
        document = document_of(service.campaign(campaign_id).spec)
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    named = {"Content-Disposition": f'inline; filename="{campaign_id}.yaml"'}
    return Response(text, media_type="application/yaml", headers=named)


@router.post("/campaigns/{campaign_id}/trials", status_code=201, dependencies=[launches], openapi_extra=PLAN_BODY)
async def enqueue_trial(
    campaign_id: ChangeableId, document: SpecDocument, asked: AskedHandle, response: Response
) -> TrialView:
    """Put a plan in by hand: it runs before the search's next choice, within `parallel` and the budget, of which it
    takes one trial. Of what is left out, dp and grad_accum_steps follow; the rest is as by default."""
    if not isinstance(document, Mapping) or set(document) != {"plan"}:
        raise InvalidBody([Problem("", "must be an object with the one key plan")])
    spec = (await run_in_threadpool(asked.service.campaign, campaign_id)).spec
    with problems_as(InvalidBody, "plan"):
        plan = await asked.run(space_of(spec).combinations, legal_plan, spec, document["plan"])
        trial = await run_in_threadpool(asked.service.changing.enqueue, campaign_id, plan)
    response.headers["Location"] = f"/v1/campaigns/{campaign_id}/trials/{trial.number}"
    return trial_view(trial)


@router.post("/campaigns/{campaign_id}/trials/{number}:rerun", status_code=202, dependencies=[launches])
def rerun_trial(campaign_id: ChangeableId, number: TrialNumber, service: ServiceHandle) -> TrialView:
    """Measure the trial's plan once more by a fresh job: a second run, of origin `confirmation`, which the plan's
    numbers and their intervals count. A campaign that is complete runs until it has ended."""
    return trial_view(service.changing.rerun(campaign_id, number))


@router.post("/campaigns/{campaign_id}:revalidate", status_code=202, dependencies=[launches])
def revalidate_campaign(campaign_id: ChangeableId, service: ServiceHandle) -> TrialPage:
    """As `:rerun`, of the baseline and the recommended plan in one round; where these are one, of the best other."""
    return TrialPage(trials=list(map(trial_view, service.changing.revalidate(campaign_id))), next_page_token=None)
