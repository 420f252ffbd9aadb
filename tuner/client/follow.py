"""Where one follows a campaign's events: what has come, and what is still to come after a connection broke.

The events of a campaign are read from its first one on, so that its state is known from them alone. It is over when the
newest of them says so: an ended campaign that was extended goes on. Does no input or output.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NoReturn

import httpx2
from pydantic import TypeAdapter

from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.client.requests import Reply, Request, Steps, Tries, ask, get, passes, place, refusal, unreachable
from meshtune.tuner.service.views.campaigns import EventView

_OVER = {f"campaign.{state}" for state in CampaignState if state.final}
_GOES_ON = {"campaign.created", *(f"campaign.{state}" for state in CampaignState if not state.final)}
_EVENT = TypeAdapter(EventView)


class Follower:
    """One way through a campaign's events. after: those up to this id are not wanted. patience_s: for how long a
    service that does not answer is waited for."""

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
        query = {"after": self._seen, "limit": 1}
        return (
            yield from ask(
                get(place("campaigns", self._campaign_id, "events"), list[EventView], query), self._patience_s
            )
        )

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
