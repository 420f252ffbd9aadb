"""The routes about spaces: their size, what a campaign will meet and cost, why not one plan, and other node counts.
Predicted, and nothing is started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from meshtune.api.dependencies import (
    MAX_NODES,
    ONE_SPACE,
    CallerHandle,
    CampaignId,
    PermittedSpec,
    ServiceHandle,
    SpecDocument,
    reads,
    require_permitted,
)
from meshtune.api.errors import InvalidQuery, Unanswerable
from meshtune.api.openapi import SPEC_BODY, WHY_BODY, plan_parameters, problems
from meshtune.api.schemas.campaigns import SpaceView, space_view
from meshtune.runners.documents import read_value
from meshtune.search_spaces.checks import InvalidValue, Problem, did_you_mean
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.spec import CampaignSpec, space_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.prediction.predict import Basis, learn
from meshtune.tuner.prediction.quote import Explanation, Quote, explain, make_quote
from meshtune.tuner.prediction.scaling import Projection, make_projection, node_counts
from meshtune.tuner.specs.document import InvalidSpec
from meshtune.tuner.specs.read import read_spec

router = APIRouter(prefix="/v1", responses=problems(422, 503), tags=["spaces"], dependencies=[reads])
# Each is enumerated.
MAX_NODE_COUNTS = 16


def plan_fields(request: Request) -> dict[str, Any]:
    """The fields of a plan that the query names. Raises InvalidQuery."""
    given = request.query_params.multi_items()
    unknown = [
        Problem(name, f"is no field; {did_you_mean(name, PLAN_FIELDS)}") for name, _ in given if name not in PLAN_FIELDS
    ]
    twice = [Problem(name, "stands twice") for name in PLAN_FIELDS if len(request.query_params.getlist(name)) > 1]
    if unknown or twice:
        raise InvalidQuery([*unknown[:1], *twice])
    try:
        return _fields(dict(given))
    except InvalidValue as error:
        raise InvalidQuery(error.problems) from None


PlanFields = Annotated[dict[str, Any], Depends(plan_fields)]


@router.get("/campaigns/{campaign_id}/space", responses=problems(404))
def campaign_space(campaign_id: CampaignId, service: ServiceHandle) -> SpaceView:
    """The campaign's space: how many plans are legal, and what rejects the others."""
    spec = service.campaign(campaign_id).spec
    with ONE_SPACE:
        return space_view(space_of(spec))


@router.post("/spaces", openapi_extra=SPEC_BODY, responses=problems(413, 415))
def count_space(document: PermittedSpec, service: ServiceHandle) -> SpaceView:
    """The space of a spec, without starting anything."""
    with ONE_SPACE:
        return space_view(read_spec(document, None)[1])


@router.post("/estimates", openapi_extra=SPEC_BODY, responses=problems(413, 415))
def estimate_campaign(document: PermittedSpec, service: ServiceHandle) -> Quote:
    """What a campaign of this spec will meet and cost, predicted without any measurement; nothing is started."""
    with ONE_SPACE:
        return make_quote(*read_spec(document, None), Basis())


@router.get(
    "/campaigns/{campaign_id}/space/why",
    openapi_extra={"parameters": plan_parameters()},
    responses=problems(404),
)
def explain_plan(campaign_id: CampaignId, service: ServiceHandle, given: PlanFields) -> Explanation:
    """Why a plan was not chosen: the rules it breaks, the memory it needs, and where it would lose its time. Of what
    is left out of the plan, dp and grad_accum_steps follow; the rest is as by default."""
    campaign = service.campaign(campaign_id)
    trials = service.trials(campaign_id)
    with ONE_SPACE:
        space = space_of(campaign.spec)
        plan = space.complete(**given)
        trial = next((trial.number for trial in trials if trial.plan == plan), None)
        return explain(campaign.spec, space, plan, _basis(campaign, trials), trial)


@router.post("/spaces/why", openapi_extra=WHY_BODY, responses=problems(413, 415))
def explain_plan_of_spec(document: SpecDocument, caller: CallerHandle) -> Explanation:
    """Why a plan is not legal for a spec, or not its best, without starting anything. The body has both."""
    if not isinstance(document, Mapping) or set(document) != {"spec", "plan"}:
        raise InvalidSpec([Problem("", "must be an object with the keys spec and plan")])
    require_permitted(caller, document["spec"], under="spec")
    with ONE_SPACE:
        spec, space = _spec(document["spec"])
        try:
            plan = space.complete(**_fields(document["plan"]))
        except InvalidValue as error:
            raise InvalidSpec([problem.under("plan") for problem in error.problems]) from None
        return explain(spec, space, plan, Basis())


@router.get("/campaigns/{campaign_id}/projection", responses=problems(404, 409))
def project_campaign(
    campaign_id: CampaignId,
    service: ServiceHandle,
    nodes: Annotated[
        list[Annotated[int, Query(ge=1, le=MAX_NODES)]] | None,
        Query(description="Node counts; default: the spec's, doubled 5 times.", max_length=MAX_NODE_COUNTS),
    ] = None,
) -> Projection:
    """The best plan, its speed and its efficiency at other node counts, from what the campaign measured, and where
    scaling ends."""
    campaign = service.campaign(campaign_id)
    trials = service.trials(campaign_id)
    counts = nodes or node_counts("", campaign.spec.cluster.nodes)
    try:
        with ONE_SPACE:
            basis = learn(campaign.label, campaign.spec, trials)
            return make_projection(campaign.spec, basis, counts, trials=trials)
    except InvalidValue as error:  # facts of the cluster are missing, or it cannot have so many nodes
        raise Unanswerable(str(error)) from None


def _basis(campaign: Campaign, trials: Sequence[Trial]) -> Basis:
    """What the campaign measured; the constants alone where facts are missing that times depend on."""
    try:
        return learn(campaign.label, campaign.spec, trials)
    except InvalidValue:
        return Basis()


def _spec(document: object) -> tuple[CampaignSpec, Space]:
    try:
        return read_spec(document, None)
    except InvalidSpec as error:
        raise InvalidSpec([problem.under("spec") for problem in error.problems]) from None


def _fields(given: object) -> dict[str, Any]:
    """The fields that were given, as a plan has them. Raises InvalidValue."""
    plan = read_value(Plan, given)
    return {name: getattr(plan, name) for name in given} if isinstance(given, Mapping) else {}
