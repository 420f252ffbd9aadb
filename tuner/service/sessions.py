"""All campaigns in one process's hands: for each its lease, and what it takes to work on it, opened and given back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.home import Home
from meshtune.tuner.service.history import Known
from meshtune.tuner.service.leases import Holder
from meshtune.tuner.service.session import Work, open_work
from meshtune.tuner.store import LeaseLost, Store

# Time worked on a campaign is saved this often; a killed service forgets at most so much of it.
SAVE_ELAPSED_S = 10.0


class Works:
    """What is being worked on, by campaign. A campaign may be held and not opened yet. clock: seconds since the epoch.

    `get` may be called from any thread, the others from the one that ticks.
    """

    def __init__(self, store: Store, home: Home, holder: Holder, clock: Callable[[], float]) -> None:
        self.holder = holder
        self._store, self._home, self._clock = store, home, clock
        self._works: dict[str, Work] = {}

    def __len__(self) -> int:
        return len(self._works)

    def get(self, campaign_id: str) -> Work | None:
        """What was opened for the campaign, None where nothing is."""
        return self._works.get(campaign_id)

    def open(self, campaign_id: str) -> Work | None:
        """The campaign in this process's hands, None for one that is over.

        Raises NotFound, CampaignBusy where another process has it, LeaseLost where one has taken it from us.
        """
        if campaign_id not in self._works:
            campaign = self._store.campaign(campaign_id)
            if not campaign.state.active:
                self.holder.release(campaign_id)
                return None
            hold = self.holder.hold(campaign_id)
            try:
                self._works[campaign_id] = open_work(campaign, self._home, hold, Known(self._store, campaign))
            except BaseException:
                self.holder.release(campaign_id)
                raise
        work = self._works[campaign_id]
        work.hold.confirm()
        return work

    def count_time(self, campaign: Campaign, work: Work) -> Campaign:
        """The campaign with the time worked on it until now, which is saved now and then."""
        now = self._clock()
        if work.worked_at is not None and campaign.state is CampaignState.RUNNING:
            work.unsaved_s += max(0.0, now - work.worked_at)
        work.worked_at = now
        campaign = replace(campaign, elapsed_s=campaign.elapsed_s + work.unsaved_s)
        if work.unsaved_s >= SAVE_ELAPSED_S:
            self._store.add_elapsed(campaign.id, work.unsaved_s, now)
            work.known.add_elapsed(work.unsaved_s)
            work.unsaved_s = 0.0
        return campaign

    def release(self, campaign_id: str) -> None:
        """Let another process have the campaign."""
        try:
            self._put_down(campaign_id)
        finally:
            self.holder.release(campaign_id)

    def drop(self, campaign_id: str) -> None:
        """Let go of a campaign that another process has now, and write nothing."""
        self.holder.forget(campaign_id)
        work = self._works.pop(campaign_id, None)
        if work is not None:
            work.close()

    def close(self) -> None:
        """Let other processes have all of them."""
        try:
            for campaign_id in list(self._works):
                self._put_down(campaign_id)
        finally:
            self.holder.leave()

    def _put_down(self, campaign_id: str) -> None:
        """Save what was worked on the campaign and close what was opened for it, but keep its lease."""
        work = self._works.pop(campaign_id, None)
        if work is None:
            return
        try:
            if work.unsaved_s:
                with suppress(LeaseLost), self._store.leases.guarding(work.hold.lease):
                    self._store.add_elapsed(campaign_id, work.unsaved_s, self._clock())
        finally:
            work.close()
