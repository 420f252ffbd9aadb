"""GET /v1/stream: what happens, as server-sent events, which a client takes up again where it was cut off.

The ids are those of the events table, which grow in the order of commits: after a reconnection, to this process or to
another, `Last-Event-ID` says what is missing. `ready` says that a client has everything up to its id.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from meshtune.api.dependencies import ID_PATTERN, CallerHandle, ServiceHandle, reads, require_readable
from meshtune.api.errors import RETRY_AFTER
from meshtune.api.openapi import problems
from meshtune.api.stream_hub import MAX_READ, StreamHub, Subscriber, frame_of
from meshtune.tuner.campaign.campaign import EVENT_KINDS, Event
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import StoreError

HEARTBEAT_S = 15.0
RETRY = b"retry: 1000\n\n"
HEARTBEAT = b":\n\n"
MAX_ID = 2**63 - 1
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events, for as long as the connection lasts: `id` is the event's, `event` its kind, `data` an "
        "EventView as JSON. `ready`, whose data is `{id}`, follows the events that were missed.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
router = APIRouter(prefix="/v1", dependencies=[reads])


class EventStream(StreamingResponse):
    """Sends frames until they end, the client goes or the hub cuts it off.

    after: the last event that the client has; None for new events alone.
    """

    media_type = "text/event-stream"

    def __init__(self, hub: StreamHub, service: Service, subscriber: Subscriber, after: int | None) -> None:
        super().__init__(self._frames(), headers=HEADERS)
        self._hub, self._service, self._subscriber, self._after = hub, service, subscriber, after
        # Where the client takes nothing, `send` waits, and only this ends it.
        self._cut = anyio.CancelScope()
        subscriber.cut = self._cut.cancel
        hub.join(subscriber)  # now, not with the first byte: limits count it at once

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._cut:
                await super().__call__(scope, receive, send)
        finally:
            self._hub.leave(self._subscriber)

    async def _frames(self) -> AsyncIterator[bytes]:
        """A database that fails ends them early: the client comes again with the last id that it has."""
        yield RETRY
        subscriber, seen = self._subscriber, self._after
        with suppress(StoreError):
            if seen is not None and seen > await run_in_threadpool(self._service.newest_event):
                seen = None  # of another database, such as one from before a backup came back
            # Nothing is kept for a client that is far behind, so that it is not cut off while it catches up.
            while seen is not None and not subscriber.ended and len(page := await self._page(seen)) == MAX_READ:
                yield self._wanted(page)
                seen = page[-1].id
            subscriber.live, position = True, self._hub.position
            if seen is not None:
                while page := [event for event in await self._page(seen) if event.id <= position]:
                    yield self._wanted(page)
                    seen = page[-1].id
            seen = max(position, seen or 0)
            yield f'id: {seen}\nevent: ready\ndata: {{"id": {seen}}}\n\n'.encode()
            async for frames in self._live(seen):
                yield frames

    async def _live(self, seen: int) -> AsyncIterator[bytes]:
        """What is new after the event `seen`. The token is looked at again with every heartbeat."""
        subscriber, beat_at = self._subscriber, anyio.current_time() + HEARTBEAT_S
        while not subscriber.ended:
            with anyio.move_on_at(beat_at):
                await subscriber.awake.wait()
            if frames := subscriber.take(seen):
                yield frames
            if anyio.current_time() >= beat_at:
                if not self._hub.running or not await run_in_threadpool(self._caller_stands):
                    return
                beat_at = anyio.current_time() + HEARTBEAT_S
                yield HEARTBEAT

    def _wanted(self, page: Sequence[Event]) -> bytes:
        return b"".join(frame_of(event) for event in page if self._subscriber.wants(event))

    def _caller_stands(self) -> bool:
        """Whether the caller's token opens anything still."""
        token = self._service.access.by_digest(self._subscriber.reader.sha256)
        return token is not None and not token.refusal(time.time())

    async def _page(self, after: int) -> list[Event]:
        subscriber = self._subscriber
        return await run_in_threadpool(
            self._service.events, subscriber.campaign, after=after, limit=MAX_READ, reader=subscriber.reader
        )


@router.get("/stream", response_class=Response, responses={**DOCUMENTED, **problems(404)}, tags=["events"])
async def stream(
    request: Request,
    service: ServiceHandle,
    caller: CallerHandle,
    campaign: Annotated[
        str | None, Query(pattern=ID_PATTERN, max_length=100, description="Only events of this campaign.")
    ] = None,
    kind: Annotated[
        list[Annotated[str, Query(pattern=f"^({'|'.join(EVENT_KINDS)})$")]],
        Query(max_length=20, description="Only events of this kind, such as campaign.completed; repeated: any of."),
    ] = [],  # noqa: B006
    after: Annotated[int | None, Query(ge=0, le=MAX_ID, description="As Last-Event-ID, which is stronger.")] = None,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=MAX_ID, description="Go on after this event; none: with what is new.")
    ] = None,
) -> Response:
    """What happens to campaigns that the caller may read, from now on or since the last event that was seen, as
    server-sent events."""
    hub: StreamHub = request.app.state.hub
    if campaign is not None:
        await run_in_threadpool(require_readable, caller, service, campaign)
    if not hub.running:
        raise HTTPException(503, "no events are read now: the service is starting or ending", RETRY_AFTER)
    if hub.open_streams >= hub.max_streams:
        raise HTTPException(503, f"{hub.max_streams} streams are open, which is the most", RETRY_AFTER)
    if hub.of_owner(caller.name) >= hub.max_per_token:
        raise HTTPException(429, f"this token has {hub.max_per_token} streams open, which is the most", RETRY_AFTER)
    seen = after if last_event_id is None else last_event_id
    return EventStream(hub, service, Subscriber(campaign, kind, caller), seen)
