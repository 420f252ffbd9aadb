"""A lane for each scheduler: a thread that ticks the campaigns of that scheduler, so that a slow one delays no others.

One other thread, which calls `Lanes`, says which campaigns are in this process's hands; a campaign is opened, ticked
and given back by its lane alone. A lane begins with its first campaign and ends when it has none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from contextlib import suppress

from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.service.answers import SILENT_S
from meshtune.tuner.service.driving.loop import Driver
from meshtune.tuner.service.leases import CampaignBusy
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.telemetry import Heartbeat
from meshtune.tuner.service.trouble import Trouble, TroubleKind
from meshtune.tuner.store import NotFound, StoreError, StoreUnavailable

# Campaigns that do nothing new are looked at for so small a part of the time: idle services leave the machine alone.
IDLE_SHARE = 0.1
MAX_REST_S = 5.0
# Specs name schedulers. Beyond so many lanes, the schedulers of one kind are asked by one thread.
MAX_LANES = 16
# At the end, the campaigns of idle lanes are given back after so long, and busy lanes are left behind after so long.
IDLE_END_S, BUSY_END_S = 0.5, 5.0
_log = logging.getLogger(__name__)


class Turns:
    """What all lanes share of the processor.

    An ask may take it for long, and Python runs one thread at a time. One campaign asks at a time, and after each ask
    as much time passes before the next: for looks at jobs, orders and requests.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asks = False
        self._next_ask_at = 0.0
        # By campaign: processor seconds of its last idle tick.
        self.idle_s: dict[str, float] = {}

    def take(self) -> bool:
        """Whether the caller may ask now; then it calls `give` afterwards."""
        with self._lock:
            if self._asks or time.monotonic() < self._next_ask_at:
                return False
            self._asks = True
            return True

    def give(self, took_s: float) -> None:
        """took_s: of the processor. Where others have it, an ask takes long and costs little."""
        with self._lock:
            self._asks = False
            self._next_ask_at = time.monotonic() + took_s

    def next_at(self, tick_s: float) -> float:
        """When it is worth trying again. tick_s: from now, while another one asks."""
        with self._lock:
            return time.monotonic() + tick_s if self._asks else self._next_ask_at

    def rest_s(self) -> float:
        """Between two looks at campaigns that do nothing new."""
        return min(MAX_REST_S, sum(list(self.idle_s.values())) * (1 / IDLE_SHARE - 1))


class Lane:
    """The campaigns of one scheduler and the thread that ticks them; all methods are for another thread.

    The campaign whose last ask is longest ago goes first.
    """

    def __init__(self, driver: Driver, service: Service, turns: Turns) -> None:
        self.heartbeat = Heartbeat()
        self._driver, self._service, self._turns = driver, service, turns
        self._lock = threading.Lock()
        # To tick, and to let go of; True: another process has it now.
        self._campaigns: set[str] = set()
        self._leaving: dict[str, bool] = {}
        self._wake, self._stop = threading.Event(), threading.Event()
        # By campaign: when it is ticked next, when it asked last.
        self._due: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}
        # Of the last tick: it wanted to ask and was not allowed to.
        self._refused = False

    def start(self, scheduler: str) -> threading.Thread:
        thread = threading.Thread(target=self._run, name=f"lane {scheduler}", daemon=True)
        thread.start()
        return thread

    @property
    def leaving(self) -> set[str]:
        """The campaigns that it is to let go of, and has not yet."""
        with self._lock:
            return set(self._leaving)

    @property
    def campaigns(self) -> set[str]:
        """All that it has not let go of yet."""
        with self._lock:
            return {*self._campaigns, *self._leaving}

    def put(self, campaign_id: str) -> None:
        """Tick the campaign from now on."""
        with self._lock:
            self._campaigns.add(campaign_id)
        self._wake.set()

    def let_go(self, campaign_id: str, *, lost: bool) -> None:
        """Give the campaign back once its tick has ended, or drive it on where the store does not hear of it. lost:
        another process has it already."""
        with self._lock:
            self._campaigns.discard(campaign_id)
            self._leaving[campaign_id] = lost
        self._wake.set()

    def end(self) -> None:
        """End after the tick that is under way. The campaigns stay open and held."""
        self._stop.set()
        self._wake.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.heartbeat.beat("rests")
            self._wake.clear()
            self._let_go()
            self._wake.wait(self._go())

    def _let_go(self) -> None:
        with self._lock:
            leaving = dict(self._leaving)
        for campaign_id, lost in leaving.items():
            try:
                if lost:
                    self._service.sessions.drop(campaign_id)
                else:
                    self._service.release(campaign_id)
            except StoreError:  # it is driven on, until whoever shares campaigns out asks again
                with self._lock:
                    del self._leaving[campaign_id]
                    self._campaigns.add(campaign_id)
                continue
            for memory in (self._due, self._asked_at, self._turns.idle_s):
                memory.pop(campaign_id, None)
            with self._lock:
                del self._leaving[campaign_id]

    def _go(self) -> float:
        """Tick each campaign that is due once; the seconds until another one is."""
        idle: list[str] = []
        for campaign_id in sorted(self._at_hand(), key=lambda id: self._asked_at.get(id, 0.0)):
            if self._stop.is_set():
                return 0.0
            if campaign_id in self._leaving or self._due.get(campaign_id, 0.0) > time.monotonic():
                continue
            begun = time.thread_time()
            if self._step(campaign_id):
                continue
            if self._refused:
                self._due[campaign_id] = self._turns.next_at(self._driver.periods.tick_s)
            else:
                idle.append(campaign_id)
                self._turns.idle_s[campaign_id] = time.thread_time() - begun
        now = time.monotonic()
        self._due |= dict.fromkeys(idle, now + max(self._driver.periods.tick_s, self._turns.rest_s()))
        return max(0.0, min((self._due.get(id, 0.0) for id in self._at_hand()), default=now + MAX_REST_S) - now)

    def _at_hand(self) -> set[str]:
        """Without those that a tick has given back, since they rest or are over."""
        with self._lock:
            return self._campaigns & self._service.sessions.holder.holds.keys()

    def _step(self, campaign_id: str) -> bool:
        """As `Driver.step`, for one of many: what is wrong is its trouble alone, and it asks in its turn."""
        self._refused = False
        self.heartbeat.beat(f"campaign {campaign_id}")
        asks_since: list[float] = []

        def may_ask() -> bool:
            if not asks_since:
                self._refused = not self._turns.take()
                if not self._refused:
                    asks_since.append(time.thread_time())
            return bool(asks_since)

        try:
            with suppress(NotFound):
                return self._driver.step(campaign_id, may_ask)
            self._service.release(campaign_id)
        except (CampaignBusy, StoreUnavailable, InvalidValue) as error:
            # InvalidValue: its runner's options held where it was created, such as in an allocation of a scheduler.
            self._driver.trouble(campaign_id, Trouble(str(error)))
        except Exception as error:  # a defect, or a backend that is gone: the other campaigns go on
            _log.exception("campaign %s", campaign_id)
            self._driver.trouble(campaign_id, Trouble(f"{type(error).__name__}: {error}"))
        finally:
            if asks_since:
                self._asked_at[campaign_id] = time.monotonic()
                self._turns.give(time.thread_time() - asks_since[0])
        return False


