"""One database, SQLite or PostgreSQL, with one writer at a time and any number of readers beside it.

One writer over all threads and processes (a lock within the process, BEGIN IMMEDIATE or an advisory lock between
them): rows that a transaction has read stay as they are until it commits, and events get their ids in the order of
commits, so a reader that asks for "all after the last one" misses none. Readers see one snapshot for all their queries.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic_core import from_json  # noqa: TID251  # of our own columns
from sqlalchemy import URL, Connection, Double, Engine, cast, create_engine, event, func, make_url, select
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import StaticPool

from meshtune.runners.extras import MissingExtra, require_extra
from meshtune.runners.job_files import opened
from meshtune.search_spaces.checks import raising
from meshtune.tuner.store import mark
from meshtune.tuner.store.errors import StoreError, StoreUnavailable, translating

# How long a writer waits for another process before the database counts as locked.
LOCK_TIMEOUT_S = 10
# How long PostgreSQL waits for the next statement of the one writer: a process that was stopped in the middle of its
# transaction must not keep all others from writing. Less than a lease, so that those can renew theirs.
IDLE_WRITER_TIMEOUT_S = 5
# The same of a reader: a process that was stopped while it reads would keep an upgrade from the tables for ever.
IDLE_READER_TIMEOUT_S = 30
# Any number, the same for ever: it names our lock within one PostgreSQL database ("mesh" as bytes).
WRITER_LOCK = 0x6D657368
# Mode of a SQLite file that is made: it holds specs, which may name commands, and digests of tokens.
PRIVATE = 0o600
# A server whose machine is gone says nothing: TCP alone would wait for it for a quarter of an hour, or for ever.
_NETWORK = {
    "connect_timeout": "10",
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "15000",
}
_FORMS = "use sqlite:///file.db or postgresql://user:password@host/database"


def _from_json(text: str | bytes) -> Any:
    try:
        return from_json(text)  # five times as fast, and knows no lone surrogates
    except ValueError:
        with suppress(ValueError):
            return json.loads(text)  # noqa: TID251
    return None  # what is no JSON is one row's trouble, not that of all that are read with it


# PostgreSQL knows no NaN in JSON, so no database gets one. hide_parameters: error texts and logs get no rows.
_ENGINE: dict[str, Any] = {
    "json_serializer": partial(json.dumps, allow_nan=False),
    "json_deserializer": _from_json,
    "hide_parameters": True,
}


class Database:
    """Connections for reading and for writing.

    name: how messages call it, without a password. file: SQLite's file; None on PostgreSQL and in memory.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.time, *, file_mode: int = PRIVATE) -> None:
        """Raises StoreUnavailable for a URL that names no database of ours. Connects on first use.

        clock: the machine's, which is the clock of a SQLite database; seconds since the epoch. file_mode: of a SQLite
        file that is made.
        """
        parsed = parse_url(url)
        self._postgres = parsed.get_backend_name() == "postgresql"
        in_memory = not self._postgres and parsed.database in (None, "", ":memory:")
        self.name = _name(parsed)
        self.file: Path | None = None
        if not self._postgres and not in_memory:
            path, uri = parsed.database or "", (parsed.database or "").startswith("file:")
            self.file = Path(path.removeprefix("file:").partition("?")[0] if uri else path).resolve()
        self._clock, self._file_mode = clock, file_mode
        self._guard: ContextVar[Callable[[Connection], None] | None] = ContextVar("guard", default=None)
        self._lock = threading.Lock()
        # In memory, all threads share the one connection that holds the data.
        self._read_guard: AbstractContextManager[Any] = self._lock if in_memory else nullcontext()
        with translating(self.name):
            self._engine = _postgres_engine(parsed) if self._postgres else _sqlite_engine(parsed, self.file, file_mode)
        self._readers: Engine = self._engine
        if self._postgres:
            self._readers = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection whose queries all see the same snapshot. Raises StoreErrors only."""
        with translating(self.name), self._read_guard, self._readers.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """The one transaction that writes now: committed at the end, rolled back where the body raises.

        Raises StoreErrors only, StoreUnavailable(transient=True) where another process keeps the writer's place.
        """
        with self._writing(foreign_keys=True, idle_timeout_s=IDLE_WRITER_TIMEOUT_S) as connection:
            if (guard := self._guard.get()) is not None:
                guard(connection)
            yield connection

    @contextmanager
    def guarding(self, guard: Callable[[Connection], None]) -> Iterator[None]:
        """Call `guard` first in each transaction that this thread writes meanwhile; it raises to refuse it."""
        token = self._guard.set(guard)
        try:
            yield
        finally:
            self._guard.reset(token)

    @contextmanager
    def upgrading(self) -> Iterator[Connection]:
        """As `writing`, for changes of the schema, which may think for long between statements.

        SQLite changes a table by copying it and dropping the old one, which rows that refer to it would forbid; so
        all rows together are checked against their keys, at the end. Raises StoreError where one refers to nothing.
        """
        with self._writing(foreign_keys=False, idle_timeout_s=0) as connection:
            yield connection
            if not self._postgres:
                if connection.exec_driver_sql("PRAGMA foreign_key_check").first() is not None:
                    raise StoreError(f"{self.name} holds rows that refer to others which are not there")
                mark.stamp(connection.connection.driver_connection)

    def now(self, connection: Connection) -> float:
        """Seconds since the epoch by the one clock that all processes of this database share."""
        if not self._postgres:
            return self._clock()
        # Not now(), which is the transaction's start: it may have waited for its place since.
        now: float = connection.execute(
            select(cast(func.extract("epoch", func.clock_timestamp()), Double))
        ).scalar_one()
        return now

    def ahead_s(self, now: float) -> float:
        """How many seconds the clock that says it is `now` is ahead of this machine's."""
        return now - self._clock()

    def require_same(self) -> Self:
        """Return where a SQLite file is what it was when we last wrote to it. Raises StoreUnavailable."""
        if self.file is not None:
            mark.require_same(self.file)
        return self

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Be the one process that serves this SQLite file meanwhile, by a lock that the kernel takes back from the
        dead. Nothing to claim in memory and on PostgreSQL, where services share the campaigns by leases.

        Raises StoreUnavailable that names the process which has it.
        """
        if self.file is None:
            yield
            return
        path = self.file.with_name(f"{self.file.name}.serving")
        try:
            _make_private(path, self._file_mode)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be opened: {error.strerror}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
                raise StoreUnavailable(
                    f"{self.name} is served by process {holder} already, and SQLite takes one service; stop that one, "
                    "or use a PostgreSQL database, which several services may share"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            mark.require_sound(self.file)
            yield
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close all connections; the database must not be used afterwards."""
        self._engine.dispose()

    @contextmanager
    def _writing(self, *, foreign_keys: bool, idle_timeout_s: int) -> Iterator[Connection]:
        """idle_timeout_s: see IDLE_WRITER_TIMEOUT_S; 0 for none."""
        options = {"immediate": True, "foreign_keys": foreign_keys}
        with (
            translating(self.name),
            self._lock,
            self._engine.connect().execution_options(**options) as connection,
        ):
            written: mark.Mark | None = None
            with connection.begin():
                if self._postgres:
                    limits = {"lock_timeout": LOCK_TIMEOUT_S, "idle_in_transaction_session_timeout": idle_timeout_s}
                    connection.execute(select(*(func.set_config(name, f"{s}s", True) for name, s in limits.items())))
                    connection.execute(select(func.pg_advisory_xact_lock(WRITER_LOCK)))
                yield connection
                if self.file is not None:
                    with suppress(sqlite3.OperationalError):  # no tables yet
                        written = mark.mark_in(connection.connection.driver_connection)
            if self.file is not None and written is not None:
                mark.keep(self.file, written, self._file_mode)


