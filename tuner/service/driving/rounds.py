"""This process's share of all campaigns, taken and given back round by round, and put into the lanes that drive it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from meshtune.runners.registry import scheduler_name
from meshtune.tuner.service.driving.lanes import Lanes
from meshtune.tuner.service.driving.loop import ALL, Driver
from meshtune.tuner.service.leases import process_name, to_release, to_take
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.trouble import Trouble, TroubleKind
from meshtune.tuner.store import Drivers, NotFound, StoreError, StoreUnavailable

_log = logging.getLogger(__name__)


class Rounds:
    """Sees to it that this process has its share of all campaigns, each in its lane. Used from one thread."""

    def __init__(self, driver: Driver, service: Service) -> None:
        self._driver, self._service = driver, service
        self._holder = service.sessions.holder
        self.lanes = Lanes(driver, service)
        self._looks_at = 0.0

    def go(self) -> float:
        """Take and give back campaigns, now and then, and tell who has the others; the seconds until the next time."""
        self.lanes.tidy()
        now = time.monotonic()
        if now < self._looks_at:
            return self._looks_at - now
        self._looks_at = now + self._driver.periods.drivers_s
        self._driver.heartbeat.beat("looks for campaigns")
        try:
            drivers = self._share_out()
        except StoreError as error:
            self._driver.troubles[ALL] = Trouble(str(error))
            self._looks_at = now + 1.0
            return 1.0
        for ended in self._driver.pauses.keys() - drivers.by_campaign.keys():
            self._driver.pauses.pop(ended, None)
        self._show_drivers(drivers)
        return self._driver.periods.drivers_s

    def _share_out(self) -> Drivers:
        holder, lanes, leases = self._holder, self.lanes, self._service.store.leases
        holder.live()
        held = set(holder.holds)
        drivers = leases.drivers()
        others = set(drivers.by_campaign.values()) - {"", holder.name}
        if any([holder.bury(other) for other in others]):
            drivers = leases.drivers()
        for campaign_id in list(lanes.campaigns):
            driver = drivers.by_campaign.get(campaign_id)
            if driver is None:
                lanes.let_go(campaign_id)
            elif driver not in ("", holder.name):
                lanes.let_go(campaign_id, lost=True)
        for campaign_id in to_release(drivers, holder.name):
            if campaign_id in lanes.campaigns:
                lanes.let_go(campaign_id)
        # Of a take whose answer was lost, only the store knows.
        unknown = [id for id, driver in drivers.by_campaign.items() if driver == holder.name and id not in held]
        # What a lane is to let go of is taken, if at all, when it has.
        free = [id for id in (*to_take(drivers, holder.name), *unknown) if id not in lanes.leaving]
        holder.take(free)
        for campaign_id in free:
            if campaign_id in lanes.campaigns and campaign_id in holder.holds:
                lanes.wake(campaign_id)  # its last tick gave it back
        for campaign_id in holder.holds.keys() - lanes.campaigns:
            if not self._driver.waits_out(campaign_id):
                self._put(campaign_id)
        return drivers

    def _put(self, campaign_id: str) -> None:
        """Find the campaign's lane. What is wrong with it is its trouble alone."""
        try:
            runner = self._service.store.campaign(campaign_id).spec.runner
        except NotFound:
            self._service.release(campaign_id)
        except StoreUnavailable:
            raise
        except Exception as error:
            _log.exception("campaign %s", campaign_id)
            self._driver.trouble(campaign_id, Trouble(f"{type(error).__name__}: {error}"))
        else:
            self.lanes.put(campaign_id, scheduler_name(runner.kind, runner.options))

    def _show_drivers(self, drivers: Drivers) -> None:
        troubles = self._driver.troubles
        elsewhere = {
            id: Trouble(f"driven by {process_name(driver)}", TroubleKind.ELSEWHERE)
            for id, driver in drivers.by_campaign.items()
            if driver not in ("", self._holder.name)
        }
        for id, trouble in list(troubles.items()):
            if id not in drivers.by_campaign or (id not in elsewhere and trouble.kind is TroubleKind.ELSEWHERE):
                troubles.pop(id, None)  # the trouble of ALL is over too
        troubles.update(elsewhere)


def drive_all(
    driver: Driver, service: Service, stop: threading.Event, watch: Callable[[], None] = lambda: None
) -> None:
    """Let the lanes tick this process's share of all active campaigns until `stop` is set, calling `watch` after every
    round. One campaign's trouble never stops the others."""
    rounds = Rounds(driver, service)
    try:
        with service.sessions.holder.beating(serves=True):
            while not stop.is_set():
                pause_s = rounds.go()
                watch()
                stop.wait(min(pause_s, driver.periods.tick_s))
    except BaseException:
        rounds.lanes.stop()
        raise
    rounds.lanes.close()
