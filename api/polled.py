"""What is asked again and again is answered before any route, as long as it holds: pages poll, and most things rest.

A route leaves its answer here under the path and the query, and says what it shows. The gate has found out who asks;
whether they may read is looked at for each request.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from meshtune.api.answers import Answer, respond
from meshtune.api.kept import Kept
from meshtune.api.requests.access import Caller
from meshtune.api.tips import Tip, Tips
from meshtune.tuner.access.tokens import Scope as Right
from meshtune.tuner.store import Store, StoreUnavailable

MOST_BYTES = 64 * 2**20
PREFIX = "/v1/campaigns"


@dataclass(frozen=True, slots=True)
class Entry:
    """An answer as of a look at the store. campaign_id: whose trials are all that it shows; None where it shows more,
    and troubles, too. place: the route and its parameters, for the log."""

    answer: Answer
    tip: Tip
    campaign_id: str | None
    troubles: Hashable
    place: dict[str, Any]


class Polled:
    """One for each process. troubles: what campaigns wait for now, by campaign."""

    def __init__(self, store: Store, troubles: Callable[[], tuple[tuple[str, str], ...]]) -> None:
        self._tips = Tips(store.pages.news)
        self._kept: Kept[Entry] = Kept(MOST_BYTES, lambda entry: entry.answer.weight)
        self.troubles = troubles

    async def look(self, scope: Scope) -> Response | None:
        """The answer that holds, None where a route has to make it."""
        state = scope.setdefault("state", {})
        caller: Caller | None = state.get("caller")
        if caller is None or not caller.may(Right.READ):
            return None
        try:
            state["tip"] = tip = await self._tips.now()
        except StoreUnavailable:
            return None  # a route says so
        entry = self._kept.get(_key(scope), None)
        if entry is None or not self._tips.holds(entry.tip, tip, entry.campaign_id):
            return None
        if entry.campaign_id is None and entry.troubles != self.troubles():
            return None
        scope.update(entry.place)
        return respond(Request(scope), entry.answer)

    def leave(
        self, request: Request, answer: Answer, *, campaign_id: str | None = None, troubles: Hashable = None
    ) -> Response:
        """The response with an answer that was made for this request; the next one that asks the same gets it, too."""
        scope = request.scope
        tip: Tip | None = getattr(request.state, "tip", None)
        if tip is not None:
            place = {name: scope[name] for name in ("route", "path_params")}
            self._kept.put(_key(scope), None, Entry(answer, tip, campaign_id, troubles, place))
        return respond(request, answer)


class PolledFirst:
    """ASGI middleware: what is kept goes before the routes."""

    def __init__(self, app: ASGIApp, polled: Polled) -> None:
        self._app = app
        self._polled = polled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = None
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"].startswith(PREFIX):
            known = await self._polled.look(scope)
        await (known or self._app)(scope, receive, send)


def _key(scope: Scope) -> Hashable:
    return scope["path"], scope["query_string"]