def parse_url(url: str) -> URL:
    """The parts of a database URL, with our driver. Raises StoreUnavailable, whose message repeats none of it."""
    # No message repeats the text, and no cause is chained: a misplaced character makes the password part of anything.
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StoreUnavailable(f"the database URL cannot be read; {_FORMS}") from None
    if "@" in (parsed.host or ""):
        raise StoreUnavailable("the database URL holds more than one @; write %40 for one that is part of the password")
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        with raising(StoreUnavailable, "", MissingExtra):
            require_extra("postgres", "a PostgreSQL database")
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise StoreUnavailable(f"no support for {parsed.drivername} databases; {_FORMS}")
    if parsed.host:
        raise StoreUnavailable(
            f"the database URL names the host {parsed.host}, but SQLite is a file; "
            "write sqlite:///relative.db or sqlite:////absolute.db"
        )
    return parsed


def _name(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return f"the SQLite database {url.database or 'in memory'}"
    port = f":{url.port}" if url.port else ""
    place = f" on {url.host}{port}" if url.host else ""
    return f"the PostgreSQL database {url.database or ''}{place}"


def _postgres_engine(url: URL) -> Engine:
    url = url.update_query_dict({name: value for name, value in _NETWORK.items() if name not in url.query})
    # pre_ping: a restarted server costs nobody an error.
    engine = create_engine(url, pool_pre_ping=True, **_ENGINE)
    # Many rows as one statement. The driver would send as many statements, one to the server until the last of them has
    # come: for the rest of a process that was stopped in between it waits for ever, whatever the idle time-out says.
    engine.dialect.use_insertmanyvalues_wo_returning = True
    event.listen(engine, "connect", _set_up_postgres)
    return engine


def _set_up_postgres(connection: Any, _record: object) -> None:
    # The default is for disks that turn: with it a page of one campaign reads the attempts of all (of 62,000 in 42 ms,
    # against 3 ms by the index). Not in the URL's options, which poolers refuse.
    connection.execute("SET random_page_cost = 1.1")
    connection.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_READER_TIMEOUT_S}s'")
    connection.commit()


