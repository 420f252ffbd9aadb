"""Drives campaigns tick by tick until they are done, and waits out what passes: a silent runner, a locked database, a
quota that is used up by others.

Trouble is remembered for people to see, and tried again with growing pauses. What cannot pass is raised.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshtune.runners.base import RunnerError
from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.service.leases import CampaignBusy, process_name, to_release, to_take
from meshtune.tuner.service.quotas import InvalidLimits
from meshtune.tuner.service.service import Service, always
from meshtune.tuner.service.telemetry import Heartbeat
from meshtune.tuner.store import Drivers, NotFound, StoreError, StoreUnavailable

# Campaigns that do nothing new are looked at for so small a part of the time: idle services leave the machine alone.
IDLE_SHARE = 0.1
MAX_REST_S = 5.0
DRIVEN = "driven by "
ALL = "*"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """How often a driver looks, in seconds."""

    # Between two looks at jobs that did nothing new.
    tick_s: float = 0.1
    # Between two looks at which campaigns there are and who drives them.
    drivers_s: float = 0.25
    # The longest pause of a campaign in trouble.
    max_pause_s: float = 30.0


REAL_PERIODS = Periods()


class Driver:
    """Ticks campaigns for one service, from one thread. troubles: the present trouble of each campaign, for people;
    that of all of them has the key ALL. heartbeat: of that thread, with each tick of `drive_all`."""

    def __init__(self, service: Service, periods: Periods = REAL_PERIODS) -> None:
        self._service = service
        self.periods = periods
        # By campaign: failed tries in a row, and the time of the next one.
        self.pauses: dict[str, tuple[int, float]] = {}
        self.troubles: dict[str, str] = {}
        self.heartbeat = Heartbeat()

    def step(self, campaign_id: str, may_ask: Callable[[], bool] = always) -> bool:
        """One tick, unless the campaign waits out some trouble; True when something was done.

        may_ask: see `Service.tick`. Raises what trying again does not mend: CampaignBusy, StoreError other than a
        passing one.
        """
        if time.monotonic() < self.pauses.get(campaign_id, (0, 0.0))[1]:
            return False
        try:
            with self._service.metrics.tick_s.time():
                acted = self._service.tick(campaign_id, may_ask)
            waits = "" if acted else self._service.waits(campaign_id)
        except RunnerError as error:
            return self.trouble(campaign_id, f"the runner: {error}")
        except (InvalidLimits, StoreUnavailable) as error:
            if isinstance(error, StoreUnavailable) and not error.transient:
                raise
            return self.trouble(campaign_id, str(error))
        self.pauses.pop(campaign_id, None)
        self.troubles.pop(campaign_id, None)
        if waits:
            self.troubles[campaign_id] = waits
        return acted

    def trouble(self, campaign_id: str, message: str) -> bool:
        """Remember what is wrong and leave the campaign alone for a while, longer each time. Always False."""
        tries = self.pauses.get(campaign_id, (0, 0.0))[0] + 1
        pause_s = min(self.periods.max_pause_s, 0.5 * 2 ** min(tries, 10))
        self.pauses[campaign_id] = (tries, time.monotonic() + pause_s)
        self.troubles[campaign_id] = message
        return False


class Rounds:
    """Ticks what is due of this process's share of all campaigns, and sees to it that it has its share.

    An ask may take the processor for long, and Python runs one thread at a time. After each one, as much time passes
    before the next: for looks at jobs, orders and requests. The campaign whose last ask is longest ago goes first.
    """

    def __init__(self, driver: Driver, service: Service) -> None:
        self._driver, self._service = driver, service
        self._holder = service.sessions.holder
        self._looks_at = 0.0
        # By campaign: when it is ticked next, processor seconds of its last idle tick, when it asked last.
        self._due: dict[str, float] = {}
        self._idle_s: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}
        self._next_ask_at = 0.0
        # Of the last tick: it wanted to ask and was not allowed to.
        self._refused = False

    def go(self, stop: threading.Event) -> float:
        """Tick each campaign that is due once; the seconds until another one is. Ends early when `stop` is set."""
        self._look()
        idle: list[str] = []
        for campaign_id in sorted(self._holder.holds, key=lambda id: self._asked_at.get(id, 0.0)):
            if stop.is_set():
                return 0.0
            self._look()  # a tick may take long
            if campaign_id not in self._holder.holds or self._due.get(campaign_id, 0.0) > time.monotonic():
                continue
            begun = time.thread_time()
            if self._step(campaign_id):
                continue
            if self._refused:
                self._due[campaign_id] = self._next_ask_at
            else:
                idle.append(campaign_id)
                self._idle_s[campaign_id] = time.thread_time() - begun
        held = self._holder.holds
        now, rest_s = time.monotonic(), sum(self._idle_s.get(id, 0.0) for id in held) * (1 / IDLE_SHARE - 1)
        self._due |= dict.fromkeys(idle, now + min(MAX_REST_S, max(self._driver.periods.tick_s, rest_s)))
        return max(0.0, min([self._looks_at, *(self._due.get(id, 0.0) for id in held)]) - now)

    def _step(self, campaign_id: str) -> bool:
        """As `Driver.step`, for one of many: what is wrong is its trouble alone, and it asks in its turn."""
        self._refused = False
        self._driver.heartbeat.beat(f"campaign {campaign_id}")
        asks_since: list[float] = []

        def may_ask() -> bool:
            self._refused = time.monotonic() < self._next_ask_at
            if not self._refused:
                asks_since.append(time.thread_time())
            return not self._refused

        try:
            return self._driver.step(campaign_id, may_ask)
        except NotFound:
            self._service.release(campaign_id)
        except (CampaignBusy, StoreUnavailable, InvalidValue) as error:
            # InvalidValue: its runner's options held where it was created, such as in an allocation of a scheduler.
            self._driver.trouble(campaign_id, str(error))
        except Exception as error:  # a defect, or a backend that is gone: the other campaigns go on
            _log.exception("campaign %s", campaign_id)
            self._driver.trouble(campaign_id, f"{type(error).__name__}: {error}")
        finally:
            if asks_since:
                self._asked_at[campaign_id] = time.monotonic()
                # Where others have the processor, an ask takes long and costs little.
                self._next_ask_at = time.monotonic() + time.thread_time() - asks_since[0]
        return False

    def _look(self) -> None:
        """Take and give back campaigns, now and then, and tell who has the others."""
        now = time.monotonic()
        if now < self._looks_at:
            return
        self._looks_at = now + self._driver.periods.drivers_s
        self._driver.heartbeat.beat("looks for campaigns")
        try:
            drivers = self._share_out()
        except StoreError as error:
            self._driver.troubles[ALL] = str(error)
            self._looks_at = now + 1.0
            return
        memories: tuple[dict[str, Any], ...] = (self._due, self._idle_s, self._asked_at, self._driver.pauses)
        for memory in memories:
            for ended in memory.keys() - drivers.by_campaign.keys():
                del memory[ended]
        self._show_drivers(drivers)

    def _share_out(self) -> Drivers:
        holder, sessions, leases = self._holder, self._service.sessions, self._service.store.leases
        holder.live()
        drivers = leases.drivers()
        others = set(drivers.by_campaign.values()) - {"", holder.name}
        if any([holder.bury(other) for other in others]):
            drivers = leases.drivers()
        for campaign_id in list(holder.holds):
            found = drivers.by_campaign.get(campaign_id)
            if found is None:
                sessions.release(campaign_id)
            elif found not in ("", holder.name):
                sessions.drop(campaign_id)
        holder.take(to_take(drivers, holder.name))
        for campaign_id in to_release(drivers, holder.name):
            sessions.release(campaign_id)
        return drivers

    def _show_drivers(self, drivers: Drivers) -> None:
        troubles = self._driver.troubles
        elsewhere = {
            id: f"{DRIVEN}{process_name(driver)}"
            for id, driver in drivers.by_campaign.items()
            if driver not in ("", self._holder.name)
        }
        for id in [*troubles]:
            if id not in drivers.by_campaign or (id not in elsewhere and troubles[id].startswith(DRIVEN)):
                del troubles[id]  # the trouble of ALL is over too
        troubles.update(elsewhere)


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
                acted = driver.trouble(campaign_id, str(error))
            if not acted:
                time.sleep(driver.periods.tick_s)


def _rests(service: Service, campaign_id: str) -> bool:
    """Done, or paused with nothing out: what was planned before the pause waits for its end."""
    campaign = service.store.campaign(campaign_id)
    out = (TrialState.SUBMITTED, TrialState.RUNNING)
    return not campaign.state.active or (
        campaign.state.resting and not any(trial.state in out for trial in service.store.trials(campaign_id))
    )


def drive_all(
    driver: Driver, service: Service, stop: threading.Event, watch: Callable[[], None] = lambda: None
) -> None:
    """Tick this process's share of all active campaigns until `stop` is set, calling `watch` after every round.

    One campaign's trouble never stops the others.
    """
    rounds = Rounds(driver, service)
    with service.sessions.holder.beating(serves=True):
        while not stop.is_set():
            pause_s = rounds.go(stop)
            watch()
            stop.wait(pause_s)
    service.close()
