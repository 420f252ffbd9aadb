"""Drives a campaign tick by tick until it is done, and waits out what passes: a silent runner, a locked database, a
quota that is used up by others.

Trouble is remembered for people to see, and tried again with growing pauses. What cannot pass is raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshtune.runners.base import RunnerError
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.service.answers import SILENT_S
from meshtune.tuner.service.quotas import InvalidLimits
from meshtune.tuner.service.service import Service, always
from meshtune.tuner.service.telemetry import Heartbeat
from meshtune.tuner.service.trouble import Trouble, TroubleKind
from meshtune.tuner.store import StoreUnavailable

# The key of the trouble of all campaigns.
ALL = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """How often a driver looks, in seconds."""

    # Between two looks at jobs that did nothing new.
    tick_s: float = 0.1
    # Between two looks at which campaigns there are and who drives them.
    drivers_s: float = 0.25
    # The longest pause of a campaign in trouble.
    max_pause_s: float = 30.0


class Driver:
    """Ticks campaigns for one service, each of them from one thread.

    troubles: the present trouble of each campaign; that of all of them has the key ALL. heartbeat: of the
    thread that shares campaigns out (`rounds.drive_all`). lanes: those of the threads that tick them, by scheduler.
    """

    def __init__(self, service: Service, periods: Periods = Periods()) -> None:
        self._service = service
        self.periods = periods
        # By campaign: failed tries in a row, and the time of the next one.
        self.pauses: dict[str, tuple[int, float]] = {}
        self.troubles: dict[str, Trouble] = {}
        self.heartbeat = Heartbeat()
        self.lanes: Mapping[str, Heartbeat] = {}

    def step(self, campaign_id: str, may_ask: Callable[[], bool] = always) -> bool:
        """One tick, unless the campaign waits out some trouble; True when something was done.

        may_ask: see `Service.tick`. Raises what trying again does not mend: CampaignBusy, StoreError other than a
        passing one.
        """
        if self.waits_out(campaign_id):
            return False
        try:
            with self._service.metrics.tick_s.time():
                acted = self._service.tick(campaign_id, may_ask)
            waits = None if acted else self._service.waits(campaign_id)
        except RunnerError as error:
            silence_s = self._service.silence_s(campaign_id)
            since = f"; no answer for {silence_s:.0f} s" if silence_s > SILENT_S else ""
            return self.trouble(campaign_id, Trouble(f"{error}{since}", TroubleKind.RUNNER))
        except (InvalidLimits, StoreUnavailable) as error:
            if isinstance(error, StoreUnavailable) and not error.transient:
                raise
            return self.trouble(campaign_id, Trouble(str(error)))
        self.pauses.pop(campaign_id, None)
        self.troubles.pop(campaign_id, None)
        if waits is not None:
            self.troubles[campaign_id] = waits
        return acted

    def waits_out(self, campaign_id: str) -> bool:
        """Whether the campaign is left alone for now, since something went wrong."""
        return time.monotonic() < self.pauses.get(campaign_id, (0, 0.0))[1]

    def trouble(self, campaign_id: str, trouble: Trouble) -> bool:
        """Remember what is wrong and leave the campaign alone for a while, longer each time. Always False."""
        tries = self.pauses.get(campaign_id, (0, 0.0))[0] + 1
        pause_s = min(self.periods.max_pause_s, 0.5 * 2 ** min(tries, 10))
        self.pauses[campaign_id] = (tries, time.monotonic() + pause_s)
        self.troubles[campaign_id] = trouble
        return False


def drive_one(driver: Driver, service: Service, campaign_id: str, watch: Callable[[], None]) -> None:
    """Tick one campaign until it rests (done, or paused with nothing running), calling `watch` after every tick."""
    with service.sessions.holder.beating(serves=False):
        while True:
            try:
                acted = driver.step(campaign_id)
                watch()
                if not acted and _rests(service, campaign_id):
                    service.release(campaign_id)
                    return
            except StoreUnavailable as error:
                if not error.transient:
                    raise
                acted = driver.trouble(campaign_id, Trouble(str(error)))
            if not acted:
                time.sleep(driver.periods.tick_s)


def _rests(service: Service, campaign_id: str) -> bool:
    """Done, or paused with nothing out: what was planned before the pause waits for its end."""
    campaign = service.store.campaign(campaign_id)
    if campaign.state is not CampaignState.PAUSED:
        return not campaign.state.active
    out = (TrialState.SUBMITTED, TrialState.RUNNING)
    return not any(trial.state in out for trial in service.store.trials(campaign_id))
