"""The routes that give a whole campaign away: its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from meshtune.api.campaign_cache import NOT_MODIFIED, respond
from meshtune.api.campaign_documents import DocumentsHandle
from meshtune.api.dependencies import CallerHandle, CampaignId, reads
from meshtune.api.openapi import problems
from meshtune.tuner.results.record import record_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDocument:
    """A record. Its campaign, with the spec complete, and its trials have the fields of version 1, which
    `meshtune.tuner.results.record` reads."""

    version: Literal[1]
    campaign: Mapping[str, Any]
    trials: list[Mapping[str, Any]]


router = APIRouter(prefix="/v1", dependencies=[reads], responses=problems(404, 422, 503), tags=["campaigns"])


@router.get("/campaigns/{campaign_id}/record", response_model=RecordDocument, responses=NOT_MODIFIED)
async def get_record(
    request: Request, campaign_id: CampaignId, caller: CallerHandle, documents: DocumentsHandle
) -> Response:
    """All that is known of a campaign, as of its newest event: the spec, and every trial with every step. Whoever has
    it can rank, analyse and draw without the service."""
    return respond(request, await documents.of(campaign_id, caller.identity, "record", record_of))
