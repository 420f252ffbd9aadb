"""Campaigns in the database: created, moved from state to state, listed, removed; and events: each write of a campaign
or a trial adds one, in the transaction that changes the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, bindparam, insert, or_, select, update

from meshtune.tuner.access.quotas import require_room
from meshtune.tuner.access.tokens import OPERATOR, UNLIMITED, Ownership, Rights
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Event, Lesson
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.store.access import act_once
from meshtune.tuner.store.database import Database
from meshtune.tuner.store.errors import AlreadyExists, IllegalMove, NotFound, Outdated, Unreadable
from meshtune.tuner.store.leases import NOBODY
from meshtune.tuner.store.rows import campaign_of, campaign_row
from meshtune.tuner.store.tables import attempts, campaigns, events, leases, spec_texts, trials
from meshtune.tuner.store.usage import ACTIVE, owner_usage, token_quotas

# Made once, since making them takes longer than asking: each campaign that is driven asks at every look.
_AFTER = select(events).where(events.c.id > bindparam("after")).order_by(events.c.id).limit(bindparam("most"))
_AFTER_OF = _AFTER.where(events.c.campaign_id == bindparam("of"))
_NEWEST = select(events.c.id).order_by(events.c.id.desc()).limit(1)
_NEWEST_OF = _NEWEST.where(events.c.campaign_id == bindparam("of"))
_OWNERSHIPS = select(campaigns.c.id, campaigns.c.owner, campaigns.c.project).where(
    campaigns.c.id.in_(bindparam("ids", expanding=True))
)
# What a state and the end of a search are decided on, beside the trials.
_DECIDED_ON = ("state", "spec", "running_since", "search_ended")
_NEWEST_FIRST = select(campaigns).order_by(campaigns.c.created_at.desc(), campaigns.c.id.desc())


class CampaignRows:
    _database: Database

    def create_campaign(self, campaign: Campaign, *, holder: str = NOBODY, text: str = "") -> Campaign:
        """Keep a new campaign and return it; where the request that asks made one before (`act_once`), that one.

        holder: the process that has it from the start. text: its spec as written, where there is one. Raises
        AlreadyExists for an id that is taken, QuotaExceeded where its owner's token leaves no room for it.
        """
        with self._database.writing() as connection:
            if (earlier := act_once(connection, campaign.id)) is not None:
                return read_campaign(connection, earlier)
            if connection.scalar(select(campaigns.c.id).where(campaigns.c.id == campaign.id)) is not None:
                raise AlreadyExists(f"campaign {campaign.id} exists already")
            # Within the transaction that creates the campaign, so that no two take the last place.
            quotas = token_quotas(connection, campaign.owner)
            if quotas != UNLIMITED:
                used = owner_usage(connection, campaign.owner, campaign.created_at)
                require_room(campaign.owner, quotas, used, campaign.spec.budget)
            connection.execute(insert(campaigns), campaign_row(campaign))
            if text:
                connection.execute(insert(spec_texts), {"campaign_id": campaign.id, "text": text})
            data = {"name": campaign.spec.name, "state": str(campaign.state)}
            add_event(connection, campaign.id, campaign.created_at, "campaign.created", data)
            if holder != NOBODY:
                first = {"campaign_id": campaign.id, "holder": holder, "epoch": 1, "vanished_epoch": 0}
                connection.execute(insert(leases), first)
            return campaign

    def campaign(self, id: str) -> Campaign:
        """Raises NotFound."""
        with self._database.reading() as connection:
            return read_campaign(connection, id)

    def spec_text(self, id: str) -> str:
        """The campaign's spec as written; empty where it did not come as a text, and for no campaign."""
        with self._database.reading() as connection:
            return connection.scalar(select(spec_texts.c.text).where(spec_texts.c.campaign_id == id)) or ""

    def campaigns(
        self,
        *where: ColumnElement[bool],
        limit: int | None,
        states: Collection[CampaignState] | None = None,
        reader: Rights = OPERATOR,
        unreadable: list[str] | None = None,
    ) -> list[Campaign]:
        """The newest ones in these states (None: in any) that the reader may read, newest first; among them, one that
        this meshtune does not read is left out. unreadable: takes a sentence of each of those."""
        query = _NEWEST_FIRST.where(*where, *readable_by(reader)).limit(limit)
        if states is not None:
            query = query.where(campaigns.c.state.in_([str(state) for state in states]))
        readable: list[Campaign] = []
        with self._database.reading() as connection:
            for row in connection.execute(query):
                try:
                    readable.append(campaign_of(row))
                except Unreadable as error:
                    (unreadable if unreadable is not None else []).append(str(error))
        return readable

    def campaigns_on(self, device: str, workload: str, *, limit: int, reader: Rights = OPERATOR) -> list[Campaign]:
        """As `campaigns`, of those on this device with this kind of workload."""
        where = (campaigns.c.device == device, campaigns.c.workload == workload)
        return self.campaigns(*where, limit=limit, reader=reader)

    def ended_before(self, before: float) -> set[str]:
        """The campaigns that ended before then, and of which no job may be out."""
        out = select(trials.c.campaign_id).join(attempts).where(attempts.c.state != str(TrialState.DONE))
        over = (campaigns.c.state.not_in(ACTIVE), campaigns.c.updated_at < before, campaigns.c.id.not_in(out))
        with self._database.reading() as connection:
            return set(connection.scalars(select(campaigns.c.id).where(*over)))

    def ownerships(self, ids: Iterable[str]) -> dict[str, Ownership]:
        """Whose the campaigns are, by their ids; of those that there are."""
        with self._database.reading() as connection:
            owners = connection.execute(_OWNERSHIPS, {"ids": list(ids)})
            return {id: Ownership(owner, project) for id, owner, project in owners}

    def move_campaign(
        self, id: str, to: CampaignState, *, reason: str, now: float, seen: Campaign | None = None
    ) -> Campaign:
        """The campaign in its new state, or as it is where the request that asks has moved it before (`act_once`).

        seen: the campaign that this was decided on, with trials that have ended where `to` is final. Raises NotFound,
        IllegalMove by `CampaignState.may_become`, and Outdated where something else is so by now.
        """
        with self._database.writing() as connection:
            campaign = read_campaign(connection, id)
            if act_once(connection, id) is not None:
                return campaign
            if not campaign.state.may_become(to):
                raise IllegalMove(f"campaign {id}", campaign.state, to)
            _require_as_seen(connection, seen, closes=to.final)
            values = {"state": str(to), "reason": reason, "updated_at": now}
            if to is CampaignState.RUNNING:
                values["running_since"] = now
            update_campaign(connection, id, values)
            add_event(connection, id, now, f"campaign.{to}", {"state": str(to), "reason": reason})
            return read_campaign(connection, id)

    def add_elapsed(
        self, id: str, seconds: float, now: float, running: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        """Add to the time that the campaign was worked on, and keep how many seconds its running jobs have run, by
        their names; not worth an event. Raises NotFound."""
        with self._database.writing() as connection:
            for job_name, running_s in running.items():
                job = update(attempts).where(attempts.c.job_name == job_name, attempts.c.finished_at.is_(None))
                connection.execute(job.values(running_s=running_s))
            if not update_campaign(connection, id, {"elapsed_s": campaigns.c.elapsed_s + seconds, "updated_at": now}):
                raise NotFound(f"there is no campaign {id}")

    def end_search(
        self, id: str, reason: str, *, chance_left: float | None = None, now: float, seen: Campaign | None = None
    ) -> Campaign:
        """The campaign with its search ended for this reason; where it has ended already, the first reason stays.

        chance_left: as in `plan_trials`; seen: as in `move_campaign`. Raises NotFound, IllegalMove when the campaign is
        not RUNNING, and Outdated.
        """
        with self._database.writing() as connection:
            campaign = read_campaign(connection, id)
            if campaign.search_ended:
                return campaign
            require_running(connection, id, f"the search of campaign {id}", "under way", "ended")
            _require_as_seen(connection, seen, closes=False)
            values = {"search_ended": reason, "updated_at": now}
            update_campaign(connection, id, values if chance_left is None else {**values, "chance_left": chance_left})
            campaign = read_campaign(connection, id)
            add_event(connection, id, now, "search.ended", {"reason": reason, "chance_left": campaign.chance_left})
            return campaign

    def keep_lessons(self, id: str, lessons: Sequence[Lesson], *, now: float) -> None:
        """Keep what the campaign's search learns from; the same as before is nothing new. Raises NotFound."""
        with self._database.writing() as connection:
            if read_campaign(connection, id).lessons == tuple(lessons):
                return
            document = [asdict(lesson) for lesson in lessons]
            update_campaign(connection, id, {"lessons": document, "updated_at": now})
            add_event(connection, id, now, "campaign.learns", {"lessons": document})

    def events(
        self, campaign_id: str | None, *, after: int = 0, limit: int = 1000, reader: Rights = OPERATOR
    ) -> list[Event]:
        """The first events with ids above `after`, of one campaign or (None) of all that the reader may read, in the
        order of commits.

        No event ever appears with an id below one that was seen before.
        """
        query, of = (_AFTER, {}) if campaign_id is None else (_AFTER_OF, {"of": campaign_id})
        if readable := readable_by(reader):
            query = query.join(campaigns, campaigns.c.id == events.c.campaign_id).where(*readable)
        with self._database.reading() as connection:
            rows = connection.execute(query, {"after": after, "most": limit, **of})
            return [Event(**{**row._mapping, "data": row.data if isinstance(row.data, dict) else {}}) for row in rows]

    def newest_event(self, campaign_id: str | None = None, kinds: Collection[str] = ()) -> int:
        """The id of the newest event, of one campaign (while it stays, no trial has changed) or of all; 0 before the
        first. kinds: of these alone, if any; "campaign.created" is one of them. Raises NotFound."""
        query, of = (_NEWEST, {}) if campaign_id is None else (_NEWEST_OF, {"of": campaign_id})
        with self._database.reading() as connection:
            newest: int = connection.scalar(query.where(events.c.kind.in_(kinds)) if kinds else query, of) or 0
        if campaign_id is not None and not newest:
            raise NotFound(f"there is no campaign {campaign_id}")
        return newest


def readable_by(reader: Rights, table: Table = campaigns) -> tuple[ColumnElement[bool], ...]:
    """`Rights.reads` over rows of campaigns, or of another table with an owner and a project; nothing where it may read
    all."""
    if reader.reads_all:
        return ()
    shared = table.c.project.in_(sorted(reader.readable_projects))
    return (or_(and_(table.c.owner == reader.name, table.c.owner != ""), shared),)


def read_campaign(connection: Connection, id: str) -> Campaign:
    """Raises NotFound."""
    row = connection.execute(select(campaigns).where(campaigns.c.id == id)).one_or_none()
    if row is None:
        raise NotFound(f"there is no campaign {id}")
    return campaign_of(row)


def require_running(connection: Connection, campaign_id: str, subject: str, state: str, wanted: str) -> None:
    """Raises IllegalMove where the campaign is not RUNNING. subject: what cannot go from `state` to `wanted` then."""
    campaign = read_campaign(connection, campaign_id)
    if campaign.state is not CampaignState.RUNNING:
        raise IllegalMove(subject, state, wanted, f"the campaign is {campaign.state}, not running")


def _require_as_seen(connection: Connection, seen: Campaign | None, *, closes: bool) -> None:
    """As `CampaignRows.move_campaign`. Raises Outdated."""
    if seen is None:
        return
    campaign = read_campaign(connection, seen.id)
    same = all(getattr(campaign, name) == getattr(seen, name) for name in _DECIDED_ON)
    ours = select(trials.c.id).where(trials.c.campaign_id == seen.id)
    still_open = select(attempts.c.id).where(attempts.c.trial_id.in_(ours), attempts.c.state != str(TrialState.DONE))
    if not same or (closes and connection.scalar(still_open.limit(1)) is not None):
        raise Outdated(f"campaign {seen.id}", campaign.state, "what was decided", "it was changed since it was read")


def update_campaign(connection: Connection, id: str, values: Mapping[str, Any]) -> bool:
    """False where there is no such campaign."""
    return connection.execute(update(campaigns).where(campaigns.c.id == id).values(values)).rowcount == 1


def rows_of(table: Table, id: str) -> ColumnElement[bool] | None:
    """The rows of a table that hang on the campaign by foreign keys, over any number of tables; None for a table of
    other things."""
    if table is campaigns:
        return campaigns.c.id == id
    ways = []
    for key in table.foreign_keys:
        above = rows_of(key.column.table, id)
        if above is not None:
            ways.append(key.parent.in_(select(key.column).where(above)))
    return or_(*ways) if ways else None


def add_event(connection: Connection, campaign_id: str, now: float, kind: str, data: Mapping[str, object]) -> None:
    connection.execute(insert(events), event_row(campaign_id, now, kind, data))


def event_row(campaign_id: str, now: float, kind: str, data: Mapping[str, object]) -> dict[str, object]:
    return {"campaign_id": campaign_id, "at": now, "kind": kind, "data": dict(data)}
