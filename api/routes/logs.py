"""The routes to the logs that jobs leave in their folders, whole or in parts (RFC 9110, section 14)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from meshtune.api.dependencies import CampaignId, ServiceHandle, TrialNumber, reads
from meshtune.api.errors import RangeNotSatisfiable
from meshtune.api.openapi import problems
from meshtune.runners.job_files import OpenFile
from meshtune.tuner.service.job_files import list_logs, open_log
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.views.trials import LogsView
from meshtune.tuner.store import NotFound

router = APIRouter(
    prefix="/v1/campaigns/{campaign_id}/trials/{number}/attempts/{attempt}",
    tags=["jobs"],
    dependencies=[reads],
)
AttemptNumber = Annotated[int, Path(ge=1, le=1_000_000)]
_RANGE = re.compile(r"bytes=(\d{1,18})?-(\d{1,18})?")
_TEXT: dict[str, Any] = {
    "content": {"text/plain": {"schema": {"type": "string"}, "example": "step 1/15: 0.132 s\n"}},
    "headers": {"Accept-Ranges": {"description": "`bytes`", "schema": {"type": "string"}}},
}
_PART: dict[str, Any] = {
    "description": "Partial Content",
    "content": _TEXT["content"],
    "headers": {
        "Content-Range": {"description": "Such as `bytes 0-99/1234`", "schema": {"type": "string"}},
        **_TEXT["headers"],
    },
}


@router.get("/logs")
def list_trial_logs(
    campaign_id: CampaignId, number: TrialNumber, attempt: AttemptNumber, service: ServiceHandle
) -> LogsView:
    """The logs of one job: of its ranks, and of its scheduler. At most 200; none once the folder was pruned."""
    return LogsView(files=list_logs(_folder(service, campaign_id, number, attempt)))


@router.get("/logs/{name}", response_class=Response, responses={200: _TEXT, 206: _PART, **problems(416)})
def read_trial_log(
    campaign_id: CampaignId,
    number: TrialNumber,
    attempt: AttemptNumber,
    name: Annotated[str, Path(max_length=255, examples=["rank-0.log"])],
    service: ServiceHandle,
    request: Request,
    range: Annotated[
        str | None, Header(description="One range: `bytes=0-999`, `bytes=1000-`, or the last `bytes=-4000`.")
    ] = None,
) -> Response:
    """A log as long as it is now. More than one range, or a unit other than bytes, is answered with all of it."""
    log = open_log(_folder(service, campaign_id, number, attempt), name)
    try:
        # We have no validator that could match one.
        asked = None if "if-range" in request.headers else range
        first, count, headers = _part(asked, log.size_bytes)
    except RangeNotSatisfiable:
        log.close()
        raise
    return _LogResponse(
        log,
        log.read(first, count),
        status_code=206 if "Content-Range" in headers else 200,
        media_type="text/plain; charset=utf-8",
        headers={"Accept-Ranges": "bytes", "Content-Length": str(count), **headers},
    )


class _LogResponse(StreamingResponse):
    """Closes the log whatever becomes of the answer."""

    def __init__(self, log: OpenFile, chunks: Iterator[bytes], **rest: Any) -> None:
        super().__init__(chunks, **rest)
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._log.close()


def _folder(service: Service, campaign_id: str, number: int, attempt: int) -> FilePath:
    """Raises NotFound."""
    trial = service.trial(campaign_id, number)
    for one in trial.attempts:
        if one.number == attempt:
            return service.home.job(campaign_id, one.job_name)
    raise NotFound(f"trial {number} of campaign {campaign_id} has no attempt {attempt}")


def _part(asked: str | None, size: int) -> tuple[int, int, dict[str, str]]:
    """The first byte, how many, and the header that says so; all of it for what is no single range. Raises
    RangeNotSatisfiable."""
    match = _RANGE.fullmatch((asked or "").replace(" ", ""))
    if match is None or match.groups() == (None, None):
        return 0, size, {}
    first, last = match.groups()
    if first is None:
        start, end = max(0, size - int(last)), size - 1
    else:
        start, end = int(first), size - 1 if last is None else min(int(last), size - 1)
        if last is not None and int(last) < start:
            return 0, size, {}
    if start > end:
        raise RangeNotSatisfiable(f"{asked} has no byte of a log of {size} bytes", size)
    return start, end - start + 1, {"Content-Range": f"bytes {start}-{end}/{size}"}
