"""What keeps a database well: which schema it has, who uses it just now, and a copy of it while it is written to."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, Connection, inspect, select

from meshtune.tuner.store import schema
from meshtune.tuner.store.database import Database, parse_url
from meshtune.tuner.store.errors import StoreError, StoreUnavailable
from meshtune.tuner.store.serving import claim_database
from meshtune.tuner.store.tables import holders

BUSY_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgraded:
    """The schema before and after; before is empty for a database that held nothing."""

    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """The command that copies a PostgreSQL database into a file, as one snapshot, and the one that reads such a file.
    environment: what the first needs besides; the password is there and nowhere else."""

    command: tuple[str, ...]
    check: tuple[str, ...]
    environment: Mapping[str, str]


def upgrade(url: str) -> Upgraded:
    """Bring a database that nobody uses to the newest schema; an empty one becomes a store.

    Raises StoreUnavailable where a process serves or drives campaigns on it: one of an older version would go on with
    a schema that it does not know.
    """
    with closing(Database(url)) as database, claim_database(database):
        with database.reading() as connection:
            using = _using(connection, database.now(connection))
        if using:
            raise StoreUnavailable(
                f"{database.name} is in use by {', '.join(using)}; stop what works on it first", transient=True
            )
        with database.upgrading() as connection:
            before = schema.version_of(connection)
            schema.upgrade(connection, database.name)
            return Upgraded(before=before, after=schema.version_of(connection))


def _using(connection: Connection, now: float) -> list[str]:
    if not inspect(connection).has_table(holders.name):
        return []
    return list(connection.scalars(select(holders.c.name).where(holders.c.expires_at > now).order_by(holders.c.name)))


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
        descriptor = os.open(partial, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if force:
            os.replace(partial, path)
        else:
            _name_once(partial, path)
    finally:
        for ending in ("", "-wal", "-shm", "-journal"):
            partial.with_name(partial.name + ending).unlink(missing_ok=True)


def _name_once(partial: Path, path: Path) -> None:
    try:
        os.link(partial, path)
    except FileExistsError:
        raise StoreError(f"{path} exists already; --force replaces it") from None
    except OSError:  # a file system without hard links
        partial.rename(path)


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
            found = [row[0] for row in copy.execute("PRAGMA integrity_check(5)")]
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailable(f"{source} cannot be copied to {target.parent}: {error}", transient=True) from error
    if found != ["ok"]:
        raise StoreError(f"the copy of {source} is damaged: {'; '.join(found)}")


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite database, None for PostgreSQL. Raises StoreUnavailable for a file that is not there."""
    with closing(Database(url)) as database:
        file = database.file
    if file is not None and not file.is_file():
        raise StoreUnavailable(f"there is no database {file}", transient=False)
    return file


def dump_of(url: str, target: Path) -> Dump:
    """How to copy the PostgreSQL database at `url` into `target`, by PostgreSQL's own programs."""
    parsed = parse_url(url)
    query = dict(parsed.query)
    password = query.pop("password", None) or parsed.password
    # Not `set(password=None)`, which keeps it.
    named = URL.create("postgresql", parsed.username, None, parsed.host, parsed.port, parsed.database, query)
    url_without = named.render_as_string(hide_password=False)
    options = ("--format=custom", "--no-password")
    environment = {} if password is None else {"PGPASSWORD": str(password)}
    return Dump(
        command=("pg_dump", *options, f"--file={target}", f"--dbname={url_without}"),
        check=("pg_restore", "--list", str(target)),
        environment=environment,
    )
