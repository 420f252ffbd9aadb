"""How new the store is, asked once for all requests that come together, and what has changed since an answer was made.

A request waits for a look that begins after it came, so it never gets an answer older than what it may know of;
requests that come while the store is being looked at share the next look.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from meshtune.api.makers import Turns, make
from meshtune.tuner.campaign.listing import News


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """The store at one moment: its newest event, how many campaigns it had, and what no event tells of them.
    deletions: how often campaigns were found to be gone since the first look."""

    event: int
    campaigns: int
    worked: float
    deletions: int


@dataclass(slots=True)
class _Looks:
    """Of one event loop: the look that goes on, and the one that begins after it."""

    under_way: asyncio.Task[Tip] | None = None
    next: asyncio.Task[Tip] | None = None


class Tips:
    """read: asks the store, see `Pages.news`."""

    def __init__(self, read: Callable[[int | None], News]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._last: Tip | None = None
        # By campaign: its newest event, of those that happened since the first look.
        self._changed: dict[str, int] = {}
        self._looks: WeakKeyDictionary[asyncio.AbstractEventLoop, _Looks] = WeakKeyDictionary()

    async def now(self) -> Tip:
        """Raises StoreError."""
        looks = self._looks.setdefault(asyncio.get_running_loop(), _Looks())
        if looks.next is None:
            looks.next = asyncio.create_task(self._look_after(looks))
        return await asyncio.shield(looks.next)

    def holds(self, made: Tip, now: Tip, campaign_id: str | None) -> bool:
        """Whether what was made as of one look is still so as of a later one. campaign_id: the campaign whose trials
        are all that it shows; None where it shows more."""
        if campaign_id is None:
            return made == now
        return made.deletions == now.deletions and self._changed.get(campaign_id, 0) <= made.event

    async def _look_after(self, looks: _Looks) -> Tip:
        if looks.under_way is not None:
            await asyncio.wait([looks.under_way])
        looks.under_way, looks.next = looks.next, None
        return await make(Turns.LOOK, self._look)

    def _look(self) -> Tip:
        with self._lock:
            last = self._last
            news = self._read(None if last is None else last.event)
            self._changed.update(news.changed)
            gone = last is not None and news.campaigns != last.campaigns + news.created
            deletions = 0 if last is None else last.deletions + gone
            self._last = Tip(event=news.event, campaigns=news.campaigns, worked=news.worked, deletions=deletions)
            return self._last
