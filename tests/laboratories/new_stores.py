"""New SQLite databases get what the migrations made of this process's first one, which saves each a tenth of a second.

The migrations really run once per process, and everywhere in tests/store, which is about them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection

from meshtune.tuner.store import schema

_really_upgrade = schema.upgrade
_statements: list[str] = []


@contextmanager
def migrations_run_once() -> Iterator[None]:
    """While it holds, a database that has tables, or is none of SQLite, is upgraded as ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "upgrade", _upgrade)
        yield


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
