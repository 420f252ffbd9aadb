"""The summaries of campaigns, as lists show them: made once for each change, and kept once a campaign is over.

A thread of their own makes those that are missing when the service starts, one after the other and at half speed, so
that the first list has not to count all trials of all campaigns. It alone writes them down.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence

from api.kept import Kept
from tuner.campaign import Campaign
from tuner.pages import CampaignsWanted
from tuner.store import NotFound, Store, StoreError
from tuner.summary import Summary, summarise

# Campaigns whose summaries are kept in memory and made ahead; about 2 kB each.
MOST_CAMPAIGNS = 2000
# Of these one is looked up in the database at once, and so many are written at once.
CHUNK = 50
_log = logging.getLogger(__name__)


class Summaries:
    """One for each process, over its store. `start` and `stop` are for the thread; everything else works without."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: Kept[Summary] = Kept(MOST_CAMPAIGNS)
        self._unwritten: queue.SimpleQueue[tuple[str, int, Summary] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="summaries", daemon=True)
        self._thread.start()

    def stop(self, limit_s: float) -> bool:
        """End the thread; whether it has ended within so long."""
        self._stop.set()
        self._unwritten.put(None)
        if self._thread is not None:
            self._thread.join(limit_s)
        return self._thread is None or not self._thread.is_alive()

    def of(self, campaign: Campaign, event: int) -> Summary:
        """The campaign's summary as of its newest event."""
        return self.of_all([campaign], {campaign.id: event})[campaign.id]

    def of_all(self, campaigns: Sequence[Campaign], events: Mapping[str, int]) -> dict[str, Summary]:
        """The summaries of these campaigns as of their newest events."""
        found = {each.id: self._kept.get(each.id, events[each.id]) for each in campaigns}
        over = [each.id for each in campaigns if found[each.id] is None and each.state.final]
        if over:
            for id, (event, summary) in self._store.summaries.kept(over).items():
                if event == events[id]:
                    self._kept.put(id, event, summary)
                    found[id] = summary
        return {each.id: found[each.id] or self._made(each, events[each.id]) for each in campaigns}

    def _made(self, campaign: Campaign, event: int) -> Summary:
        return self._kept.get_or_make(campaign.id, event, lambda: self._make(campaign, event))

    def _make(self, campaign: Campaign, event: int) -> Summary:
        summary = summary_of(self._store, campaign)
        if campaign.state.final:
            self._unwritten.put((campaign.id, event, summary))
        return summary

    def _run(self) -> None:
        try:
            self._make_ahead()
            while not self._stop.is_set():
                self._write(self._unwritten.get())
        except Exception:  # kept for speed alone: the service goes on without
            _log.exception("summaries are not kept any more")

    def _make_ahead(self) -> None:
        stamps = self._store.pages.stamps(CampaignsWanted(limit=MOST_CAMPAIGNS))
        for start in range(0, len(stamps), CHUNK):
            events = {stamp.id: stamp.event for stamp in stamps[start : start + CHUNK]}
            for id in events:
                if self._stop.is_set():
                    return
                begun = time.thread_time()
                try:
                    self.of(self._store.campaign(id), events[id])
                except (NotFound, StoreError):
                    continue  # gone, or with a spec that today's rules do not read
                self._stop.wait(time.thread_time() - begun)
            if not self._unwritten.empty():
                self._write(self._unwritten.get())

    def _write(self, first: tuple[str, int, Summary] | None) -> None:
        """Keep this one and what else waits."""
        made = {} if first is None else {first[0]: first[1:]}
        while len(made) < CHUNK and not self._unwritten.empty():
            entry = self._unwritten.get()
            if entry is not None:
                made[entry[0]] = entry[1:]
        if not made:
            return
        try:
            self._store.summaries.keep(made)
        except StoreError as error:
            _log.warning("summaries are not kept: %s", error)


def summary_of(store: Store, campaign: Campaign) -> Summary:
    tallies = store.pages.tallies(campaign.id)
    return summarise(campaign, tallies, store.pages.measured(campaign.id))
