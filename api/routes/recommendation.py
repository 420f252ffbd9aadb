"""The routes over several campaigns: the best known plan for a launch, and campaigns side by side."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse, Response
from starlette.concurrency import run_in_threadpool

from meshtune.api.dependencies import ID_PATTERN, MAX_NODES, MAX_NUMBER, reads, require_readable
from meshtune.api.openapi import problems
from meshtune.api.worker_pool import PER_TRIAL, AskedHandle
from meshtune.tuner.access.tokens import Token
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.results import known_best
from meshtune.tuner.results.comparison import Comparison, compare
from meshtune.tuner.results.known_best import BestKnown
from meshtune.tuner.results.known_best_projection import Neighbourhood, neighbourhood, project
from meshtune.tuner.service.service import Service

router = APIRouter(prefix="/v1", dependencies=[reads], responses=problems(404))


class Format(StrEnum):
    """json: with sources and reason. env: NAME=value lines, whose values have letters, digits and _.:/- only."""

    JSON = "json"
    ENV = "env"


MAX_COMPARED = 20
Name = Annotated[str, Query(min_length=1, max_length=200)]
Count = Annotated[int, Query(ge=1, le=MAX_NUMBER)]
ENV_EXAMPLE = "MESHTUNE_TP=4\nMESHTUNE_PP=1\nMESHTUNE_DP=2\nMESHTUNE_MEASURED=1\nMESHTUNE_SOURCE=demo-1a2b3c/7\n"
TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": ENV_EXAMPLE}}}
}


@router.get("/recommendations", response_model=BestKnown, responses=TEXT, tags=["recommendations"])
async def get_recommendation(
    asked: AskedHandle,
    model: Annotated[Name, Query(examples=["llama3-8b"])],
    cluster: Annotated[Name, Query(examples=["h100-8"])],
    nodes: Annotated[int, Query(ge=1, le=MAX_NODES, examples=[2])],
    global_batch_size: Annotated[Count | None, Query(description="Default: as it was measured.")] = None,
    workload: Annotated[Name | None, Query(description="The training code; default: the newest campaign's.")] = None,
    software: Annotated[
        str,
        Query(
            description="What the job runs on; default: as the newest campaign.",
            pattern=r"^([A-Za-z0-9_-]+=[A-Za-z0-9_.+:-]+(,|$))*$",
            max_length=1000,
            examples=["torch=2.13,cuda=13.0"],
        ),
    ] = "",
    simulated: Annotated[
        bool, Query(description="Of simulated campaigns alone, which else count for nothing.")
    ] = False,
    format: Format = Format.JSON,
) -> BestKnown | Response:
    """The best known plan: measured for just this, or projected by the physics from what was measured nearby, and then
    marked as not measured. 404 where nothing near was measured, or a name is unknown."""
    question = known_best.LaunchQuestion(
        model=model,
        cluster=cluster,
        nodes=nodes,
        global_batch_size=global_batch_size,
        workload=workload,
        software=known_best.software_versions(software),
        simulated=simulated,
    )
    answer = await run_in_threadpool(_measured_or_near, asked.service, question, asked.caller)
    if isinstance(answer, Neighbourhood):
        cost = answer.space.combinations + PER_TRIAL * sum(len(source.trials) for source in answer.sources)
        answer = await asked.run(cost, project, answer)
    return PlainTextResponse(known_best.environment_text(answer)) if format is Format.ENV else answer


@router.get("/comparison", tags=["recommendations"])
async def compare_campaigns(
    asked: AskedHandle,
    campaign: Annotated[
        list[Annotated[str, Query(pattern=ID_PATTERN, max_length=100)]],
        Query(description="Ids, 2 to 20.", min_length=2, max_length=MAX_COMPARED),
    ],
) -> Comparison:
    """Campaigns side by side, such as of one model at several node counts: what each found, and scaling and efficiency,
    measured or simulated, and projected."""
    ids = list(dict.fromkeys(campaign))
    for id in ids:
        await run_in_threadpool(require_readable, asked.caller, asked.service, id)
    entries = [await run_in_threadpool(asked.service.store.recorded, id) for id in ids]
    cost = sum(space_of(one.spec).combinations + PER_TRIAL * len(trials) for one, trials in entries)
    return await asked.run(cost, compare, entries)


def _measured_or_near(
    service: Service, question: known_best.LaunchQuestion, caller: Token
) -> BestKnown | Neighbourhood:
    """The best plan that was measured for just this, else what one can be projected from. Raises NothingKnown."""
    known = service.campaigns(limit=known_best.MAX_CAMPAIGNS, reader=caller)
    records = known_best.CampaignRecords(known, service.store.readable_trials)
    return known_best.best_measured(question, records) or neighbourhood(question, records)
