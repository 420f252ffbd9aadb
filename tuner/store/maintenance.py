"""Upgrades, copies and checks of a whole database.

A check looks for damage, and for rows that cannot be in a database that only `Store` wrote: those that contradict each
other, and a counter that gives ids again.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, ColumnElement, Connection, Select, and_, exists, func, or_, select, text

from meshtune.runners.base import Cause
from meshtune.runners.job_files import opened
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.store import schema
from meshtune.tuner.store.access import read_tokens
from meshtune.tuner.store.database import Database, parse_url
from meshtune.tuner.store.errors import StoreError, StoreUnavailable
from meshtune.tuner.store.leases import lives
from meshtune.tuner.store.tables import attempts, campaigns, events, holders, measurements, steps, trials
from meshtune.tuner.store.trials import unreadable

_log = logging.getLogger(__name__)
BUSY_TIMEOUT_S = 30.0
# Of one kind of trouble, so many are named.
MAX_NAMED = 5
_FINAL = [str(state) for state in CampaignState if state.final]
_OUT = [str(TrialState.SUBMITTED), str(TrialState.RUNNING)]
_RETRYABLE = [str(verdict) for verdict in Verdict if verdict.retryable]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseDump:
    """How to copy a PostgreSQL database into a file, as one snapshot."""

    command: tuple[str, ...]
    # Reads such a file.
    check: tuple[str, ...]
    # Variables that the command needs besides; the password is there and nowhere else.
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    schema: str
    # Sentences, none where all is well.
    troubles: Sequence[str]
    # Jobs that were sent and have not ended, whose folders must be there: their campaigns and names.
    in_flight: Sequence[tuple[str, str]]
    # How many, by table.
    rows: Mapping[str, int]


def upgrade(url: str, *, copy: bool = True) -> tuple[str, str]:
    """As `upgrade_schema`, of the database at `url`."""
    with closing(Database(url).require_same()) as database:
        return upgrade_schema(database, copy=copy)


def upgrade_schema(database: Database, *, copy: bool = True) -> tuple[str, str]:
    """Bring the database to the newest schema; an empty one becomes a store. The schema before, empty for a database
    that held nothing, and after. copy: a SQLite file of an older schema is copied first.

    Raises StoreUnavailable for an older schema that a process works with: it would go on with one it does not know.
    """
    told = ""
    with database.upgrading() as connection, ExitStack() as alone:
        before = schema.version_of(connection)
        if schema.outdated(before):
            living = select(holders.c.name).where(lives(database.now(connection))).order_by(holders.c.name)
            if using := connection.scalars(living).all():
                words = f"{database.name} has the schema {before} and is in use by {', '.join(using)}"
                raise StoreUnavailable(f"{words}; stop it first (a killed one counts for some seconds)", transient=True)
            alone.enter_context(database.serving())
            if copy and database.file is not None:
                told = f"; {_copy_before(database.file, before)} is as it was"
        schema.upgrade(connection, database.name)
        schema.probe(connection)
        after = schema.version_of(connection)
    if schema.outdated(before):
        _log.warning("the schema of %s was %s and is %s now%s", database.name, before, after, told)
    return before, after


def _copy_before(file: Path, version: str) -> Path:
    """The copy, beside the file: going back to that version is restoring it."""
    target = file.with_name(f"{file.name}.schema-{version}")
    try:
        for left in file.parent.glob(f".{target.name}.*"):  # by one that was killed: nobody else is here
            left.unlink(missing_ok=True)
        with new_file(target, force=True) as partial:
            copy_sqlite(file, partial)
    except (StoreError, OSError) as error:
        advice = "make room, or copy it elsewhere (`meshtune db backup FILE`) and run `meshtune db upgrade --no-copy`"
        words = f"{file} is not upgraded, since no copy can be made before: {error}; {advice}"
        raise StoreUnavailable(words, transient=True) from error
    return target


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[Path]:
    """A name beside `path` to write to, which becomes `path` at the end; where the body raises, nothing is left.

    force: what is at `path` may be replaced. Raises StoreError for a file that is there, OSError.
    """
    if path.exists() and not force:
        raise StoreError(f"{path} exists already; --force replaces it")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    # Specs and digests of tokens are nobody else's business.
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        yield partial
        with opened(partial, os.O_RDONLY) as descriptor:
            os.fsync(descriptor)
        if force:
            os.replace(partial, path)
            return
        try:
            os.link(partial, path)
        except FileExistsError:
            raise StoreError(f"{path} exists already; --force replaces it") from None
        except OSError:  # a file system without hard links
            partial.rename(path)
    finally:
        for ending in ("", "-wal", "-shm", "-journal"):
            partial.with_name(partial.name + ending).unlink(missing_ok=True)


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a SQLite database into the empty file `target` as it is at one moment, while others write to it, and read
    the copy wholly. Raises StoreUnavailable; what is in `target` is worth nothing then."""
    try:
        with (
            closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)) as original,
            closing(sqlite3.connect(target, isolation_level=None)) as copy,
        ):
            original.backup(copy)
            # One file that needs no other beside it.
            copy.execute("PRAGMA journal_mode = DELETE")
            verdicts = [row[0] for row in copy.execute("PRAGMA integrity_check(5)")]
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailable(f"{source} cannot be copied to {target.parent}: {error}", transient=True) from error
    if verdicts != ["ok"]:
        raise StoreError(f"the copy of {source} is damaged: {'; '.join(verdicts)}")


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite database, None for PostgreSQL. Raises StoreUnavailable for a file that is not there, or not
    what it was."""
    with closing(Database(url)) as database:
        file = database.file
        if file is not None and not file.is_file():
            raise StoreUnavailable(f"there is no database {file}")
        database.require_same()
    return file


def dump_of(url: str, target: Path) -> DatabaseDump:
    """How to copy the PostgreSQL database at `url` into `target`, by PostgreSQL's own programs."""
    parsed = parse_url(url)
    query = dict(parsed.query)
    password = query.pop("password", None) or parsed.password
    # Not `set(password=None)`, which keeps it.
    named = URL.create("postgresql", parsed.username, None, parsed.host, parsed.port, parsed.database, query)
    url_without = named.render_as_string(hide_password=False)
    options = ("--format=custom", "--no-password")
    environment = {} if password is None else {"PGPASSWORD": str(password)}
    return DatabaseDump(
        command=("pg_dump", *options, f"--file={target}", f"--dbname={url_without}"),
        check=("pg_restore", "--list", str(target)),
        environment=environment,
    )


