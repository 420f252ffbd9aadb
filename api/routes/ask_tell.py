"""The routes for people with their own loop: ask for trials of a campaign whose runner is `external`, and tell how they
went."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import Annotated
from weakref import WeakValueDictionary

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
from meshtune.api.errors import InvalidBody, TooManyRequests
from meshtune.api.middleware.idempotency import HEADER
from meshtune.api.openapi import COMPLETION_BODY, HEARTBEAT_BODY, SUGGEST_BODY
from meshtune.runners.documents import read_value
from meshtune.search_spaces.checks import problems_as
from meshtune.tuner.access.tokens import Token
from meshtune.tuner.service.ask_tell import Ask, Completion, Heartbeat, Report, Suggestions
from meshtune.tuner.service.views.trials import TrialView, trial_view

router = APIRouter(prefix="/v1", tags=["ask and tell"])
# Between two looks for trials that wait.
LOOK_S = 0.2
# Asks of one token that wait at once.
MAX_WAITING = 100


class WaitingAsks:
    """The asks that wait for a trial. Of those of one campaign the first looks, the others wait for their turn."""

    def __init__(self) -> None:
        self.places: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(MAX_WAITING))
        self.turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()


@router.post("/campaigns/{campaign_id}:suggest", dependencies=[launches], openapi_extra=SUGGEST_BODY)
async def suggest_trials(
    request: Request,
    campaign_id: ChangeableId,
    document: Annotated[object, Depends(optional_document)],
    caller: CallerHandle,
    service: ServiceHandle,
) -> Suggestions:
    """Claim trials that wait to be measured, each for one caller alone; none where nothing waits within `wait_s`, or
    the campaign is over (`state`). With an Idempotency-Key the same request gets the same trials again; a `worker` gets
    those first that it has not completed."""
    with problems_as(InvalidBody):
        ask = read_value(Ask, document or {})
    key = request.headers.get(HEADER, "")
    by = _word(caller, key) if key else ""
    suggest = partial(service.ask_tell.suggest, campaign_id, ask, by, _word(caller))
    clock, stop = asyncio.get_running_loop().time, request.app.state.stop
    end, answer = clock() + ask.wait_s, await run_in_threadpool(suggest)
    if answer.suggestions or not ask.wait_s:
        return answer
    asks: WaitingAsks = request.app.state.asks
    place, turn = asks.places[caller.name], asks.turns.setdefault(campaign_id, asyncio.Lock())
    if place.locked():
        raise TooManyRequests(f"{MAX_WAITING} requests of this token wait for trials, which is the most", 5.0)
    with suppress(TimeoutError):
        async with place, asyncio.timeout_at(end) as limit, turn:
            limit.reschedule(None)
            # What nobody hears of is not claimed.
            while not stop.is_set() and not await request.is_disconnected():
                answer = await run_in_threadpool(suggest)
                if answer.suggestions or clock() >= end or not answer.state.active:
                    break
                await asyncio.sleep(min(LOOK_S, end - clock()))
    return answer


@router.post(
    "/campaigns/{campaign_id}/trials/{number}:complete", dependencies=[launches], openapi_extra=COMPLETION_BODY
)
def complete_trial(
    campaign_id: ChangeableId, number: TrialNumber, document: SpecDocument, caller: CallerHandle, service: ServiceHandle
) -> TrialView:
    """Tell how a claimed trial went: what was measured, or a verdict. It is `done` when the driver has read that, which
    takes a moment; the answer is the trial as it was before."""
    with problems_as(InvalidBody):
        completion = read_value(Completion, document)
        trial = service.ask_tell.complete(campaign_id, number, completion, _word(caller))
    return trial_view(trial)


@router.post(
    "/campaigns/{campaign_id}/trials/{number}:heartbeat", dependencies=[launches], openapi_extra=HEARTBEAT_BODY
)
def heartbeat_trial(
    request: Request, campaign_id: ChangeableId, number: TrialNumber, document: SpecDocument, service: ServiceHandle
) -> Heartbeat:
    """Renew the lease of a claim, and report the steps timed so far. The worker goes on with its trial unless
    `should_stop`: its claim or the campaign is over, or, with racing, the trial is surely slower than the best."""
    request.state.changes = False  # so many would leave the audit log no place for others
    with problems_as(InvalidBody):
        return service.ask_tell.heartbeat(campaign_id, number, read_value(Report, document))


def _word(caller: Token, key: str = "") -> str:
    """Of a token, or of its requests with this key; no secret, and in no log."""
    return hashlib.sha256(f"{caller.sha256} {key}".encode()).hexdigest()
