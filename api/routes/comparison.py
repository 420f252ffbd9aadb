"""The route that lays campaigns side by side: what each measured, how it scales, and what the smallest foretells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query

from meshtune.api.dependencies import ID_PATTERN, ONE_SPACE, ServiceHandle
from meshtune.api.openapi import problems
from meshtune.api.requests.authorization import reads
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.campaign.objective import Objective
from meshtune.tuner.results.comparison import Best, Compared, Projected, compare

router = APIRouter(prefix="/v1", responses=problems(404, 422, 503), tags=["recommendations"], dependencies=[reads])
MOST_COMPARED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedView:
    """One campaign. best: as measured; null where nothing was. efficiency: speed per device over that of the smallest
    campaign that measured something. projected: predicted by that campaign's physics, never measured."""

    id: str
    name: str
    state: CampaignState
    nodes: int
    devices: int
    model: str
    cluster: str
    best: Best | None
    efficiency: Estimate | None
    projected: Projected | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonView:
    """In the order of devices. notes: what keeps the campaigns from being compared as they are."""

    objective: Objective
    campaigns: list[ComparedView]
    notes: list[str]


@router.get("/comparison")
def compare_campaigns(
    service: ServiceHandle,
    campaign: Annotated[
        list[Annotated[str, Query(pattern=ID_PATTERN, max_length=100)]],
        Query(description="Ids, 2 to 20.", min_length=2, max_length=MOST_COMPARED),
    ],
) -> ComparisonView:
    """Campaigns side by side, such as of one model at several node counts: scaling and efficiency, measured and
    projected."""
    ids = list(dict.fromkeys(campaign))
    entries = [(service.store.campaign(id), service.store.trials(id)) for id in ids]
    with ONE_SPACE:
        found = compare(entries)
    shown = [_compared_view(one) for one in found.campaigns]
    return ComparisonView(objective=found.objective, campaigns=shown, notes=list(found.notes))


def _compared_view(one: Compared) -> ComparedView:
    spec = one.campaign.spec
    return ComparedView(
        id=one.campaign.id,
        name=spec.name,
        state=one.campaign.state,
        nodes=spec.cluster.nodes,
        devices=spec.cluster.devices,
        model=spec.model.name,
        cluster=spec.cluster.name,
        best=one.best,
        efficiency=one.efficiency,
        projected=one.projected,
    )
