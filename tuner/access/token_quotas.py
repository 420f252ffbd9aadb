"""What a token's quotas leave to the campaigns that it created. Pure.

A campaign that asks for more than is left is not created. One that runs into a quota waits for the day's trials to come
back, and is paused where device-hours are spent: those come back within a month.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtune.tuner.access.tokens import Quotas, Used
from meshtune.tuner.campaign.decide import Ask, Confirm, Intent, PlanBaseline
from meshtune.tuner.campaign.spec import Budget


class QuotaExceeded(Exception):
    """The token has too little left for this campaign; trying again may help when others are over or time has passed.
    The message has the numbers."""


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
        left_hours, asked_hours = quotas.device_hours - used.device_hours, budget.device_hours or 0.0
        if left_hours <= 0 or asked_hours > left_hours:
            asks = f"the budget is {asked_hours:g} device-hours, and " if asked_hours else ""
            has = f"{max(0.0, left_hours):.4g} of {quotas.device_hours:g} device-hours within 30 days left"
            raise QuotaExceeded(f"{asks}the token {owner} has {has}")


def spent(owner: str, quotas: Quotas, used: Used) -> str:
    """Why no more jobs of the owner's campaigns are started; empty where they are."""
    if quotas.device_hours is None or used.device_hours < quotas.device_hours:
        return ""
    hours = f"{used.device_hours:.4g} of {quotas.device_hours:g} device-hours"
    return f"{hours} of the token {owner} were spent within 30 days"


def trials_wait(owner: str, quotas: Quotas, used: Used) -> str:
    """Why no more trials of the owner's campaigns are planned just now; empty where they are."""
    if quotas.trials is None or used.trials < quotas.trials:
        return ""
    return f"{used.trials} of {quotas.trials} trials of the token {owner} were planned within 24 h"


def within(intents: Sequence[Intent], trials_left: int) -> list[Intent]:
    """The intents without those that would plan more trials than are left."""
    kept: list[Intent] = []
    for intent in intents:
        match intent:
            case Ask(n):
                kept += [Ask(min(n, trials_left))] if trials_left > 0 else []
            case Confirm(plans):
                kept += [Confirm(plans[:trials_left])] if trials_left > 0 else []
            case PlanBaseline():
                kept += [intent] if trials_left > 0 else []
            case _:
                kept.append(intent)
    return kept
