"""How much campaigns may use, and which of them may start a job next: limits of all together, and quotas of one token.

Pure. Shares of the limits are max-min fair by devices, by owner and then by campaign: the owner whose campaigns hold
fewest gets the next job, and of equals the one that has used least lately; so do the owner's campaigns among
themselves. What one leaves goes to the others. No job is ended to make room for another.

A campaign that asks for more than its token's quotas leave is not created. One that runs into a quota waits for the
day's trials to come back, and is paused where device-hours are spent: those come back within a month.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from meshtune.search_spaces.checks import Closed, Positive, Some, UserError
from meshtune.tuner.access.tokens import Quotas, Used
from meshtune.tuner.campaign.spec import Budget

# Device time used is counted over so long at the most: a campaign that rested has no claim to catch up for days.
RECENT_S = 3600.0
# A campaign that nobody has worked on for so long wants no jobs; a search may think, and a runner be silent, meanwhile.
ALIVE_S = 120.0
# An attempt that was let through and not heard of again counts for so long: the call that sends a job takes less.
CLAIM_S = 120.0


class QuotaExceeded(UserError):
    """The token has too little left for this campaign; trying again may help when others are over or time has passed.
    The message has the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits(Closed):
    """Of all campaigns together; None: no limit."""

    # In flight at once, waiting in a scheduler's queue included.
    jobs: Some | None = None
    devices: Some | None = None
    # Within the last window_days.
    device_hours: Positive | None = None
    window_days: Positive = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The jobs that one campaign has and wants."""

    campaign_id: str
    owner: str = ""
    # Of each of its jobs.
    devices: int
    # Jobs that were sent, or are about to be.
    in_flight: int
    # Jobs that it could have in flight, in_flight at least.
    wanted: int
    # Lately, see RECENT_S.
    used_device_s: float


def shares(limits: ServiceLimits, demands: Sequence[Demand]) -> dict[str, int]:
    """How many jobs each campaign may have in flight, by its id.

    A campaign that has more already keeps them until they end, so a share may not be free yet: see `refusal`.
    """
    given = {demand.campaign_id: 0 for demand in demands}
    held, used = defaultdict[str, int](int), defaultdict[str, float](float)
    for demand in demands:
        used[demand.owner] += demand.used_device_s

    def turn(one: Demand) -> tuple[float | str, ...]:
        own = (given[one.campaign_id] * one.devices, one.used_device_s, one.campaign_id)
        return (held[one.owner], used[one.owner], one.owner, *own)

    jobs, devices = limits.jobs or inf, limits.devices or inf
    while True:
        open_to = [
            demand
            for demand in demands
            if given[demand.campaign_id] < demand.wanted and jobs >= 1 and demand.devices <= devices
        ]
        if not open_to:
            return given
        least = min(open_to, key=turn)
        given[least.campaign_id] += 1
        held[least.owner] += least.devices
        jobs, devices = jobs - 1, devices - least.devices


def refusal(limits: ServiceLimits, demands: Sequence[Demand], campaign_id: str) -> str:
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


def waits_for(limits: ServiceLimits, demands: Sequence[Demand], campaign_id: str) -> str:
    """As `refusal`, and empty for a campaign that wants no more jobs either."""
    wants = any(demand.campaign_id == campaign_id and demand.in_flight < demand.wanted for demand in demands)
    return refusal(limits, demands, campaign_id) if wants else ""


def exhausted(limits: ServiceLimits, devices: int, spent_device_s: float) -> str:
    """Why no more jobs of so many devices are started, until somebody changes that or days go by; empty where they are.

    spent_device_s: by all campaigns, within the limits' window.
    """
    if limits.devices is not None and devices > limits.devices:
        return f"each of its jobs takes {devices} devices, and the service may use {limits.devices}"
    return hours_spent(limits.device_hours, spent_device_s, "the service", limits.window_days)


def hours_spent(most: float | None, spent_device_s: float, whose: str, days: float) -> str:
    """Why no more jobs are started that count against so many device-hours; empty where they are."""
    if most is None or spent_device_s / 3600.0 < most:
        return ""
    return f"{spent_device_s / 3600.0:.4g} of {most:g} device-hours of {whose} were spent within {days:g} days"


def require_room(owner: str, quotas: Quotas, used: Used, budget: Budget) -> None:
    """Raises QuotaExceeded where a new campaign of this budget asks for more than is left."""
    if quotas.campaigns is not None and used.campaigns >= quotas.campaigns:
        raise QuotaExceeded(f"{used.campaigns} of {quotas.campaigns} campaigns of the token {owner} are active")
    if quotas.trials is not None:
        left, asked = quotas.trials - used.trials, budget.trials or 1
        if asked > left:
            has = f"{max(0, left)} of {quotas.trials} within 24 h left"
            raise QuotaExceeded(f"the budget is {asked} trials, and the token {owner} has {has}")
    if quotas.device_hours is not None:
        left_hours = quotas.device_hours - used.device_hours
        asked_hours = 0.0 if budget.device_hours_follow else budget.device_hours or 0.0
        if left_hours <= 0 or asked_hours > left_hours:
            asks = f"the budget is {asked_hours:g} device-hours, and " if asked_hours else ""
            has = f"{max(0.0, left_hours):.4g} of {quotas.device_hours:g} device-hours within 30 days left"
            raise QuotaExceeded(f"{asks}the token {owner} has {has}")
