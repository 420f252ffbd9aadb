"""The summaries of campaigns, as lists show them: made once for each change, and kept once a campaign is over.

A thread of their own makes those that are missing when the service starts, one after the other and at half speed, so
that the first list has not to count all trials of all campaigns.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from api.kept import Kept
from api.later import Later
from tuner.campaign import Campaign
from tuner.pages import CampaignsWanted, Stamp
from tuner.shortlist import Shortlist, shortlist
from tuner.store import NotFound, Store, StoreError
from tuner.summary import Summary, summarise

# Campaigns whose summaries are kept in memory and made ahead; about 2 kB each.
MOST_CAMPAIGNS = 2000
_log = logging.getLogger(__name__)


class Summaries:
    """One for each process, over its store. `start` and `stop` are for the threads; everything else works without.

    over: told each campaign that is over, by its id, once after a start; what else it makes is kept elsewhere.
    """

    def __init__(self, store: Store, over: Callable[[str], object] = lambda campaign_id: None) -> None:
        self._store = store
        self._over = over
        self._kept: Kept[Summary] = Kept(MOST_CAMPAIGNS)
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

    def _make(self, campaign: Campaign, event: int) -> Summary:
        summary = summary_of(self._store, campaign)
        if campaign.state.final:
            self._later.put(campaign.id, (event, summary))
        return summary

    def _run(self) -> None:
        try:
            for stamp in self._store.pages.stamps(CampaignsWanted(limit=MOST_CAMPAIGNS)):
                begun = time.thread_time()
                if self._stop.is_set():
                    return
                self._make_ahead(stamp)
                self._stop.wait(time.thread_time() - begun)
        except Exception:  # made ahead for speed alone: the service goes on without
            _log.exception("what lists show is not made ahead")

    def _make_ahead(self, stamp: Stamp) -> None:
        try:
            campaign = self._store.campaign(stamp.id)
            self.of(campaign, stamp.event)
            if campaign.state.final:
                self._over(stamp.id)
        except (NotFound, StoreError):
            pass  # gone, or with a spec that today's rules do not read


def summary_of(store: Store, campaign: Campaign) -> Summary:
    tallies = store.pages.tallies(campaign.id)
    return summarise(campaign, tallies, shortlist_of(store, campaign, top=0).trials)


def shortlist_of(store: Store, campaign: Campaign, top: int) -> Shortlist:
    """The trials that the campaign's best settings are found among; top: how many first places are asked for."""
    pages = store.pages
    return shortlist(campaign, pages.scores(campaign.id), top, lambda numbers: pages.measured(campaign.id, numbers))
