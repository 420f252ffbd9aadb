"""What the campaigns of one owner use, as the quotas of its token count it."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from meshtune.tuner.access.token_quotas import require_room
from meshtune.tuner.access.tokens import DEVICE_HOURS_WITHIN_S, TRIALS_WITHIN_S, UNLIMITED, Quotas, Used
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.store import usage
from meshtune.tuner.store.tables import attempts, campaigns, tokens, trials

_ACTIVE = [str(state) for state in CampaignState if state.active]


def used(connection: Connection, owner: str, now: float) -> Used:
    active = select(func.count()).where(campaigns.c.owner == owner, campaigns.c.state.in_(_ACTIVE))
    planned = (
        select(func.count())
        .select_from(attempts)
        .join(trials, trials.c.id == attempts.c.trial_id)
        .join(campaigns, campaigns.c.id == trials.c.campaign_id)
        .where(campaigns.c.owner == owner, attempts.c.number == 1, attempts.c.planned_at > now - TRIALS_WITHIN_S)
    )
    return Used(
        campaigns=connection.scalar(active) or 0,
        trials=connection.scalar(planned) or 0,
        device_hours=usage.spent_device_s(connection, now - DEVICE_HOURS_WITHIN_S, now, owner) / 3600.0,
    )


def quotas_of(connection: Connection, owner: str) -> Quotas:
    """Those of the token of that name; none where there is no such token."""
    row = connection.execute(select(tokens).where(tokens.c.name == owner)).one_or_none()
    if row is None:
        return UNLIMITED
    return Quotas(campaigns=row.campaigns, trials=row.trials, device_hours=row.device_hours)


def require_room_for(connection: Connection, campaign: Campaign) -> None:
    """Raises QuotaExceeded; within the transaction that creates the campaign, so that no two take the last place."""
    quotas = quotas_of(connection, campaign.owner) if campaign.owner else UNLIMITED
    if quotas != UNLIMITED:
        require_room(
            campaign.owner, quotas, used(connection, campaign.owner, campaign.created_at), campaign.spec.budget
        )
