"""All campaigns in one process's hands: for each its lease and its session, opened and given back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from meshtune.tuner.campaign.home import Home
from meshtune.tuner.service.leases import Holder
from meshtune.tuner.service.session import Session, open_session
from meshtune.tuner.store import LeaseLost, Store


class Sessions:
    """The sessions, by campaign. A campaign may be held and not opened yet. clock: seconds since the epoch.

    `get` may be called from any thread, the others from the one that ticks.
    """

    def __init__(self, store: Store, home: Home, holder: Holder, clock: Callable[[], float]) -> None:
        self.holder = holder
        self._store, self._home, self._clock = store, home, clock
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, campaign_id: str) -> Session | None:
        """The session of the campaign, None where none is open."""
        return self._sessions.get(campaign_id)

    def open(self, campaign_id: str) -> Session | None:
        """The session of the campaign, which this process holds; None for a campaign that is over.

        Raises NotFound, CampaignBusy where another process has it, LeaseLost where one has taken it from us.
        """
        if campaign_id not in self._sessions:
            campaign = self._store.campaign(campaign_id)
            if not campaign.state.active:
                self.holder.release(campaign_id)
                return None
            hold = self.holder.hold(campaign_id)
            try:
                self._sessions[campaign_id] = open_session(self._store, self._home, campaign, hold)
            except BaseException:
                self.holder.release(campaign_id)
                raise
        session = self._sessions[campaign_id]
        session.hold.confirm()
        return session

    def release(self, campaign_id: str) -> None:
        """Let another process have the campaign."""
        try:
            self._close(campaign_id)
        finally:
            self.holder.release(campaign_id)

    def drop(self, campaign_id: str) -> None:
        """Let go of a campaign that another process has now, and write nothing."""
        self.holder.forget(campaign_id)
        session = self._sessions.pop(campaign_id, None)
        if session is not None:
            session.close()

    def close(self) -> None:
        """Let other processes have all of them."""
        try:
            for campaign_id in list(self._sessions):
                self._close(campaign_id)
        finally:
            self.holder.leave()

    def _close(self, campaign_id: str) -> None:
        """Save the time worked on the campaign and close its session, but keep its lease."""
        session = self._sessions.pop(campaign_id, None)
        if session is None:
            return
        try:
            with suppress(LeaseLost), self._store.leases.guarding(session.hold.lease):
                session.save_time(self._clock())
        finally:
            session.close()
