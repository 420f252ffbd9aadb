"""How a campaign stands to the limits of its home (`limits.yaml`; no file is no limit) and to its token's quotas."""

from __future__ import annotations

from pathlib import Path

from meshtune.runners.documents import read_value
from meshtune.runners.untrusted_text import SLOW_LIMITS, read_file
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.tuner.access.quotas import ServiceLimits, exhausted, hours_spent, shares, waits_for
from meshtune.tuner.access.tokens import DAY_S, DEVICE_HOURS_WITHIN_S, UNLIMITED, Quotas
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.store import Store

# The device time of a month of jobs is added up again after so long.
ADD_UP_EVERY_S = 10.0


class InvalidLimits(InvalidValue):
    """The limits cannot be read, until somebody mends the file; the message names it and the fields."""


class CampaignQuotas:
    """The limits, by a file that people may edit at any time, and the quotas of all tokens, of one store.

    Any thread may call."""

    def __init__(self, store: Store, path: Path) -> None:
        self._store, self._path = store, path
        # When the file was changed, its size, and what it says.
        self._read: tuple[int, int, ServiceLimits | None] | None = None
        # Device seconds and when they were added up, by the owner ("" for all campaigns together).
        self._spent: dict[str, tuple[float, float]] = {}

    def exhausted(self, campaign: Campaign, now: float) -> str:
        """Why the campaign starts no more jobs until something changes; empty where it may. Raises InvalidLimits."""
        owner = campaign.owner
        quotas = self._quotas(owner)
        if quotas.device_hours is not None:
            spent_device_s = self._spent_device_s(owner, DEVICE_HOURS_WITHIN_S, now)
            if why := hours_spent(quotas.device_hours, spent_device_s, f"the token {owner}", 30):
                return why
        limits = self.limits()
        if limits is None:
            return ""
        window_s, hours = limits.window_days * DAY_S, limits.device_hours
        spent_device_s = 0.0 if hours is None else self._spent_device_s("", window_s, now)
        return exhausted(limits, campaign.spec.cluster.devices, spent_device_s)

    def share(self, campaign: Campaign, now: float) -> int | None:
        """How many jobs the campaign may have in flight by the limits, None without any. Raises InvalidLimits."""
        limits = self.limits()
        return None if limits is None else shares(limits, self._store.demands(campaign.id, now)).get(campaign.id, 0)

    def trials_left(self, owner: str, now: float) -> int | None:
        """How many more trials the campaigns of this owner may plan just now, None for any number."""
        quotas = self._quotas(owner)
        return None if quotas.trials is None else max(0, quotas.trials - self._store.access.used(owner, now).trials)

    def waits(self, campaign: Campaign, now: float) -> str:
        """Why the campaign may not go on just now although it wants to, for people. Raises InvalidLimits."""
        if not campaign.search_ended and self.trials_left(campaign.owner, now) == 0:
            trials = self._quotas(campaign.owner).trials
            used = self._store.access.used(campaign.owner, now).trials
            return f"{used} of {trials} trials of the token {campaign.owner} were planned within 24 h"
        limits = self.limits()
        return "" if limits is None else waits_for(limits, self._store.demands(campaign.id, now), campaign.id)

    def claim(self, campaign: Campaign, number: int, now: float) -> bool:
        """Whether the trial's planned attempt may be sent now; then nobody gets its place. Raises InvalidLimits."""
        limits = self.limits()
        return limits is None or self._store.claim(campaign.id, number, limits, now=now)

    def limits(self) -> ServiceLimits | None:
        """The limits as the file says now; None where it sets none. Raises InvalidLimits."""
        try:
            status = self._path.stat()
            read = self._read  # other threads read too
            if read is None or read[:2] != (status.st_mtime_ns, status.st_size):
                limits = parse_limits(read_file(self._path, SLOW_LIMITS.max_bytes))
                self._read = read = (status.st_mtime_ns, status.st_size, limits)
            return read[2]
        except FileNotFoundError:
            self._read = None
            return None
        except (ValueError, OSError) as error:  # InvalidSpec, InvalidValue and what is not UTF-8 are ValueErrors
            self._read = None
            raise InvalidLimits([Problem(str(self._path), str(error))]) from None

    def _quotas(self, owner: str) -> Quotas:
        return self._store.access.quotas(owner) if owner else UNLIMITED

    def _spent_device_s(self, owner: str, within_s: float, now: float) -> float:
        spent_device_s, added_up_at = self._spent.get(owner, (0.0, 0.0))
        if owner not in self._spent or not 0 <= now - added_up_at < ADD_UP_EVERY_S:
            spent_device_s = self._store.spent_device_s(now - within_s, now, owner or None)
            self._spent[owner] = (spent_device_s, now)
        return spent_device_s


def parse_limits(text: str) -> ServiceLimits | None:
    """The limits that a document describes, None where it sets none. Raises InvalidSpec, InvalidValue."""
    document = parse_yaml(text)
    limits = ServiceLimits() if document is None else read_value(ServiceLimits, document)
    return None if (limits.jobs, limits.devices, limits.device_hours) == (None, None, None) else limits
