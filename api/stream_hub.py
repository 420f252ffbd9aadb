"""One reader of the events table for all open streams of a process: each stream gets its events in order, once.

A thread reads new events and gives them, as finished text, to the event loop, where every subscriber has a queue of
bounded length. A slow client is cut off, and comes again with the last id that it saw. A database that does not answer
delays events and loses none.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from prometheus_client import Counter

from meshtune.api.connections import STREAMS
from meshtune.runners.documents import json_of
from meshtune.tuner.access.tokens import Ownership, Token
from meshtune.tuner.campaign.campaign import Event
from meshtune.tuner.service.telemetry import Heartbeat
from meshtune.tuner.service.views.campaigns import event_view
from meshtune.tuner.store import Store, StoreError

PERIOD_S = 0.2
# After a look that failed.
PAUSE_S = 1.0
# Events that are read at once, and that may wait for one client: it is some 30 s behind when 30 of them come a second.
MAX_READ = 500
MAX_WAITING = 1000
NOBODYS = Ownership(owner="", project="")
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Subscriber:
    # Of which campaign and of what kinds; None, empty: of all.
    campaign: str | None
    kinds: Collection[str]
    # Who opened it.
    reader: Token
    # Ends it while it is sent to, for a client that does not keep up.
    cut: Callable[[], None] = lambda: None
    # Events not sent yet, by their ids.
    frames: deque[tuple[int, bytes]] = field(default_factory=deque)
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    # New events are added to `frames`.
    live: bool = False
    # No more events come.
    ended: bool = False

    def wants(self, event: Event) -> bool:
        return self.campaign in (None, event.campaign_id) and (not self.kinds or event.kind in self.kinds)

    def take(self, after: int) -> bytes:
        """What has come since the last call with ids above `after`, in one piece."""
        taken = b"".join(frame for id, frame in self.frames if id > after)
        self.frames.clear()
        self.awake.clear()
        return taken

    def end(self) -> None:
        self.ended = True
        self.awake.set()


class StreamHub:
    """Its methods are for the event loop, except `wake` and `end_soon`, which may be called from anywhere.

    on_events: called, on the reader's thread, with new events. heartbeat: of that thread. max_streams: of all tokens.
    """

    def __init__(
        self, store: Store, on_events: Callable[[Sequence[Event]], None] = lambda _: None, max_streams: int = STREAMS
    ) -> None:
        self.max_streams = max_streams
        self.max_per_token = max(1, max_streams // 4)
        self.heartbeat = Heartbeat()
        self._store, self._on_events = store, on_events
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscribers: set[Subscriber] = set()
        # The newest event that subscribers were given.
        self.position = 0
        self.cut_off = Counter(
            "meshtune_streams_cut_off", "Streams ended since their client was too slow.", registry=None
        )

    @property
    def open_streams(self) -> int:
        return len(self._subscribers)

    @property
    def running(self) -> bool:
        """True while events are read; False before the start, after the end, and where the reader has died."""
        return self._thread is not None and self._thread.is_alive() and not self._stop.is_set()

    def of_owner(self, owner: str) -> int:
        """How many streams this token has open."""
        return sum(subscriber.reader.name == owner for subscriber in self._subscribers)

    async def start(self) -> None:
        """Follow the events from now on. Raises StoreError."""
        self._loop = asyncio.get_running_loop()
        self.position = await asyncio.to_thread(self._store.newest_event)
        self._stop.clear()
        self._thread = threading.Thread(target=self._follow, args=(self.position,), name="events", daemon=True)
        self._thread.start()

    def stop(self, limit_s: float) -> bool:
        """End every stream and the reader; False where it still waits for the database after limit_s."""
        self._end()
        if self._thread is None:
            return True
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def end_soon(self) -> None:
        """End every stream as soon as the event loop comes to it; no new one is opened. Safe in a signal handler."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: everything has ended
                self._loop.call_soon_threadsafe(self._end)

    def wake(self) -> None:
        self._wake.set()

    def join(self, subscriber: Subscriber) -> None:
        """Count it as open. Every event after `position` is kept for it once it is `live`."""
        self._subscribers.add(subscriber)

    def leave(self, subscriber: Subscriber) -> None:
        self._subscribers.discard(subscriber)

    def _end(self) -> None:
        self._stop.set()
        self._wake.set()
        for subscriber in self._subscribers:
            subscriber.end()

    def _follow(self, after: int) -> None:
        assert self._loop is not None
        trouble = ""
        while not self._stop.is_set():
            self.heartbeat.beat()
            pause_s = PERIOD_S
            try:
                events = self._store.events(None, after=after, limit=MAX_READ)
                owned = self._store.ownerships({event.campaign_id for event in events}) if events else {}
            except StoreError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    _log.warning("events are late: %s", trouble)
                events, pause_s = [], PAUSE_S
            else:
                trouble = ""
            if events:
                after = events[-1].id
                self._on_events(events)
                # One that was deleted meanwhile is nobody's.
                rendered = [(event, owned.get(event.campaign_id, NOBODYS), frame_of(event)) for event in events]
                with suppress(RuntimeError):  # the loop has closed meanwhile
                    self._loop.call_soon_threadsafe(self._publish, rendered)
            if len(events) < MAX_READ:
                self._wake.wait(pause_s)
                self._wake.clear()

    def _publish(self, rendered: Sequence[tuple[Event, Ownership, bytes]]) -> None:
        self.position = rendered[-1][0].id
        for subscriber in [each for each in self._subscribers if each.live]:
            wanted = [
                (event.id, frame)
                for event, owned, frame in rendered
                if subscriber.wants(event) and subscriber.reader.reads(owned)
            ]
            if len(subscriber.frames) + len(wanted) > MAX_WAITING:
                _log.info("a stream is cut off: its client is %d events behind", len(subscriber.frames))
                self.cut_off.inc()
                self.leave(subscriber)
                subscriber.frames.clear()
                subscriber.end()
                subscriber.cut()
            elif wanted:
                subscriber.frames.extend(wanted)
                subscriber.awake.set()


def frame_of(event: Event) -> bytes:
    """The event as text/event-stream has it. JSON keeps it on one line."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), json_of(event_view(event)))
