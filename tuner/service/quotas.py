"""The limits of a home, in its `limits.yaml`, and how a campaign stands to them; no file is no limit.

InvalidLimits    the file cannot be used as it is; trying again helps once somebody has mended it
"""

from __future__ import annotations

from math import inf
from pathlib import Path

from meshtune.runners.documents import read_value
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.tuner.access.quotas import Limits, exhausted, shares, waits_for
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.decide import Intent
from meshtune.tuner.service.owner_quotas import OwnerQuotas
from meshtune.tuner.specs.read import parse_yaml
from meshtune.tuner.store import Store

# What a month of jobs took is added up again after so long.
SPENT_EVERY_S = 10.0


class InvalidLimits(InvalidValue):
    """The limits cannot be read; the message names the file and the fields."""


class Quota:
    """What the campaigns of one store may use together, by a file that people may edit at any time."""

    def __init__(self, store: Store, path: Path) -> None:
        self._store = store
        self._path = path
        self._owners = OwnerQuotas(store)
        self._seen: tuple[int, int] | None = None
        self._limits: Limits | None = None
        self._spent_device_s, self._added_up_at = 0.0, -inf

    def exhausted(self, campaign: Campaign, now: float) -> str:
        """Why the campaign starts no more jobs until something changes; empty where it may. Raises InvalidLimits."""
        return self._owners.exhausted(campaign.owner, now) or self._exhausted(campaign, now)

    def _exhausted(self, campaign: Campaign, now: float) -> str:
        limits = self.limits()
        if limits is None:
            return ""
        if limits.device_hours is not None and not 0 <= now - self._added_up_at < SPENT_EVERY_S:
            self._spent_device_s = self._store.spent_device_s(now - limits.window_s, now)
            self._added_up_at = now
        return exhausted(limits, campaign.spec.cluster.devices, self._spent_device_s)

    def share(self, campaign: Campaign, now: float) -> int | None:
        """How many jobs the campaign may have in flight by the limits, None without any. Raises InvalidLimits."""
        limits = self.limits()
        return None if limits is None else shares(limits, self._store.demands(campaign.id, now)).get(campaign.id, 0)

    def waits(self, campaign: Campaign, now: float) -> str:
        """Why the campaign may not send a job now although it wants to, for people. Raises InvalidLimits."""
        if not campaign.search_ended and (why := self._owners.waits(campaign.owner, now)):
            return why
        limits = self.limits()
        return "" if limits is None else waits_for(limits, self._store.demands(campaign.id, now), campaign.id)

    def within(self, campaign: Campaign, intents: list[Intent], now: float) -> list[Intent]:
        """What the campaign may do of this by the quotas of its owner."""
        return self._owners.within(campaign.owner, intents, now)

    def claim(self, campaign: Campaign, number: int, now: float) -> bool:
        """Whether the trial's planned attempt may be sent now; then nobody gets its place. Raises InvalidLimits."""
        limits = self.limits()
        return limits is None or self._store.claim(campaign.id, number, limits, now=now)

    def limits(self) -> Limits | None:
        """The limits as the file says now; None where it sets none. Raises InvalidLimits."""
        try:
            found = self._path.stat()
            if (found.st_mtime_ns, found.st_size) != self._seen:
                self._limits = parse_limits(self._path.read_text(encoding="utf-8"))
                self._seen = (found.st_mtime_ns, found.st_size)
        except FileNotFoundError:
            self._seen = self._limits = None
        except (ValueError, OSError) as error:  # InvalidSpec, InvalidValue and what is not UTF-8 are ValueErrors
            self._seen = None
            raise InvalidLimits([Problem(str(self._path), str(error))]) from None
        return self._limits


def parse_limits(text: str) -> Limits | None:
    """The limits that a document describes, None where it sets none. Raises InvalidSpec, InvalidValue."""
    document = parse_yaml(text)
    limits = Limits() if document is None else read_value(Limits, document)
    return None if (limits.jobs, limits.devices, limits.device_hours) == (None, None, None) else limits
