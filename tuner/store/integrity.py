"""Looks for what cannot be in a database that only `Store` wrote: damage, rows that contradict each other, lost ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, func, or_, select, text

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.store import schema
from meshtune.tuner.store.database import Database
from meshtune.tuner.store.tables import attempts, campaigns, events, measurements, steps, trials

# Of one kind of trouble, so many are named.
MOST_NAMED = 5
_FINAL = [str(state) for state in CampaignState if state.final]
_OUT = [str(TrialState.SUBMITTED), str(TrialState.RUNNING)]
_RETRYABLE = [str(verdict) for verdict in Verdict if verdict.retryable]


@dataclass(frozen=True, slots=True)
class Flight:
    """A job that was sent and has not ended, by its campaign and its name."""

    campaign_id: str
    job_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """troubles: sentences, none where all is well. in_flight: jobs whose folders must be there. rows: by table."""

    schema: str
    troubles: Sequence[str]
    in_flight: Sequence[Flight]
    rows: Mapping[str, int]


def check(url: str) -> Report:
    """Read the database at `url` wholly, in one snapshot; nothing is written and others may write meanwhile.

    Raises StoreErrors: among them for a schema that is not today's, which `upgrade` makes of an older one.
    """
    with closing(Database(url)) as database, database.reading() as connection:
        version = schema.require_newest(connection, database.name)
        troubles = [*_damage(connection), *_contradictions(connection), *_lost_ids(connection)]
        rows = {table.name: connection.scalar(select(func.count()).select_from(table)) or 0 for table in _COUNTED}
        return Report(schema=version, troubles=troubles, in_flight=_in_flight(connection), rows=rows)


_COUNTED = (campaigns, trials, attempts, measurements, events)


def _damage(connection: Connection) -> Iterator[str]:
    """What SQLite itself finds; PostgreSQL checks its keys with every write, and its pages with `pg_amcheck`."""
    if connection.dialect.name != "sqlite":
        return
    for (message,) in connection.exec_driver_sql(f"PRAGMA integrity_check({MOST_NAMED})"):
        if message != "ok":
            yield f"the file is damaged: {message}"
    for table, row, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(MOST_NAMED):
        yield f"row {row} of {table} refers to a row of {parent} that is not there"


def _contradictions(connection: Connection) -> Iterator[str]:
    for words, query in _RULES:
        found = [str(name) for name in connection.scalars(query.limit(MOST_NAMED + 1))]
        if found:
            more = " and more" if len(found) > MOST_NAMED else ""
            yield f"{words}: {', '.join(found[:MOST_NAMED])}{more}"


def _attempts_where(*conditions: ColumnElement[bool]) -> Select[tuple[str]]:
    return select(attempts.c.job_name).where(*conditions).order_by(attempts.c.id)


def _measured() -> ColumnElement[bool]:
    return exists().where(measurements.c.attempt_id == attempts.c.id)


_later = attempts.alias()
_done = attempts.c.state == str(TrialState.DONE)
_ok = attempts.c.verdict == str(Verdict.OK)
_RULES: Sequence[tuple[str, Select[tuple[str]]]] = (
    ("attempts that are done without a verdict", _attempts_where(_done, attempts.c.verdict.is_(None))),
    ("attempts that have a verdict but are not done", _attempts_where(~_done, attempts.c.verdict.is_not(None))),
    ("attempts that are done without an end", _attempts_where(_done, attempts.c.finished_at.is_(None))),
    ("attempts that are ok without a measurement", _attempts_where(_ok, ~_measured())),
    (
        "attempts with a measurement that are not ok",
        _attempts_where(or_(~_ok, attempts.c.verdict.is_(None)), _measured()),
    ),
    (
        "measurements without steps",
        _attempts_where(_measured(), ~exists().where(and_(steps.c.attempt_id == attempts.c.id, ~steps.c.warmup))),
    ),
    (
        "attempts that were tried again though their verdict allows it not",
        _attempts_where(
            or_(attempts.c.verdict.not_in(_RETRYABLE), attempts.c.verdict.is_(None)),
            exists().where(and_(_later.c.trial_id == attempts.c.trial_id, _later.c.number > attempts.c.number)),
        ),
    ),
    (
        "campaigns whose trials are not numbered 0, 1, 2 ...",
        select(trials.c.campaign_id)
        .group_by(trials.c.campaign_id)
        .having(or_(func.min(trials.c.number) != 0, func.max(trials.c.number) != func.count() - 1))
        .order_by(trials.c.campaign_id),
    ),
    (
        "trials (of campaign) without an attempt",
        select(trials.c.campaign_id)
        .where(~exists().where(attempts.c.trial_id == trials.c.id))
        .order_by(trials.c.campaign_id),
    ),
    (
        "campaigns with trials whose attempts are not numbered 1, 2, 3 ...",
        select(trials.c.campaign_id)
        .join(attempts, attempts.c.trial_id == trials.c.id)
        .group_by(trials.c.campaign_id, trials.c.id)
        .having(or_(func.min(attempts.c.number) != 1, func.max(attempts.c.number) != func.count()))
        .order_by(trials.c.campaign_id),
    ),
    (
        "campaigns that are over while jobs of theirs run",
        select(campaigns.c.id)
        .join(trials, trials.c.campaign_id == campaigns.c.id)
        .join(attempts, attempts.c.trial_id == trials.c.id)
        .where(campaigns.c.state.in_(_FINAL), attempts.c.state.in_(_OUT))
        .distinct()
        .order_by(campaigns.c.id),
    ),
    (
        "campaigns that nothing tells of",
        select(campaigns.c.id)
        .where(~exists().where(and_(events.c.campaign_id == campaigns.c.id, events.c.kind == "campaign.created")))
        .order_by(campaigns.c.id),
    ),
)


def _lost_ids(connection: Connection) -> Iterator[str]:
    """A counter that is behind its rows gives ids again: whoever follows the events would miss the new ones."""
    newest = connection.scalar(select(func.max(events.c.id))) or 0
    if connection.dialect.name == "sqlite":
        given = connection.scalar(text("SELECT seq FROM sqlite_sequence WHERE name = 'events'")) or 0
    else:
        sequence = connection.scalar(text("SELECT pg_get_serial_sequence('events', 'id')"))
        given = connection.scalar(text(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}")) or 0
    if given < newest:
        yield f"the next event would get the id {given + 1}, but the newest has {newest} already"


def _in_flight(connection: Connection) -> list[Flight]:
    query = (
        select(trials.c.campaign_id, attempts.c.job_name)
        .join(attempts, attempts.c.trial_id == trials.c.id)
        .where(attempts.c.state.in_(_OUT))
        .order_by(attempts.c.id)
    )
    return [Flight(campaign_id, job_name) for campaign_id, job_name in connection.execute(query)]