def check(url: str) -> Report:
    """Read the database at `url` wholly, in one snapshot; nothing is written and others may write meanwhile.

    Raises StoreErrors: among them for a schema that is not today's, which `upgrade` makes of an older one, and for a
    SQLite file that is not what it was.
    """
    with closing(Database(url).require_same()) as database, database.reading() as connection:
        version = schema.require_newest(connection, database.name)
        looks = (_damage, _contradictions, _lost_ids, _unreadable)
        troubles = [trouble for look in looks for trouble in look(connection)]
        tables = (campaigns, trials, attempts, measurements, events)
        rows = {table.name: connection.scalar(select(func.count()).select_from(table)) or 0 for table in tables}
        jobs = select(trials.c.campaign_id, attempts.c.job_name).join(attempts, attempts.c.trial_id == trials.c.id)
        out = connection.execute(jobs.where(attempts.c.state.in_(_OUT)).order_by(attempts.c.id))
        return Report(schema=version, troubles=troubles, in_flight=[(id, name) for id, name in out], rows=rows)


def _damage(connection: Connection) -> Iterator[str]:
    """What SQLite itself finds; PostgreSQL checks its keys with every write, and its pages with `pg_amcheck`."""
    if connection.dialect.name != "sqlite":
        return
    for (message,) in connection.exec_driver_sql(f"PRAGMA integrity_check({MAX_NAMED})"):
        if message != "ok":
            yield f"the file is damaged: {message}"
    for table, row, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(MAX_NAMED):
        yield f"row {row} of {table} refers to a row of {parent} that is not there"


def _contradictions(connection: Connection) -> Iterator[str]:
    for words, query in _RULES:
        names = [str(name) for name in connection.scalars(query.limit(MAX_NAMED + 1))]
        if names:
            more = " and more" if len(names) > MAX_NAMED else ""
            yield f"{words}: {', '.join(names[:MAX_NAMED])}{more}"


def _attempts_where(*conditions: ColumnElement[bool]) -> Select[tuple[str]]:
    return select(attempts.c.job_name).where(*conditions).order_by(attempts.c.id)


_measured = exists().where(measurements.c.attempt_id == attempts.c.id)
_later = attempts.alias()
_done = attempts.c.state == str(TrialState.DONE)
_ok = attempts.c.verdict == str(Verdict.OK)
_RULES: Sequence[tuple[str, Select[tuple[str]]]] = (
    ("attempts that are done without a verdict", _attempts_where(_done, attempts.c.verdict.is_(None))),
    ("attempts that have a verdict but are not done", _attempts_where(~_done, attempts.c.verdict.is_not(None))),
    ("attempts that are done without an end", _attempts_where(_done, attempts.c.finished_at.is_(None))),
    ("attempts that are ok without a measurement", _attempts_where(_ok, ~_measured)),
    (
        "attempts with a measurement that are not ok",
        _attempts_where(or_(~_ok, attempts.c.verdict.is_(None)), _measured),
    ),
    (
        "measurements without steps",
        _attempts_where(_measured, ~exists().where(and_(steps.c.attempt_id == attempts.c.id, ~steps.c.warmup))),
    ),
    (
        "attempts that were tried again though their verdict allows it not",
        _attempts_where(
            or_(attempts.c.verdict.not_in(_RETRYABLE), attempts.c.verdict.is_(None)),
            func.coalesce(attempts.c.cause, "") != str(Cause.QUEUE_LIMIT),
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
        "trials that are open though their campaigns are over",
        _attempts_where(~_done, campaigns.c.state.in_(_FINAL))
        .join(trials, trials.c.id == attempts.c.trial_id)
        .join(campaigns, campaigns.c.id == trials.c.campaign_id),
    ),
    (
        "campaigns that nothing tells of",
        select(campaigns.c.id)
        .where(~exists().where(and_(events.c.campaign_id == campaigns.c.id, events.c.kind == "campaign.created")))
        .order_by(campaigns.c.id),
    ),
)


def _unreadable(connection: Connection) -> Iterator[str]:
    ids = connection.scalars(select(campaigns.c.id).order_by(campaigns.c.created_at)).all()
    yield from filter(None, (unreadable(connection, id) for id in ids))
    wrong: list[str] = []
    read_tokens(connection, wrong)
    yield from wrong


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
