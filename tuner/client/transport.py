"""The two ways to take the steps of a call: blocking, and with asyncio; and what makes a method of steps one of either;
and where one follows a campaign's events.

A connection is used again by later calls. Nothing else is kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import update_wrapper
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar, cast, overload

import httpx2
from pydantic import TypeAdapter

from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.client.requests import (
    Pause,
    Reply,
    Request,
    Steps,
    Tries,
    ask,
    get,
    passes,
    place,
    refusal,
    unreachable,
)
from meshtune.tuner.service.views.campaigns import EventPage, EventView

_OVER = {f"campaign.{state}" for state in CampaignState if state.final}
_GOES_ON = {"campaign.created", *(f"campaign.{state}" for state in CampaignState if not state.final)}
_EVENT = TypeAdapter(EventView)
Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
# Large analyses and records take a while; a service that is there takes a connection at once.
TIMEOUT = httpx2.Timeout(120.0, connect=10.0)
# Of a stream, on which the service sends something every 15 s.
SILENCE = httpx2.Timeout(45.0, connect=10.0)


class Follower:
    """One way through a campaign's events: what has come, and what is still to come after a connection broke. They are
    read from the first one on, so that the state is known from them alone. It is over when the newest of them says so:
    an ended campaign that was extended goes on. Does no input or output.

    after: those up to this id are not wanted. patience_s: for how long a service that does not answer is waited for."""

    def __init__(self, campaign_id: str, after: int, patience_s: float) -> None:
        self._campaign_id, self._after, self._patience_s = campaign_id, after, patience_s
        self._seen, self._ended, self._caught_up = 0, False, False
        self._tries = Tries()
        # When it stopped to answer; None while it does.
        self._silent_since: float | None = None

    @property
    def request(self) -> Request[bytes]:
        return get(place("stream"), bytes, {"campaign": self._campaign_id, "after": self._seen})

    def taken(self, sent: httpx2.ServerSentEvent) -> Iterator[EventView]:
        """What of this is wanted: an event or nothing."""
        self._tries, self._silent_since = Tries(), None
        if sent.event == "ready":
            self._caught_up = True
        elif sent.data:
            event = _EVENT.validate_json(sent.data)
            self._seen = max(self._seen, event.id)
            self._ended = event.kind in _OVER or (self._ended and event.kind not in _GOES_ON)
            if event.id > self._after:
                yield event

    def may_be_over(self) -> bool:
        """Whether the newest event that came says so. The stream may be a moment behind, so `unseen` is asked then."""
        return self._caught_up and self._ended

    def unseen(self) -> Steps[list[EventView]]:
        """Whether there is an event that has not come yet."""
        asked = get(place("campaigns", self._campaign_id, "events"), EventPage, {"after": self._seen, "page_size": 1})
        return (yield from ask(asked, self._patience_s)).events

    def broken(self, error: httpx2.TransportError | None = None) -> float:
        """The stream ended: how long to wait before the next try. Raises ServiceUnreachable."""
        self._caught_up = False
        now, pause_s = time.monotonic(), self._tries.pause_s()
        if self._silent_since is None:
            self._silent_since = now
        if now + pause_s > self._silent_since + self._patience_s:
            raise unreachable(self.request, error or httpx2.RemoteProtocolError("the stream ended"))
        return pause_s

    def refused(self, reply: Reply) -> NoReturn:
        """The stream was not opened. Raises ServiceError, or TransportError where that passes."""
        trouble = refusal(self.request, reply)
        raise httpx2.ConnectError(str(trouble)) if passes(reply) else trouble


class BlockingLink:
    """A service, its token, and how long a call tries."""

    def __init__(self, url: str, headers: dict[str, str], patience_s: float) -> None:
        self.url, self.patience_s = url, patience_s
        self._http = httpx2.Client(base_url=url, headers=headers, timeout=TIMEOUT)

    def take(self, steps: Steps[Answer]) -> Answer:
        done: Reply | httpx2.TransportError | None = None
        while True:
            try:
                step = steps.throw(done) if isinstance(done, httpx2.TransportError) else steps.send(done)
            except StopIteration as end:
                return cast(Answer, end.value)
            done = None
            try:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                else:
                    done = _reply(self._http.request(**_arguments(step)))
            except httpx2.TransportError as error:
                done = error

    def follow(self, follower: Follower) -> Iterator[EventView]:
        while True:
            try:
                with self._http.stream(**_arguments(follower.request), timeout=SILENCE) as response:
                    if response.status_code != 200:
                        follower.refused(Reply(response.status_code, response.headers, response.read()))
                    for sent in httpx2.EventSource(response):
                        yield from follower.taken(sent)
                        if follower.may_be_over() and not self.take(follower.unseen()):
                            return
                pause_s = follower.broken()
            except httpx2.TransportError as error:
                pause_s = follower.broken(error)
            time.sleep(pause_s)

    def close(self) -> None:
        self._http.close()


class AsyncLink:
    """As BlockingLink, with asyncio."""

    def __init__(self, url: str, headers: dict[str, str], patience_s: float) -> None:
        self.url, self.patience_s = url, patience_s
        self._http = httpx2.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT)

    async def take(self, steps: Steps[Answer]) -> Answer:
        done: Reply | httpx2.TransportError | None = None
        while True:
            try:
                step = steps.throw(done) if isinstance(done, httpx2.TransportError) else steps.send(done)
            except StopIteration as end:
                return cast(Answer, end.value)
            done = None
            try:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                else:
                    done = _reply(await self._http.request(**_arguments(step)))
            except httpx2.TransportError as error:
                done = error

    async def follow(self, follower: Follower) -> AsyncIterator[EventView]:
        while True:
            try:
                async with self._http.stream(**_arguments(follower.request), timeout=SILENCE) as response:
                    if response.status_code != 200:
                        follower.refused(Reply(response.status_code, response.headers, await response.aread()))
                    async for sent in httpx2.EventSource(response):
                        for event in follower.taken(sent):
                            yield event
                        if follower.may_be_over() and not await self.take(follower.unseen()):
                            return
                pause_s = follower.broken()
            except httpx2.TransportError as error:
                pause_s = follower.broken(error)
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        await self._http.aclose()


def _arguments(request: Request[Any]) -> dict[str, Any]:
    named = {"method": request.method, "url": request.path, "headers": request.headers, "content": request.body}
    return {**named, "params": list(request.query)}


def _reply(response: httpx2.Response) -> Reply:
    return Reply(response.status_code, response.headers, response.content)


class Blocking:
    """Whose methods return answers."""

    _link: BlockingLink


class Awaiting:
    """Whose methods return awaitables of answers."""

    _link: AsyncLink


class step(Generic[Parameters, Answer]):
    """Makes a method that yields steps one that returns the answer, or, of an `Awaiting`, an awaitable of it."""

    def __init__(self, method: Callable[Concatenate[Any, Parameters], Steps[Answer]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: Blocking, kind: type) -> Callable[Parameters, Answer]: ...
    @overload
    def __get__(self, owner: Awaiting, kind: type) -> Callable[Parameters, Awaitable[Answer]]: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        if owner is None:
            return self

        def call(*arguments: Any, **named: Any) -> Any:
            return owner._link.take(self._method(owner, *arguments, **named))

        return update_wrapper(call, self._method)
