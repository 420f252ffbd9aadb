"""The route that lays campaigns side by side: what each measured, how it scales, and what the smallest foretells."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from meshtune.api.dependencies import ID_PATTERN, ONE_SPACE, ServiceHandle
from meshtune.api.openapi import problems
from meshtune.api.requests.authorization import reads
from meshtune.tuner.results.comparison import Comparison, compare

router = APIRouter(prefix="/v1", responses=problems(404, 422, 503), tags=["recommendations"], dependencies=[reads])
MAX_COMPARED = 20


@router.get("/comparison")
def compare_campaigns(
    service: ServiceHandle,
    campaign: Annotated[
        list[Annotated[str, Query(pattern=ID_PATTERN, max_length=100)]],
        Query(description="Ids, 2 to 20.", min_length=2, max_length=MAX_COMPARED),
    ],
) -> Comparison:
    """Campaigns side by side, such as of one model at several node counts: scaling and efficiency, measured and
    projected."""
    ids = list(dict.fromkeys(campaign))
    entries = [(service.store.campaign(id), service.store.trials(id)) for id in ids]
    with ONE_SPACE:
        return compare(entries)
