"""What must hold before rows of trials may change, and the one way in which an attempt moves on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, update

from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.proposal import Choice
from meshtune.tuner.campaign.trial import Origin, TrialState
from meshtune.tuner.store import queries
from meshtune.tuner.store.errors import AlreadyExists, IllegalMove, NotFound
from meshtune.tuner.store.tables import attempts, trials

# Made once, since making it takes longer than asking.
_LAST = (
    select(*(attempts.c[name] for name in ("id", "number", "state", "claimed_at")))
    .join(trials, trials.c.id == attempts.c.trial_id)
    .where(trials.c.campaign_id == bindparam("of"), trials.c.number == bindparam("trial"))
    .order_by(attempts.c.number.desc())
    .limit(1)
)
# What events tell of an attempt, and its key.
_TOLD = [attempts.c[name] for name in ("id", "number", "state", "job_id", "avoid", "nodes", "failed_nodes")]


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


def last_attempt(connection: Connection, campaign_id: str, number: int) -> Row[Any]:
    """The id, number, state and claimed_at of the trial's last attempt. Raises NotFound."""
    last: Row[Any] | None = connection.execute(_LAST, {"of": campaign_id, "trial": number}).first()
    if last is None:
        raise NotFound(f"campaign {campaign_id} has no trial {number}")
    return last


def advance(
    connection: Connection, campaign_id: str, number: int, to: TrialState, values: Mapping[str, Any]
) -> Row[Any]:
    """Move the trial's last attempt on and return what is told of it. Raises NotFound, IllegalMove."""
    last = last_attempt(connection, campaign_id, number)
    state = TrialState(last.state)
    if not state.may_become(to):
        raise IllegalMove(thing(campaign_id, number, last.number), state, to)
    moving = update(attempts).where(attempts.c.id == last.id).values(state=str(to), **values).returning(*_TOLD)
    moved: Row[Any] = connection.execute(moving).one()
    return moved


def thing(campaign_id: str, trial: int, attempt: int) -> str:
    """How messages call a trial."""
    return f"trial {trial} of campaign {campaign_id} (attempt {attempt})"
