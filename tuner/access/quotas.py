"""How much all campaigns of a store may use together, and which of them may start a job next.

Pure. Shares are max-min fair by devices: whoever holds fewest gets the next job, and of equals the one that has used
least lately. What one leaves goes to the others. No job is ended to make room for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from meshtune.search_spaces.checks import CLOSED, Checks

DAY_S = 86400.0
# Who used how much is counted over so long at the most: a campaign that rested has no claim to catch up for days.
RECENT_S = 3600.0
# A campaign that nobody has worked on for so long wants no jobs; a search may think, and a runner be silent, meanwhile.
ALIVE_S = 120.0
# What was let through and not heard of again counts for so long: the call that sends a job takes less.
CLAIM_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of all campaigns together; None: no limit. jobs and devices: in flight at once, waiting in a scheduler's queue
    included. device_hours: within the last window_days."""

    __pydantic_config__: ClassVar[Any] = CLOSED

    jobs: int | None = None
    devices: int | None = None
    device_hours: float | None = None
    window_days: float = 30.0

    def __post_init__(self) -> None:
        checks = Checks()
        for name, count in (("jobs", self.jobs), ("devices", self.devices)):
            checks.require(count is None or count >= 1, name, f"must be at least 1, not {count}")
        for name, amount in (("device_hours", self.device_hours), ("window_days", self.window_days)):
            checks.require(amount is None or 0 < amount < inf, name, f"must be positive and finite, not {amount}")
        checks.done()

    @property
    def window_s(self) -> float:
        return self.window_days * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one campaign has and wants. devices: of each of its jobs. in_flight: jobs that were sent, or are about to
    be. wanted: jobs that it could have in flight, in_flight at least. used_device_s: lately, see RECENT_S."""

    campaign_id: str
    devices: int
    in_flight: int
    wanted: int
    used_device_s: float


def shares(limits: Limits, demands: Sequence[Demand]) -> dict[str, int]:
    """How many jobs each campaign may have in flight, by its id.

    Whoever has more already keeps them until they end, so a share may not be free yet: see `refusal`.
    """
    given = {demand.campaign_id: 0 for demand in demands}
    jobs, devices = limits.jobs or inf, limits.devices or inf
    while True:
        open_to = [
            demand
            for demand in demands
            if given[demand.campaign_id] < demand.wanted and jobs >= 1 and demand.devices <= devices
        ]
        if not open_to:
            return given
        least = min(open_to, key=lambda one: (given[one.campaign_id] * one.devices, one.used_device_s, one.campaign_id))
        given[least.campaign_id] += 1
        jobs, devices = jobs - 1, devices - least.devices


def refusal(limits: Limits, demands: Sequence[Demand], campaign_id: str) -> str:
    """Why the campaign may not send one more job now, for people; empty where it may."""
    own = next((demand for demand in demands if demand.campaign_id == campaign_id), None)
    if own is None:
        return "the campaign is over"
    jobs = sum(demand.in_flight for demand in demands)
    devices = sum(demand.in_flight * demand.devices for demand in demands)
    if limits.jobs is not None and jobs >= limits.jobs:
        return f"{jobs} of {limits.jobs} jobs of the service are in flight"
    if limits.devices is not None and devices + own.devices > limits.devices:
        return f"{devices} of {limits.devices} devices of the service are in use, and its jobs take {own.devices} each"
    share = shares(limits, demands)[campaign_id]
    return f"its fair share is {share} jobs just now; other campaigns are next" if own.in_flight >= share else ""


def waits_for(limits: Limits, demands: Sequence[Demand], campaign_id: str) -> str:
    """As `refusal`, and empty for a campaign that wants no more jobs either."""
    wants = any(demand.campaign_id == campaign_id and demand.in_flight < demand.wanted for demand in demands)
    return refusal(limits, demands, campaign_id) if wants else ""


def exhausted(limits: Limits, devices: int, spent_device_s: float) -> str:
    """Why no more jobs of so many devices are started, until somebody changes that or days go by; empty where they are.

    spent_device_s: by all campaigns, within the limits' window.
    """
    if limits.devices is not None and devices > limits.devices:
        return f"each of its jobs takes {devices} devices, and the service may use {limits.devices}"
    spent_hours = spent_device_s / 3600.0
    if limits.device_hours is not None and spent_hours >= limits.device_hours:
        return (
            f"{spent_hours:.4g} of {limits.device_hours:g} device-hours of the service were spent within "
            f"{limits.window_days:g} days"
        )
    return ""
