"""The route for result files of jobs that run elsewhere."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response, Security, status
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool

from meshtune.api.dependencies import ID_PATTERN, ServiceHandle
from meshtune.api.openapi import problems
from meshtune.api.requests.body import content_of
from meshtune.runners.outcome import ResultMalformed
from meshtune.tuner.service.job_files import MAX_BYTES

router = APIRouter(prefix="/v1", responses=problems(401, 404, 413, 422, 429, 503), tags=["reports"])
_bearer = HTTPBearer(
    scheme_name="job",
    description="The token in the job's own folder: it opens this one job's report, until its time is over.",
    auto_error=False,
)
_EXAMPLES: dict[str, Any] = {
    "oom": {
        "summary": "A job that ran out of memory",
        "value": {"version": 1, "verdict": "oom", "reason": "rank 0 is out of memory", "failed_rank": 0},
    }
}
JobName = Annotated[str, Path(pattern=ID_PATTERN, max_length=200)]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


@router.put(
    "/reports/{job_name}",
    status_code=status.HTTP_204_NO_CONTENT,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object"}, "examples": _EXAMPLES}},
        }
    },
)
async def report_result(request: Request, job_name: JobName, bearer: Bearer, service: ServiceHandle) -> Response:
    """Hand in the result file of a job in flight. Where its folder has one, that one stays."""
    service.reports.check(job_name, "" if bearer is None else bearer.credentials, time.time())
    content = await content_of(request, MAX_BYTES)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ResultMalformed(f"not UTF-8: {error}") from None
    # NotFound for a job that is not in flight.
    campaign_id = await run_in_threadpool(service.store.access.campaign_in_flight, job_name)
    await run_in_threadpool(service.reports.keep, campaign_id, job_name, text)
    return Response(status_code=status.HTTP_204_NO_CONTENT)
