"""What must hold before rows of trials may change, and the one way in which an attempt moves on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select, update

from tuner.campaign import CampaignState
from tuner.search.base import Choice
from tuner.store import queries
from tuner.store.errors import AlreadyExists, IllegalMove
from tuner.store.tables import attempts, trials
from tuner.trial import Origin, Trial, TrialState


def require_running(
    connection: Connection, campaign_id: str, subject: str, state: str, wanted: str = TrialState.PLANNED
) -> None:
    """Raises IllegalMove where the campaign is not RUNNING. subject: what cannot go from `state` to `wanted` then."""
    campaign = queries.campaign_state(connection, campaign_id)
    if campaign is not CampaignState.RUNNING:
        raise IllegalMove(subject, state, wanted, f"the campaign is {campaign}, not running")


def require_new(connection: Connection, campaign_id: str, choices: Sequence[Choice], origin: Origin) -> None:
    """Raises AlreadyExists for a plan that comes twice or that the campaign has."""
    confirmation = trials.c.origin == str(Origin.CONFIRMATION)
    alike = confirmation if origin is Origin.CONFIRMATION else ~confirmation
    query = select(trials.c.plan_key, trials.c.number).where(trials.c.campaign_id == campaign_id, alike)
    taken: dict[str, int] = {key: number for key, number in connection.execute(query)}
    coming: set[str] = set()
    for plan in (choice.plan for choice in choices):
        if plan.key in taken:
            raise AlreadyExists(f"campaign {campaign_id} has the plan {plan.key} already, as trial {taken[plan.key]}")
        if plan.key in coming:
            raise AlreadyExists(f"campaign {campaign_id}: the plan {plan.key} comes twice in one list")
        coming.add(plan.key)


def advance(connection: Connection, campaign_id: str, number: int, to: TrialState, values: Mapping[str, Any]) -> int:
    """Move the trial's last attempt on and return the id of its row. Raises NotFound, IllegalMove."""
    trial = queries.trial(connection, campaign_id, number)
    if not trial.state.may_become(to):
        raise IllegalMove(thing(trial), trial.state, to)
    moved = (
        update(attempts)
        .where(attempts.c.job_name == trial.last.job_name)
        .values(state=str(to), **values)
        .returning(attempts.c.id)
    )
    attempt_id: int = connection.scalars(moved).one()
    return attempt_id


def thing(trial: Trial) -> str:
    """How messages call a trial."""
    return f"trial {trial.number} of campaign {trial.campaign_id} (attempt {trial.last.number})"
