"""Leases: which process drives which campaign, good while the holder renews its life.

A holder's life is one row that it renews, however many campaigns it has; it ends by the database's clock (SQLite's is
the machine's). Each new holder of a campaign gets the next epoch. What a holder writes is refused once the epoch is
another's: a process that was stopped and wakes up writes nothing. A lease is left cleanly (`leave`), or its holder
vanishes: then nobody knows whether it wakes up, and what it was about to send may still be sent (`mark_sending`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa

from meshtune.tuner.store import schema
from meshtune.tuner.store.database import Database
from meshtune.tuner.store.errors import LeaseLost
from meshtune.tuner.store.tables import attempts, campaigns, holders, leases
from meshtune.tuner.store.usage import ACTIVE

NOBODY = ""
# No lease is longer: an end that lies further ahead was written before the database's clock went back.
MAX_LEASE_S = 600.0
# A holder that has nothing and was not heard of for so long is forgotten.
FORGET_S = 86400.0
# Made once: each write of a holder asks it first.
_NEWEST = sa.select(leases.c.holder, leases.c.epoch).where(leases.c.campaign_id == sa.bindparam("campaign_id"))


@dataclass(frozen=True, slots=True)
class Lease:
    """holder's right to drive the campaign, until another one has a higher epoch."""

    campaign_id: str
    holder: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Drivers:
    """The active campaigns and the processes that drive them."""

    # Oldest campaign first: the living process that has it, NOBODY for none.
    by_campaign: Mapping[str, str]
    # How many living processes take any campaign.
    servers: int