def _sqlite_engine(url: URL, file: Path | None, file_mode: int) -> Engine:
    """file: None for a database in memory."""
    in_memory, by_uri = file is None, (url.database or "").startswith("file:")
    if file is not None and not by_uri and not file.parent.is_dir():
        raise StoreUnavailable(f"{_name(url)} cannot be opened: there is no folder {file.parent}")
    if "timeout" not in url.query:
        url = url.update_query_dict({"timeout": str(LOCK_TIMEOUT_S)})
    pool: dict[str, Any] = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}} if in_memory else {}
    engine = create_engine(url, **_ENGINE, **pool)
    if file is not None and not by_uri:
        make_private = partial(_make_private, file, file_mode)
        event.listen(engine, "do_connect", lambda *_: make_private())
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _make_private(file: Path, mode: int) -> None:
    """Make the file where it is missing: SQLite would let everybody read it. Its -wal and -shm get the same mode."""
    # Where that fails it is there, or who opens it is told why it cannot be.
    with suppress(OSError), opened(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE) as descriptor:
        os.fchmod(descriptor, mode)


def _set_up_sqlite(connection: Any, _record: object) -> None:
    """Let readers go on while one writes. The default synchronous = FULL stays: a commit outlives a power cut."""
    # The driver would begin transactions by itself, deferred and not before DDL; _begin_sqlite does it.
    connection.isolation_level = None
    # Only the first connection to a new file changes anything. Others that come meanwhile may be told SQLITE_BUSY
    # without the wait that the time-out promises, so they ask again.
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not busy or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    # Within a transaction it is ignored. Not a statement of ours, so not by SQLAlchemy.
    driver: Any = connection.connection.driver_connection
    driver.execute(f"PRAGMA foreign_keys = {'ON' if options.get('foreign_keys', True) else 'OFF'}")
    # A deferred transaction that reads first cannot wait for a lock when it writes: it fails with SQLITE_BUSY at once.
    immediate = options.get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
