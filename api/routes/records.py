"""The routes that give a whole campaign away: its record, its table, and its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from meshtune.api.campaign_cache import NOT_MODIFIED, DocumentsHandle, respond
from meshtune.api.dependencies import CallerHandle, CampaignId, reads
from meshtune.api.openapi import problems
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.results.record import record_of
from meshtune.tuner.results.table import TableFormat, data_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDocument:
    """A record. Its campaign, with the spec complete, and its trials have the fields of version 1, which
    `meshtune.tuner.results.record` reads."""

    version: Literal[1]
    campaign: Mapping[str, Any]
    trials: list[Mapping[str, Any]]


router = APIRouter(prefix="/v1", dependencies=[reads], tags=["campaigns"])
# What is opened from the service may do no more than what is opened from a folder: it is style and text.
POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"}
TABLE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The table in the format that was asked for",
        "content": {
            form.media_type: {"schema": {"type": "object" if form is TableFormat.JSON else "string"}}
            for form in TableFormat
        },
    }
}
PAGE: dict[int | str, dict[str, Any]] = {200: {"content": {"text/html": {"schema": {"type": "string"}}}}}


@router.get("/campaigns/{campaign_id}/record", response_model=RecordDocument, responses=NOT_MODIFIED)
async def get_record(
    request: Request, campaign_id: CampaignId, caller: CallerHandle, documents: DocumentsHandle
) -> Response:
    """All that is known of a campaign, as of its newest event: the spec, and every trial with every step. Whoever has
    it can rank, analyse and draw without the service."""
    return respond(request, await documents.of(campaign_id, caller.sha256, "record", record_of))


@router.get("/campaigns/{campaign_id}/data", response_class=Response, responses=TABLE | NOT_MODIFIED | problems(409))
async def get_data(
    request: Request,
    campaign_id: CampaignId,
    caller: CallerHandle,
    documents: DocumentsHandle,
    format: Annotated[TableFormat, Query(description="json: the record, which has more.")] = TableFormat.CSV,
) -> Response:
    """The trials as a table with a row for each, as `meshtune export-data` writes it; 409 where the service has no
    library for the format."""
    work = partial(data_of, format=format)
    answer = await documents.of(campaign_id, caller.sha256, f"data {format}", work, format.media_type)
    return respond(request, answer, attachment(f"{campaign_id}.{format}"))


@router.get("/campaigns/{campaign_id}/report", response_class=Response, responses=PAGE | NOT_MODIFIED | problems(409))
async def get_report(
    request: Request, campaign_id: CampaignId, caller: CallerHandle, documents: DocumentsHandle
) -> Response:
    """The campaign as one HTML file with figures, as `meshtune report` writes it, which needs no network; 409 where
    the service has no library for it."""
    answer = await documents.of(
        campaign_id, caller.sha256, "report", report_html, "text/html; charset=utf-8", space=True
    )
    return respond(request, answer, attachment(f"{campaign_id}.html") | POLICY)


def report_html(campaign: Campaign, trials: Sequence[Trial]) -> bytes:
    """In another process: it loads what draws. Raises MissingExtra."""
    from meshtune.tuner.results.report.campaigns import render_report

    return render_report([(campaign, trials)]).encode()


def attachment(name: str) -> dict[str, str]:
    """name: of an id, whose letters need no quoting."""
    return {"Content-Disposition": f'attachment; filename="{name}"'}
