"""The routes about spaces: their size, what a campaign will meet and cost, why not one plan, and other node counts.
Predicted, and nothing is started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from shutil import rmtree
from tempfile import mkdtemp
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool

from meshtune.api.dependencies import CampaignId, Nodes, PermittedSpec, SpecDocument, reads, require_permitted
from meshtune.api.errors import InvalidQuery, TooCostly, Unanswerable
from meshtune.api.openapi import FIT_BODY, IMPORT_BODY, KNOB_TEXT, NODES_BODY, SPEC_BODY, WHY_BODY, plan_query, problems
from meshtune.api.worker_pool import (
    FEW_COMBINATIONS,
    MAX_COMBINATIONS,
    MAX_PREDICTED,
    PER_TRIAL,
    AskedHandle,
    PoolHandle,
)
from meshtune.runners.documents import read_value
from meshtune.runners.json_files import shown
from meshtune.search_spaces.checks import InvalidValue, Problem, problems_as, raising
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space, SpaceTooLarge
from meshtune.tuner.access.tokens import Token
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.spec import CampaignSpec, space_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.prediction.fit import FitAnswer
from meshtune.tuner.prediction.predict import Basis, learn, training_of
from meshtune.tuner.prediction.projection import MAX_NODE_COUNTS, Projection, ProjectionWords, layout_of, node_counts
from meshtune.tuner.prediction.quote import Explanation, Quote, explain
from meshtune.tuner.prediction.scaling import count_combinations, make_projection
from meshtune.tuner.service.views.campaigns import SpaceView, space_view
from meshtune.tuner.specs.document import InvalidSpec
from meshtune.tuner.specs.fit_words import FitWords, answer
from meshtune.tuner.specs.import_script import ImportedSpec, SentScript, import_sent
from meshtune.tuner.specs.knobs import plan_fields
from meshtune.tuner.specs.read import legal_space, limits_left_open, parse_spec, quoted

router = APIRouter(prefix="/v1", tags=["spaces"], dependencies=[reads])
# The gate lets anybody in.
public = APIRouter(prefix="/v1", responses=problems(401, 409, 413, 415, 422, 429, 503), tags=["spaces"])
# Of a layout; all fields of a plan are shorter.
MAX_PLAN_TEXT = 1000
# The parameter that names values of knobs.
KNOB = "knob"


def fields_asked(request: Request) -> dict[str, Any]:
    """The fields of a plan that the query names, and under `knobs` the texts of its knobs by name. Raises
    InvalidQuery."""
    query = request.query_params
    texts = query.getlist(KNOB)
    twice = [Problem(name, "stands twice") for name in query if name != KNOB and len(query.getlist(name)) > 1]
    unread = [Problem(KNOB, f"must be name:value, not {shown(text)}") for text in texts if not KNOB_TEXT.match(text)]
    knobs = dict(text.split(":", 1) for text in texts if KNOB_TEXT.match(text))
    if not unread and len(knobs) < len(texts):
        unread = [Problem(KNOB, "names a knob twice")]
    if twice or unread:
        raise InvalidQuery([*twice, *unread[:1]])
    with problems_as(InvalidQuery):
        return {**plan_fields({name: value for name, value in query.items() if name != KNOB}), "knobs": knobs}


PlanFields = Annotated[dict[str, Any], Depends(fields_asked)]


@router.get("/campaigns/{campaign_id}/space")
async def campaign_space(campaign_id: CampaignId, asked: AskedHandle) -> SpaceView:
    """The campaign's space: how many plans are legal, and what rejects the others."""
    spec = (await run_in_threadpool(asked.service.campaign, campaign_id)).spec
    return await asked.run(space_of(spec).combinations, space_view_of, spec)


@router.post("/spaces", openapi_extra=SPEC_BODY)
async def count_space(document: PermittedSpec, asked: AskedHandle) -> SpaceView:
    """The space of a spec, without starting anything, and the limits of its trials."""
    return await asked.of_spec(limited_space_view, document)


@router.post("/estimates", openapi_extra=SPEC_BODY)
async def estimate_campaign(document: PermittedSpec, asked: AskedHandle) -> Quote:
    """What a campaign of this spec will meet and cost, predicted before any trial of it; nothing is started."""
    return await asked.of_spec(quote_of, document)


@public.post("/fit", openapi_extra=FIT_BODY)
async def judge_fit(request: Request, document: SpecDocument, pool: PoolHandle) -> FitAnswer:
    """Whether a model's training fits into the memory of some devices, how fast it is, and what to change; without a
    model the largest that fits. Nothing is started, stored or read of this machine, so that no token is needed; who has
    none waits for all others that have none."""
    caller: Token | None = getattr(request.state, "caller", None)
    with problems_as(InvalidSpec):
        words = read_value(FitWords, document)
        return await pool.run(caller.sha256 if caller else "", FEW_COMBINATIONS + 1, answer, words)


@router.post("/imports", openapi_extra=IMPORT_BODY)
async def import_script(document: SpecDocument, asked: AskedHandle) -> ImportedSpec:
    """The spec that a launch script, a command line or a program's configuration comes to: its setting is the baseline.
    Nothing is started or kept, and no file is read but those in the body."""
    folder = await run_in_threadpool(mkdtemp)
    try:
        with problems_as(InvalidSpec):
            return await asked.run(FEW_COMBINATIONS + 1, import_sent, read_value(SentScript, document), folder)
    finally:
        await run_in_threadpool(rmtree, folder, ignore_errors=True)


