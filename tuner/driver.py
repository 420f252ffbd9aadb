"""Drives campaigns tick by tick until they are done, and waits out what passes: a silent runner, a locked database, a
quota that is used up by others.

Trouble is remembered for people to see, and tried again with growing pauses. What cannot pass is raised.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from runners.base import RunnerError
from tuner.limits import InvalidLimits
from tuner.service import Service
from tuner.store import NotFound, StoreError, StoreUnavailable
from tuner.trial import TrialState
from tuner.work import CampaignBusy

# Between two looks at jobs that did nothing new.
PERIOD_S = 0.1
LONGEST_PAUSE_S = 30.0
_log = logging.getLogger(__name__)


class Driver:
    """Ticks campaigns for one service, from one thread. troubles: what is wrong just now, by campaign."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tries: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self.troubles: dict[str, str] = {}

    def step(self, campaign_id: str) -> bool:
        """One tick, unless the campaign waits out some trouble; True when something was done.

        Raises what trying again does not mend: CampaignBusy, StoreError other than a passing one.
        """
        if time.monotonic() < self._not_before.get(campaign_id, 0.0):
            return False
        try:
            acted = self._service.tick(campaign_id)
            waits = "" if acted else self._service.waits(campaign_id)
        except RunnerError as error:
            return self.trouble(campaign_id, f"the runner: {error}")
        except InvalidLimits as error:
            return self.trouble(campaign_id, str(error))
        except StoreUnavailable as error:
            if not error.transient:
                raise
            return self.trouble(campaign_id, str(error))
        self._tries.pop(campaign_id, None)
        self._not_before.pop(campaign_id, None)
        self.troubles.pop(campaign_id, None)
        if waits:
            self.troubles[campaign_id] = waits
        return acted

    def trouble(self, campaign_id: str, message: str) -> bool:
        """Remember what is wrong and leave the campaign alone for a while, longer each time. Always False."""
        tries = self._tries.get(campaign_id, 0) + 1
        self._tries[campaign_id] = tries
        self._not_before[campaign_id] = time.monotonic() + min(LONGEST_PAUSE_S, 0.5 * 2 ** min(tries, 10))
        self.troubles[campaign_id] = message
        return False


def drive_one(driver: Driver, service: Service, campaign_id: str, watch: Callable[[], None]) -> None:
    """Tick one campaign until it rests (done, or paused with nothing running), calling `watch` after every tick."""
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
            time.sleep(PERIOD_S)


def _rests(service: Service, campaign_id: str) -> bool:
    """Done, or paused with nothing out: what was planned before the pause waits for its end."""
    campaign = service.store.campaign(campaign_id)
    out = (TrialState.SUBMITTED, TrialState.RUNNING)
    return not campaign.state.active or (
        campaign.state.resting and not any(trial.state in out for trial in service.store.trials(campaign_id))
    )


def drive_all(driver: Driver, service: Service, active: Callable[[], Iterable[str]], stop: threading.Event) -> None:
    """Tick every active campaign until `stop` is set. One campaign's trouble never stops the others."""
    while not stop.is_set():
        acted = False
        try:
            campaign_ids = list(active())
        except StoreError as error:
            driver.troubles["*"] = str(error)
            stop.wait(1.0)
            continue
        driver.troubles.pop("*", None)
        for campaign_id in campaign_ids:
            try:
                acted |= driver.step(campaign_id)
            except NotFound:
                service.release(campaign_id)
            except (CampaignBusy, StoreUnavailable) as error:
                driver.trouble(campaign_id, str(error))
            except Exception as error:  # a defect, or a backend that is gone: the other campaigns go on
                _log.exception("campaign %s", campaign_id)
                driver.trouble(campaign_id, f"{type(error).__name__}: {error}")
        if not acted:
            stop.wait(PERIOD_S)
    service.close()