class Leases:
    """The leases of one store. A store's errors may come from each method."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def renew(self, holder: str, lease_s: float, *, serves: bool) -> float:
        """Let the holder's leases last so long from now; those that another took meanwhile are not its any more. How
        many seconds the database's clock is ahead of this machine's. Raises OtherSchema where it was upgraded."""
        with self._database.writing() as connection:
            schema.require_newest(connection, self._database.name)
            now = self._database.now(connection)
            ahead_s = self._database.ahead_s(now)
            values = {"expires_at": now + lease_s, "serves": serves}
            if connection.execute(sa.update(holders).where(holders.c.name == holder).values(values)).rowcount == 0:
                connection.execute(sa.insert(holders), {"name": holder, **values})
            return ahead_s

    def drivers(self) -> Drivers:
        """The active campaigns and their drivers, in two queries however many there are."""
        with self._database.reading() as connection:
            now = self._database.now(connection)
            alive = set(connection.scalars(sa.select(holders.c.name).where(lives(now))))
            servers = sa.select(sa.func.count()).where(lives(now), holders.c.serves)
            held = connection.execute(
                sa.select(campaigns.c.id, leases.c.holder)
                .outerjoin(leases, leases.c.campaign_id == campaigns.c.id)
                .where(campaigns.c.state.in_(ACTIVE))
                .order_by(campaigns.c.created_at, campaigns.c.id)
            )
            by_campaign = {id: holder if holder in alive else NOBODY for id, holder in held}
            return Drivers(by_campaign, connection.scalar(servers) or 0)

    def driver(self, campaign_id: str) -> str:
        """The living process that has the campaign, NOBODY for none."""
        with self._database.reading() as connection:
            query = (
                sa.select(leases.c.holder)
                .join(holders, holders.c.name == leases.c.holder)
                .where(leases.c.campaign_id == campaign_id, lives(self._database.now(connection)))
            )
            return connection.scalar(query) or NOBODY

    def holders(self, campaign_ids: Collection[str]) -> set[str]:
        """Who has one of the campaigns, or had it last and vanished."""
        with self._database.reading() as connection:
            query = sa.select(leases.c.holder).where(leases.c.campaign_id.in_(list(campaign_ids)))
            return set(connection.scalars(query.where(leases.c.holder != NOBODY)))

    def take(self, holder: str, campaign_ids: Collection[str]) -> dict[str, Lease]:
        """Leases of those campaigns that no other living process has; what the holder has already stays as it is."""
        with self._database.writing() as connection:
            known = sa.exists().where(leases.c.campaign_id == campaigns.c.id)
            new = sa.select(campaigns.c.id, sa.literal(NOBODY), sa.literal(0), sa.literal(0))
            new = new.where(campaigns.c.id.in_(list(campaign_ids)), ~known)
            connection.execute(sa.insert(leases).from_select(["campaign_id", "holder", "epoch", "vanished_epoch"], new))
            now = self._database.now(connection)
            asked = leases.c.campaign_id.in_(list(campaign_ids))
            alive = sa.select(holders.c.name).where(lives(now))
            free = sa.and_(leases.c.holder != holder, leases.c.holder.not_in(alive))
            vanished = sa.case((leases.c.holder == NOBODY, leases.c.vanished_epoch), else_=leases.c.epoch)
            values = {"holder": holder, "epoch": leases.c.epoch + 1, "vanished_epoch": vanished}
            connection.execute(sa.update(leases).where(asked, free).values(values))
            # Of those that vanished long ago nothing is left to tell.
            held = sa.exists().where(leases.c.holder == holders.c.name)
            connection.execute(sa.delete(holders).where(holders.c.expires_at < now - FORGET_S, ~held))
            own = sa.select(leases.c.campaign_id, leases.c.epoch).where(asked, leases.c.holder == holder)
            return {id: Lease(id, holder, epoch) for id, epoch in connection.execute(own)}

    def release(self, lease: Lease) -> None:
        """Let others take the campaign at once; nothing where the lease was lost."""
        with self._database.writing() as connection:
            own = (leases.c.campaign_id == lease.campaign_id, leases.c.epoch == lease.epoch)
            connection.execute(sa.update(leases).where(*own).values(holder=NOBODY))

    def leave(self, holder: str) -> None:
        """Release all that the holder has, for one that ended and sends nothing any more."""
        with self._database.writing() as connection:
            connection.execute(sa.update(leases).where(leases.c.holder == holder).values(holder=NOBODY))
            connection.execute(sa.delete(holders).where(holders.c.name == holder))

    def require(self, lease: Lease) -> None:
        """Return where the lease is still the newest. Raises LeaseLost."""
        with self._database.reading() as connection:
            _require(connection, lease=lease)

    def guarding(self, lease: Lease) -> AbstractContextManager[None]:
        """Refuse what this thread writes meanwhile with LeaseLost, in each transaction in which the lease is lost."""
        return self._database.guarding(partial(_require, lease=lease))

    def mark_sending(self, lease: Lease, job_name: str) -> bool:
        """Note that the planned attempt of that name is about to be sent by this holder; True: send it.

        False: a holder that vanished was about to send it, and does so should it wake up. Then nobody else may send
        it under the same name. Raises LeaseLost.
        """
        with self._database.writing() as connection:
            _require(connection, lease=lease)
            vanished = sa.select(leases.c.vanished_epoch).where(leases.c.campaign_id == lease.campaign_id)
            unsent = sa.or_(attempts.c.sending_epoch.is_(None), attempts.c.sending_epoch > vanished.scalar_subquery())
            mark = sa.update(attempts).where(attempts.c.job_name == job_name, unsent).values(sending_epoch=lease.epoch)
            return connection.execute(mark).rowcount == 1


def lives(now: float) -> sa.ColumnElement[bool]:
    """Of a holder."""
    return sa.and_(holders.c.expires_at > now, holders.c.expires_at <= now + MAX_LEASE_S)


def _require(connection: sa.Connection, *, lease: Lease) -> None:
    newest = connection.execute(_NEWEST, {"campaign_id": lease.campaign_id}).one_or_none()
    if newest is None or tuple(newest) != (lease.holder, lease.epoch):
        who = newest.holder if newest is not None and newest.holder != NOBODY else "no process"
        raise LeaseLost(f"{who} has campaign {lease.campaign_id} now, which {lease.holder} had")
