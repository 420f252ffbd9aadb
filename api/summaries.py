"""The summaries of campaigns, as lists show them: made once for each change, and kept once a campaign is over.

A thread of their own makes those that are missing when the service starts, so that the first list has not to count all
trials of all campaigns, and then those of campaigns that come to their ends. It works at half speed, one after the
other, and gives way to requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from meshtune.api.kept import Kept
from meshtune.api.later import Later
from meshtune.api.makers import awaited
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.listing import CampaignsWanted
from meshtune.tuner.campaign.summary import Summary
from meshtune.tuner.results.shortlist import Shortlist, shortlist
from meshtune.tuner.results.summary import summarise
from meshtune.tuner.store import NotFound, Store, StoreError

# Campaigns whose summaries are kept in memory and made ahead; about 2 kB each.
MOST_CAMPAIGNS = 2000
# Trials on the shortlists that are kept for what is made of them next; about 2 kB each.
MOST_LISTED = 500
# At the least so many of the best settings are on a shortlist: as many as are told where nobody says how many.
TOP = 10
# How often campaigns that have come to their ends are looked for.
ENDED_EVERY_S = 2.0
# For so long what is made ahead waits for requests, each time.
GIVES_WAY_S = 1.0
_log = logging.getLogger(__name__)


class Summaries:
    """One for each process, over its store. `start` and `stop` are for the threads; everything else works without.

    over: told each campaign that is over, by its id, once after a start, and when it ends; what else it makes is kept
    elsewhere.
    """

    def __init__(self, store: Store, over: Callable[[str], object] = lambda campaign_id: None) -> None:
        self._store = store
        self._over = over
        self._kept: Kept[Summary] = Kept(MOST_CAMPAIGNS)
        self._listed: Kept[Shortlist] = Kept(MOST_LISTED, lambda few: 1 + len(few.trials))
        self._later = Later("summaries", store.summaries.keep)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._stop.clear()
        self._later.start()
        self._thread = threading.Thread(target=self._run, name="made ahead", daemon=True)
        self._thread.start()

    def stop(self, limit_s: float) -> bool:
        """End the threads; whether they have ended within so long."""
        self._stop.set()
        ended = self._later.stop(limit_s)
        if self._thread is not None:
            self._thread.join(limit_s)
        return ended and (self._thread is None or not self._thread.is_alive())

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

    def shortlist(self, campaign: Campaign, event: int, top: int) -> Shortlist:
        """The trials that the campaign's best settings are found among, as of its newest event. top: how many first
        places are asked for."""
        top = max(top, TOP)
        return self._listed.get_or_make((campaign.id, top), event, lambda: shortlist_of(self._store, campaign, top))

    def _make(self, campaign: Campaign, event: int) -> Summary:
        few = self.shortlist(campaign, event, TOP)
        summary = summarise(campaign, self._store.pages.tallies(campaign.id), few.trials)
        if campaign.state.final:
            self._later.put(campaign.id, (event, summary))
        return summary

    def _run(self) -> None:
        try:
            event = self._store.pages.news(None).event
            for stamp in self._store.pages.stamps(CampaignsWanted(limit=MOST_CAMPAIGNS)):
                self._make_ahead(stamp.id)
            while not self._stop.wait(ENDED_EVERY_S):
                event = self._make_ended(event)
        except Exception:  # made ahead for speed alone: the service goes on without
            _log.exception("what lists show is not made ahead")

    def _make_ended(self, after: int) -> int:
        """Of the campaigns that have come to their ends since this event; the newest one."""
        try:
            newest, ids = self._store.pages.ended(after)
        except StoreError:
            return after  # requests say so
        for id in ids:
            self._make_ahead(id)
        return newest

    def _make_ahead(self, campaign_id: str) -> None:
        if self._stop.is_set():
            return
        awaited.give_way(GIVES_WAY_S)
        begun = time.thread_time()
        try:
            event = self._store.pages.newest_event(campaign_id)
            campaign = self._store.campaign(campaign_id)
            self.of(campaign, event)
            if campaign.state.final:
                self._over(campaign_id)
        except (NotFound, StoreError):
            pass  # gone, or with a spec that today's rules do not read
        self._stop.wait(time.thread_time() - begun)


def summary_of(store: Store, campaign: Campaign) -> Summary:
    tallies = store.pages.tallies(campaign.id)
    return summarise(campaign, tallies, shortlist_of(store, campaign, top=0).trials)


def shortlist_of(store: Store, campaign: Campaign, top: int) -> Shortlist:
    pages = store.pages
    return shortlist(campaign, pages.scores(campaign.id), top, lambda numbers: pages.measured(campaign.id, numbers))
