"""What people do to a campaign beside moving it: changes of its details, plans put in by hand, settings measured once
more. Any process may; the one that drives the campaign sees it by its events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sqlalchemy import Connection, delete, func, select

from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.changes import CannotChange, require_extendable, running_again
from meshtune.tuner.campaign.decide import time_spent
from meshtune.tuner.campaign.trial import Choice, Origin, Trial
from meshtune.tuner.store.access import act_once
from meshtune.tuner.store.campaigns import add_event, read_campaign, rows_of, update_campaign
from meshtune.tuner.store.database import Database
from meshtune.tuner.store.errors import BudgetSpent, IllegalMove
from meshtune.tuner.store.rows import campaign_row
from meshtune.tuner.store.tables import metadata, trials
from meshtune.tuner.store.trials import insert_trials, read_trials, room_left, unreadable

_GOES_ON = (CampaignState.RUNNING, CampaignState.PAUSED)


class Changes:
    _database: Database

    def change_campaign(
        self, id: str, change: Callable[[Campaign, Sequence[Trial]], Campaign], *, now: float
    ) -> Campaign:
        """The campaign as `change` makes it of what it is and its trials, as lists have them; nobody else writes
        meanwhile. Where the request that asks has changed it before (`act_once`), as it is. Raises NotFound, and what
        `change` raises."""
        with self._database.writing() as connection:
            before = read_campaign(connection, id)
            if act_once(connection, id) is not None:
                return before
            after = change(before, read_trials(connection, id, listed=True))
            _write(connection, before, after, now)
            return read_campaign(connection, id)

    def remove_campaign(self, id: str) -> None:
        """Forget a campaign with all its trials and events. Raises NotFound, and IllegalMove when it is not over, but
        for one that is unreadable, which nobody could end."""
        with self._database.writing() as connection:
            if not unreadable(connection, id) and not (state := read_campaign(connection, id).state).final:
                raise IllegalMove(f"campaign {id}", state, "deleted", "only what is over is deleted; cancel it first")
            # Tables that refer to others come first.
            for table in reversed(metadata.sorted_tables):
                rows = rows_of(table, id)
                if rows is not None:
                    connection.execute(delete(table).where(rows))

    def enqueue_trial(self, campaign_id: str, plan: Plan, *, now: float) -> Trial:
        """A new trial of a plan that a person chose, PLANNED; where the request that asks has made it before
        (`act_once`), that one. The campaign may be RUNNING or PAUSED.

        Raises NotFound, IllegalMove, BudgetSpent, CannotChange where the campaign would end it at once, and
        AlreadyExists for a plan that the campaign has.
        """
        with self._database.writing() as connection:
            if act_once(connection, campaign_id) is not None:
                return _newest(connection, campaign_id, [plan], Origin.ENQUEUED)[0]
            campaign = _going_on(connection, campaign_id, _GOES_ON, "a plan put in by hand")
            if room_left(connection, campaign) == 0:
                most = campaign.spec.budget.trials
                reason = f"all {most} trials of campaign {campaign_id}'s budget are planned"
                raise BudgetSpent(f"{reason}: raise the budget first")
            return insert_trials(connection, campaign_id, [Choice(plan)], Origin.ENQUEUED, 0, now)[0]

    def repeat_plans(self, campaign_id: str, plans: Sequence[Plan], *, now: float) -> list[Trial]:
        """New second runs of these plans side by side, in a round of their own; where the request that asks has made
        them before (`act_once`), those. A COMPLETED campaign is RUNNING again. Raises NotFound, IllegalMove, and
        CannotChange where the campaign does not go on, or would end them at once."""
        with self._database.writing() as connection:
            if act_once(connection, campaign_id) is not None:
                return _newest(connection, campaign_id, plans, Origin.CONFIRMATION)
            campaign = _going_on(connection, campaign_id, (*_GOES_ON, CampaignState.COMPLETED), "a second run")
            if campaign.state is CampaignState.COMPLETED:
                _write(connection, campaign, running_again(campaign, now), now)
            of_campaign = trials.c.campaign_id == campaign_id
            last = connection.scalar(select(func.max(trials.c.round)).where(of_campaign)) or 0
            again = [Choice(plan) for plan in plans]
            return insert_trials(connection, campaign_id, again, Origin.CONFIRMATION, last + 1, now)


def _write(connection: Connection, before: Campaign, after: Campaign, now: float) -> None:
    """Write what differs, with an event of the change and one of the move."""
    row, old = campaign_row(after), campaign_row(before)
    values = {name: value for name, value in row.items() if value != old[name]}
    if not values:
        return
    update_campaign(connection, after.id, {**values, "updated_at": now})
    words = {
        "name": after.spec.name,
        "tags": list(after.spec.tags),
        "notes": len(after.spec.notes),
        "search_ended": after.search_ended,
    }
    data: dict[str, object] = {name: word for name, word in words.items() if name in values}
    data |= {part: row["spec"][part] for part in ("budget", "trial", "stop") if row["spec"][part] != old["spec"][part]}
    if data:
        add_event(connection, after.id, now, "campaign.changed", data)
    if after.state is not before.state:
        moved = {"state": str(after.state), "reason": after.reason}
        add_event(connection, after.id, now, f"campaign.{after.state}", moved)


def _newest(connection: Connection, campaign_id: str, plans: Sequence[Plan], origin: Origin) -> list[Trial]:
    trial_of = {trial.plan: trial for trial in read_trials(connection, campaign_id) if trial.origin is origin}
    return [trial_of[plan] for plan in plans]


def _going_on(connection: Connection, id: str, states: Collection[CampaignState], thing: str) -> Campaign:
    """The campaign, in one of these states and with time for more trials. Raises as `Changes.repeat_plans`."""
    campaign = read_campaign(connection, id)
    require_extendable(campaign)
    if campaign.state not in states:
        completed = campaign.state is CampaignState.COMPLETED
        why = "raise its budget first: it goes on then" if completed else "it is over or ends"
        raise IllegalMove(f"campaign {id}", campaign.state, f"one with {thing}", why)
    if used := time_spent(campaign, read_trials(connection, id, listed=True)):
        raise CannotChange(f"campaign {id} starts no more trials: {used}; raise the budget first")
    return campaign
