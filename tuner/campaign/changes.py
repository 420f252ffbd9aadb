"""What may be changed of a campaign after it was created: its name, tags, notes, budget and the limits of its
trials; pure.

A campaign that is complete goes on where its new budget leaves room: its search is asked again, and second runs that
were made stay. Somebody who gives more to a search that had found enough wants it used, so from then on the budget
alone ends that search (`stop.chance` becomes 0). What was cancelled or has failed stays so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from meshtune.search_spaces.checks import Closed, Name, UserError
from meshtune.tuner.campaign.calibration import CALIBRATION
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.decide import time_spent
from meshtune.tuner.campaign.second_runs import next_turn, planned_runs
from meshtune.tuner.campaign.spec import Budget, CampaignSpec, Notes, Tags, TrialLimits
from meshtune.tuner.campaign.trial import Trial, first_runs


class CannotChange(UserError):
    """The campaign's state or what it has used does not allow the change; the same one fails again until that is
    another. The message has the numbers."""


class VersionConflict(UserError):
    """Somebody else has changed the campaign since: read it and decide again. The message has both versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignDetails(Closed):
    """The parts of a campaign that may be changed, as its spec has them."""

    name: Name
    budget: Budget
    trial: TrialLimits = field(default_factory=TrialLimits)
    tags: Tags = ()
    notes: Notes = ""


def details_of(campaign: Campaign) -> CampaignDetails:
    spec = campaign.spec
    return CampaignDetails(name=spec.name, budget=spec.budget, trial=spec.trial, tags=spec.tags, notes=spec.notes)


def version_of(campaign: Campaign) -> str:
    """Another after each change of its details."""
    return blake2b(repr(details_of(campaign)).encode(), digest_size=6).hexdigest()


def require_version(campaign: Campaign, versions: Collection[str]) -> None:
    """versions: any will do; empty: all do. Raises VersionConflict."""
    if versions and (version := version_of(campaign)) not in versions:
        known = ", ".join(each[:40] for each in versions)
        raise VersionConflict(f"campaign {campaign.id} has the version {version} by now, not {known}: read it again")


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
    spec = replace(spec, tags=details.tags, notes=details.notes)
    spec = replace(spec, budget=_followed(campaign, spec, len(first_runs(trials))))
    altered = replace(campaign, spec=spec)
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
