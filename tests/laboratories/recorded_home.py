"""A home as `record_database` wrote it: the rows of its database and the files of its open jobs, a line of JSON each.

    url = "sqlite:///" + str(home.root / "meshtune.db"); load(url, home.root)

The database is of schema 0100 then, whatever the newest one is: rows go in by the names that their columns had.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from alembic import command
from sqlalchemy import JSON, Boolean, Connection, inspect, text

from meshtune.tuner.store import schema
from meshtune.tuner.store.database import Database

RECORDED = Path(__file__).parents[1] / "store" / "schema_0100"
# Of the files in a home those that open campaigns need.
KEPT = ("campaigns/asked-*/*/*", "campaigns/resting-*/*/*", "external/*/*", "simulated/over/resting-*")
# Columns that follow from other rows, so that a version may compute them anew.
COMPUTED = {"median_step_time_s", "step_time_low_s", "step_time_high_s", "max_memory_bytes", "max_held_bytes"}
# What stands for the folder of the home.
PLACE = "/recorded"
# Tables whose ids PostgreSQL counts, and SQLite finds.
COUNTED = ("trials", "attempts")


def dump(home: Path, words: Mapping[str, str]) -> None:
    """words: what is written in place of others that are this machine's."""
    lines: list[Any] = []
    with closing(sqlite3.connect(home / "meshtune.db")) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            rows = connection.execute(f"SELECT * FROM {name} ORDER BY rowid")
            lines.append({"table": name, "columns": [column[0] for column in rows.description]})
            lines.extend([_plain(value) for value in row] for row in rows)
    for path in sorted(path for pattern in KEPT for path in home.glob(pattern)):
        lines.append({"file": str(path.relative_to(home)), "text": path.read_text()})
    written = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    for word, other in words.items():
        written = written.replace(word, other)
    (RECORDED / "home.jsonl").write_text(written)


def load(url: str, home: Path) -> None:
    """Make the home's files, and the rows of the empty database at `url`."""
    with closing(Database(url)) as database, database.upgrading() as connection:
        command.upgrade(schema._config(connection), "0100")
        tables = recorded_rows()
        counters = {row["name"]: row["seq"] for row in tables.pop("sqlite_sequence")}
        for table in COUNTED:
            counters[table] = max(row["id"] for row in tables[table])
        for table, rows in tables.items():
            if table != schema.VERSION_TABLE:
                _insert(connection, table, rows)
        for table, given in counters.items():
            _count_on(connection, table, given)
    for line in _lines():
        if isinstance(line, dict) and "file" in line:
            path = home / line["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(line["text"].replace(PLACE, str(home.parent)))


def recorded_rows() -> dict[str, list[dict[str, Any]]]:
    """By table, as SQLite has them; `sqlite_sequence` among the tables."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in _lines():
        if isinstance(line, dict):
            name, columns = line.get("table", ""), line.get("columns", ())
            rows.setdefault(name, [])
        else:
            rows[name].append(dict(zip(columns, line, strict=True)))
    del rows[""]
    return rows


def rows(url: str) -> dict[str, list[dict[str, Any]]]:
    """All rows by table, in the order of their keys."""
    found: dict[str, list[dict[str, Any]]] = {}
    with closing(Database(url)) as database, database.reading() as connection:
        look = inspect(connection)
        for name in set(look.get_table_names()) - {schema.VERSION_TABLE}:
            keys = ", ".join(look.get_pk_constraint(name)["constrained_columns"])
            answer = connection.execute(text(f"SELECT * FROM {name} ORDER BY {keys}"))
            found[name] = [dict(row) for row in answer.mappings()]
    return found


def require_kept(before: dict[str, list[dict[str, Any]]], url: str) -> None:
    """Every value that there was is there, but of columns that are gone or COMPUTED."""
    after = rows(url)
    for name, old_rows in before.items():
        if name == "probes":  # counts looks at the database
            continue
        assert len(after[name]) == len(old_rows), name
        kept = (old_rows[0].keys() & after[name][0].keys()) - COMPUTED if old_rows else ()
        for was, is_now in zip(old_rows, after[name], strict=True):
            assert {key: is_now[key] for key in kept} == {key: was[key] for key in kept}


def _lines() -> Iterator[Any]:
    with (RECORDED / "home.jsonl").open() as lines:
        yield from map(json.loads, lines)


def _insert(connection: Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    kinds = {column["name"]: column["type"] for column in inspect(connection).get_columns(table)}
    # As text: JSON stays as it was written.
    statement = text(
        f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES ("
        + ", ".join(f"CAST(:{name} AS JSON)" if _is_json(connection, kinds[name]) else f":{name}" for name in rows[0])
        + ")"
    )
    for row in rows:
        connection.execute(statement, {name: _value(value, kinds[name]) for name, value in row.items()})


def _is_json(connection: Connection, kind: Any) -> bool:
    return isinstance(kind, JSON) and connection.dialect.name != "sqlite"


def _value(value: Any, kind: Any) -> Any:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return bool(value) if isinstance(kind, Boolean) else value


def _count_on(connection: Connection, table: str, given: int) -> None:
    """Let ids go on after the last one that was given."""
    if connection.dialect.name == "sqlite":
        statement = f"UPDATE sqlite_sequence SET seq = {given} WHERE name = '{table}'"
    else:
        statement = f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), {given})"
    connection.execute(text(statement))


def _plain(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