@router.get("/campaigns/{campaign_id}/space/why", openapi_extra=plan_query())
async def explain_plan(campaign_id: CampaignId, asked: AskedHandle, given: PlanFields) -> Explanation:
    """Why a plan was not chosen: the rules it breaks, the memory it needs, and where it would lose its time. Of what
    is left out of the plan, dp and grad_accum_steps follow; the rest is as by default."""
    campaign, trials = await run_in_threadpool(asked.service.store.recorded, campaign_id)
    space = space_of(campaign.spec)
    # A text that stands for no value of its knob stays, and `explain` refuses it.
    knobs = {name: space.knobs.reading(name, text) for name, text in given["knobs"].items()}
    plan = space.complete(**{**given, "knobs": knobs})
    trial = next((trial.number for trial in trials if trial.plan == plan), None)
    cost = space.combinations + PER_TRIAL * len(trials)
    start = await asked.basis(campaign.spec, trials)
    return await asked.run(cost, _explained, campaign.spec, plan, start, campaign.label, trials, trial)


@router.post("/spaces/why", openapi_extra=WHY_BODY)
async def explain_plan_of_spec(document: SpecDocument, asked: AskedHandle) -> Explanation:
    """Why a plan is not legal for a spec, or not its best, without starting anything. The body has both."""
    if not isinstance(document, Mapping) or set(document) != {"spec", "plan"}:
        raise InvalidSpec([Problem("", "must be an object with the keys spec and plan")])
    require_permitted(asked.caller, document["spec"], under="spec")
    with problems_as(InvalidSpec, "plan"), problems_as(InvalidSpec, "spec", of=InvalidSpec):
        spec, space = await run_in_threadpool(parse_spec, document["spec"], None, MAX_COMBINATIONS)
        plan = space.complete(**plan_fields(document["plan"], space.knobs))
        return await asked.run(space.combinations, _explained, spec, plan, await asked.basis(spec))


@router.get("/campaigns/{campaign_id}/projection", responses=problems(409))
async def project_campaign(
    campaign_id: CampaignId,
    asked: AskedHandle,
    nodes: Annotated[
        list[Nodes] | None,
        Query(description="Node counts; default: the spec's, doubled 5 times.", max_length=MAX_NODE_COUNTS),
    ] = None,
    plan: Annotated[
        str,
        Query(
            description="One layout for all node counts, such as `tp=8,pp=16`; default: the best one of each.",
            max_length=MAX_PLAN_TEXT,
        ),
    ] = "",
) -> Projection:
    """The best plan, its speed and its efficiency at other node counts, from what the campaign measured, and where
    scaling ends."""
    with problems_as(InvalidQuery):
        layout = layout_of(plan)
    campaign, trials = await run_in_threadpool(asked.service.store.recorded, campaign_id)
    counts = nodes or node_counts("", campaign.spec.cluster.nodes)
    with raising(Unanswerable, "", InvalidValue):
        cost = count_combinations(campaign.spec, counts) + PER_TRIAL * len(trials)
        start = await asked.basis(campaign.spec, trials)
        return await asked.run(cost, _projected, campaign, trials, counts, start, layout)


@router.post("/projections", responses=problems(409), openapi_extra=NODES_BODY)
async def project_spec(document: SpecDocument, asked: AskedHandle) -> Projection:
    """As of a campaign, before there is one: the best plan of a spec at other node counts, without starting anything.
    The body has the spec, and node counts and a layout where wanted."""
    with problems_as(InvalidSpec):
        words = read_value(ProjectionWords, document)
        layout = layout_of(words.plan)
    require_permitted(asked.caller, words.spec, under="spec")
    with problems_as(InvalidSpec, "spec", of=InvalidSpec):
        spec, _ = await run_in_threadpool(parse_spec, words.spec, None, MAX_COMBINATIONS)
    counts = words.nodes or node_counts("", spec.cluster.nodes)
    with raising(Unanswerable, "", InvalidValue):
        cost = count_combinations(spec, counts)
        return await asked.run(cost, make_projection, spec, await asked.basis(spec), counts, plan=layout)


def space_view_of(spec: CampaignSpec) -> SpaceView:
    """Raises InvalidSpec where no plan is legal, and TooCostly where plans are too many to be counted."""
    with raising(TooCostly, "knobs", SpaceTooLarge):
        return space_view(legal_space(spec), training_of(spec))


def limited_space_view(document: object, spec: CampaignSpec, basis: Basis) -> SpaceView:
    """With the limits, where the plans are not too many to be predicted. Raises as `space_view_of` and `quoted`."""
    view = space_view_of(spec)
    with suppress(TooCostly):
        return replace(view, limits=limits_left_open(document, spec, predictable_space(spec), basis))
    return view


def predictable_space(spec: CampaignSpec) -> Space:
    """Raises InvalidSpec where no plan is legal, and TooCostly."""
    space = legal_space(spec)
    if len(space) > MAX_PREDICTED:
        size = f"{len(space)} plans are legal, more than the {MAX_PREDICTED} that the service predicts for one request"
        raise TooCostly(f"{size}: bound the space")
    return space


def quote_of(document: object, spec: CampaignSpec, basis: Basis) -> Quote:
    """Raises as `predictable_space` and `quoted`."""
    return quoted(document, spec, predictable_space(spec), basis)


def _explained(
    spec: CampaignSpec,
    plan: Plan,
    basis: Basis,
    label: str = "",
    trials: Sequence[Trial] = (),
    trial: int | None = None,
) -> Explanation:
    """label: of the spec's campaign, where there is one; its trials teach, where no fact is missing."""
    if label:
        with suppress(InvalidValue):
            basis = learn(label, spec, trials, basis)
    return explain(spec, predictable_space(spec), plan, basis, trial)


def _projected(
    campaign: Campaign, trials: Sequence[Trial], nodes: Sequence[int], start: Basis, layout: Plan | None
) -> Projection:
    basis = learn(campaign.label, campaign.spec, trials, start)
    return make_projection(campaign.spec, basis, nodes, trials=trials, plan=layout)
