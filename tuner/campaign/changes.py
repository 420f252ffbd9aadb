"""What may be changed of a campaign after it was created: its name, tags, notes, budget and the limits of its
trials; pure.

A campaign that is complete goes on where its new budget leaves room: its search is asked again, and second runs that
were made stay. Somebody who gives more to a search that had found enough wants it used, so from then on the budget
alone ends that search (`stop.chance` becomes 0). What was cancelled or has failed stays so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from meshtune.search_spaces.checks import Checks, Closed, Name, UserError
from meshtune.tuner.campaign.calibration import CALIBRATION
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.decide import time_spent
from meshtune.tuner.campaign.second_runs import next_turn, planned_runs
from meshtune.tuner.campaign.spec import Budget, CampaignSpec, TrialLimits
from meshtune.tuner.campaign.trial import Trial, first_runs

MAX_TAGS, MAX_NOTES = 20, 10_000
TAG = re.compile(r"^[a-z0-9][a-z0-9._-]{0,39}$")


class CannotChange(UserError):
    """The campaign's state or what it has used does not allow the change; the same one fails again until that is
    another. The message has the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignDetails(Closed):
    """The parts of a campaign that may be changed. tags: each once, in their order. notes: plain text."""

    name: Name
    budget: Budget
    trial: TrialLimits = field(default_factory=TrialLimits)
    tags: tuple[str, ...] = ()
    notes: str = ""

    def _check(self, checks: Checks) -> None:
        for place, tag in enumerate(self.tags):
            problem = f"must be 1 to 40 of a-z, 0-9, '.', '_' and '-', the first a letter or digit, not {tag[:60]!r}"
            checks.require(TAG.fullmatch(tag) is not None, f"tags.{place}", problem)
        checks.require(len(set(self.tags)) == len(self.tags), "tags", "must name each tag once")
        checks.require(len(self.tags) <= MAX_TAGS, "tags", f"must be at most {MAX_TAGS}, not {len(self.tags)}")
        problem = f"must have at most {MAX_NOTES} characters, not {len(self.notes)}"
        checks.require(len(self.notes) <= MAX_NOTES, "notes", problem)


def extendable(campaign: Campaign) -> bool:
    """Whether it has ended and goes on with a larger budget."""
    return campaign.state is CampaignState.COMPLETED and campaign.spec.search.kind != CALIBRATION


def changed(campaign: Campaign, details: CampaignDetails, trials: Sequence[Trial], now: float) -> Campaign:
    """The campaign with these details; RUNNING where it was complete and its budget is another. trials: its own, as
    lists have them. Raises CannotChange."""
    before, limit_s = campaign.spec.trial, details.trial.time_limit_s or campaign.spec.trial.time_limit_s
    follow = details.trial.time_limit_follow and limit_s == before.time_limit_s
    trial = replace(details.trial, time_limit_s=limit_s, time_limit_follow=follow)
    spec = replace(campaign.spec, name=details.name, budget=details.budget, trial=trial)
    spec = replace(spec, budget=_followed(campaign, spec, len(first_runs(trials))))
    altered = replace(campaign, spec=spec, tags=details.tags, notes=details.notes)
    if details.budget == campaign.spec.budget:
        return altered
    if campaign.state is CampaignState.COMPLETED:
        require_extendable(campaign)
        owed = next_turn(spec, trials)
        if used := time_spent(altered, trials) or ("" if owed else _planned(altered, trials)):
            raise CannotChange(f"campaign {campaign.id} does not go on with this budget: {used}; name more")
        altered = running_again(altered, now)
    elif campaign.state not in (CampaignState.RUNNING, CampaignState.PAUSED):
        raise CannotChange(
            f"campaign {campaign.id} is {campaign.state}, and only a completed one goes on with another budget; "
            "start one like it (clone)"
        )
    if not altered.search_ended or _planned(altered, trials):
        return altered
    ended_itself = campaign.chance_left is not None and campaign.chance_left < spec.stop.chance
    stop = replace(spec.stop, chance=0.0) if ended_itself else spec.stop
    return replace(altered, search_ended="", spec=replace(spec, stop=stop))


def _followed(campaign: Campaign, spec: CampaignSpec, planned: int) -> Budget:
    """With device-hours for other numbers of runs and longer ones, where they are the quote's and nobody stated others.
    planned: first runs."""
    budget, hours = spec.budget, spec.budget.device_hours
    if not budget.device_hours_follow or hours is None or hours != campaign.spec.budget.device_hours:
        return replace(budget, device_hours_follow=False)
    (before, (again, _)), (after, (least, _)) = (planned_runs(one, campaign.legal) for one in (campaign.spec, spec))
    runs = (max(after, planned) + least) / (max(before, planned) + again)
    return replace(budget, device_hours=hours * runs * spec.trial.limit_s / campaign.spec.trial.limit_s)


def require_extendable(campaign: Campaign) -> None:
    """Raises CannotChange for a campaign that has ended and does not go on."""
    if campaign.state.final and not extendable(campaign):
        kind = "a calibration" if campaign.state is CampaignState.COMPLETED else str(campaign.state)
        why = "what it measured is stored" if campaign.state is CampaignState.COMPLETED else "that is final"
        raise CannotChange(f"campaign {campaign.id} is {kind}, and {why}: start one like it (clone)")


def running_again(campaign: Campaign, now: float) -> Campaign:
    return replace(campaign, state=CampaignState.RUNNING, reason="", running_since=now)


def _planned(campaign: Campaign, trials: Sequence[Trial]) -> str:
    """Of how many trials the budget is spent; empty while it is not."""
    most, planned = campaign.spec.budget.trials, len(first_runs(trials))
    return f"{planned} of {most} trials are planned" if most is not None and planned >= most else ""