class Lanes:
    """The lanes of one process, by scheduler. Used from one thread."""

    def __init__(self, driver: Driver, service: Service) -> None:
        self._driver, self._service = driver, service
        self._turns = Turns()
        self._lanes: dict[str, tuple[Lane, threading.Thread]] = {}
        # By campaign, of those that are in a lane.
        self._scheduler_of: dict[str, str] = {}

    @property
    def campaigns(self) -> Collection[str]:
        return self._scheduler_of.keys()

    @property
    def leaving(self) -> Collection[str]:
        return {id for lane, _ in self._lanes.values() for id in lane.leaving}

    def put(self, campaign_id: str, scheduler: str) -> None:
        """Let the scheduler's lane tick the campaign from now on, which this process holds."""
        if scheduler not in self._lanes and len(self._lanes) >= MAX_LANES:
            scheduler = scheduler.partition(" ")[0]
        if scheduler not in self._lanes:
            lane = Lane(self._driver, self._service, self._turns)
            lane.heartbeat.beat("begins")
            self._lanes[scheduler] = lane, lane.start(scheduler)
            self._show()
        self._scheduler_of[campaign_id] = scheduler
        self.wake(campaign_id)

    def wake(self, campaign_id: str) -> None:
        """Let the lane of the campaign see that this process holds it again."""
        self._lanes[self._scheduler_of[campaign_id]][0].put(campaign_id)

    def let_go(self, campaign_id: str, *, lost: bool = False) -> None:
        """As `Lane.let_go`. May be repeated until the campaign is in `campaigns` no more."""
        self._lanes[self._scheduler_of[campaign_id]][0].let_go(campaign_id, lost=lost)

    def tidy(self) -> None:
        """Forget the campaigns that lanes have let go of, end lanes that have none, and tell of silent schedulers."""
        for scheduler, (lane, _) in list(self._lanes.items()):
            left = lane.campaigns
            for campaign_id in [id for id, name in self._scheduler_of.items() if name == scheduler and id not in left]:
                del self._scheduler_of[campaign_id]
            silence_s = self._service.answers.silence_s(scheduler)
            if silence_s > SILENT_S:
                self._tell(left, Trouble(f"{scheduler} has not answered for {silence_s:.0f} s", TroubleKind.RUNNER))
            if not left:
                lane.end()
                del self._lanes[scheduler]
                self._service.answers.forget(scheduler)
                self._show()

    def stop(self) -> None:
        for lane, _ in self._lanes.values():
            lane.end()

    def close(self) -> None:
        """End all lanes and let other processes have their campaigns. Those of a lane that is in the middle of a tick
        stay this process's: nobody knows what it is about to send."""
        self.stop()
        begun = time.monotonic()
        busy = self._await(begun + IDLE_END_S)
        if busy:
            self._service.sessions.close(but=busy)
            busy = self._await(begun + BUSY_END_S)
        if busy:
            _log.warning("left in the middle of a tick: the lanes of %s", ", ".join(sorted(busy)))
        self._service.sessions.close(but=busy)
        self._driver.lanes = {}

    def _show(self) -> None:
        self._driver.lanes = {name: lane.heartbeat for name, (lane, _) in self._lanes.items()}

    def _await(self, until: float) -> set[str]:
        """The campaigns of the lanes that have not ended by then."""
        busy: set[str] = set()
        for lane, thread in self._lanes.values():
            thread.join(max(0.0, until - time.monotonic()))
            busy |= lane.campaigns if thread.is_alive() else set()
        return busy

    def _tell(self, campaigns: Collection[str], silence: Trouble) -> None:
        """Of a question that failed its campaign's trouble tells more."""
        for campaign_id in campaigns:
            if campaign_id not in self._driver.pauses:
                self._driver.troubles[campaign_id] = silence
