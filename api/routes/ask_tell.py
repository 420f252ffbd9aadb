"""The routes for people with their own loop: ask for trials of a campaign whose runner is `external`, and tell how they
went."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool

from meshtune.api.dependencies import (
    CallerHandle,
    ChangeableId,
    ServiceHandle,
    SpecDocument,
    TrialNumber,
    launches,
    optional_document,
)
from meshtune.api.errors import InvalidBody
from meshtune.api.middleware.idempotency import HEADER
from meshtune.api.openapi import COMPLETION_BODY, SUGGEST_BODY
from meshtune.runners.documents import read_value
from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.service.ask_tell import Ask, Completion, Suggestions
from meshtune.tuner.service.views.trials import TrialView, trial_view

router = APIRouter(prefix="/v1", tags=["ask and tell"])
# Between two looks for trials that wait.
LOOK_S = 0.2


@router.post("/campaigns/{campaign_id}:suggest", dependencies=[launches], openapi_extra=SUGGEST_BODY)
async def suggest_trials(
    request: Request,
    campaign_id: ChangeableId,
    document: Annotated[object, Depends(optional_document)],
    caller: CallerHandle,
    service: ServiceHandle,
) -> Suggestions:
    """Claim trials that wait to be measured, each for one caller alone; none where nothing waits within `wait_s`, or
    the campaign is over (`state`). With an Idempotency-Key the same request gets the same trials again."""
    try:
        ask = read_value(Ask, document or {})
    except InvalidValue as error:
        raise InvalidBody(error.problems) from None
    key = request.headers.get(HEADER, "")
    by = hashlib.sha256(f"{caller.sha256} {key}".encode()).hexdigest() if key else ""
    end = asyncio.get_running_loop().time() + ask.wait_s
    while True:
        answer = await run_in_threadpool(service.ask_tell.suggest, campaign_id, ask.count, by)
        left_s = end - asyncio.get_running_loop().time()
        if answer.suggestions or left_s <= 0 or not answer.state.active or request.app.state.stop.is_set():
            return answer
        await asyncio.sleep(min(LOOK_S, left_s))
        # What nobody hears of is not claimed.
        if await request.is_disconnected():
            return answer


@router.post(
    "/campaigns/{campaign_id}/trials/{number}:complete", dependencies=[launches], openapi_extra=COMPLETION_BODY
)
def complete_trial(
    campaign_id: ChangeableId, number: TrialNumber, document: SpecDocument, service: ServiceHandle
) -> TrialView:
    """Tell how a claimed trial went: what was measured, or a verdict. It is `done` when the driver has read that, which
    takes a moment; the answer is the trial as it was before."""
    try:
        trial = service.ask_tell.complete(campaign_id, number, read_value(Completion, document))
    except InvalidValue as error:
        raise InvalidBody(error.problems) from None
    return trial_view(trial)
