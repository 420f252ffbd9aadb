"""New SQLite databases get what the migrations made of this process's first one, which saves each a tenth of a second.

The migrations really run once per process, and everywhere in tests/store, which is about them.
Databases in memory share what SQLAlchemy made of their statements, by attributes that are its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL

from meshtune.tuner.store import database, schema

_really_upgrade = schema.upgrade
_really_make = database._sqlite_engine
_statements: list[str] = []
_engines: list[Engine] = []


@contextmanager
def migrations_run_once() -> Iterator[None]:
    """While it holds, a database that has tables, or is none of SQLite, is upgraded as ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "upgrade", _upgrade)
        patch.setattr(database, "_sqlite_engine", _sqlite_engine)
        yield


def _sqlite_engine(url: URL, file: Path | None, file_mode: int) -> Engine:
    engine = _really_make(url, file, file_mode)
    if file is None:
        if not _engines:
            _engines.append(engine)
        engine.dialect = engine.pool._dialect = _engines[0].dialect
        engine._compiled_cache = _engines[0]._compiled_cache
    return engine


def _upgrade(connection: Connection, database: str) -> None:
    new = connection.dialect.name == "sqlite" and not _tables(connection)
    if new and _statements:
        for statement in _statements:
            connection.exec_driver_sql(statement)
        return
    _really_upgrade(connection, database)
    if new:
        dump = connection.connection.dbapi_connection.iterdump()
        _statements.extend(line for line in dump if line not in ("BEGIN TRANSACTION;", "COMMIT;"))


def _tables(connection: Connection) -> int:
    return connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one()
