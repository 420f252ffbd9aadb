"""Databases of older schemas, with data: upgrades keep every row, and end whole or not at all.

The data is what real campaigns of schema 0100 left (`recorded_home`). All tests hold for any number of later versions;
`later` adds two, so that there is always something to upgrade to.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from contextlib import closing
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from recorded_home import load, recorded_rows, require_kept, rows
from sqlalchemy import Connection, create_engine, inspect, text

from meshtune.tuner.store import Store, StoreError, StoreUnavailable, maintenance, schema, tables
from meshtune.tuner.store.database import Database


def described(connection: Connection) -> dict[str, Any]:
    """All tables but that of the version, without the order of columns, and without defaults, which fill old rows."""
    look = inspect(connection)
    found: dict[str, Any] = {}
    for name in sorted(set(look.get_table_names()) - {schema.VERSION_TABLE}):
        made = text(f"SELECT sql FROM sqlite_master WHERE name = '{name}'")
        counts = is_sqlite(connection) and "AUTOINCREMENT" in connection.execute(made).scalar_one()
        found[name] = {
            "columns": {each["name"]: (str(each["type"]), each["nullable"]) for each in look.get_columns(name)},
            "counts on": counts,
            "key": look.get_pk_constraint(name),
            "refers to": sorted(look.get_foreign_keys(name), key=str),
            "unique": sorted(look.get_unique_constraints(name), key=str),
            "indexes": sorted(look.get_indexes(name), key=str),
            "checks": sorted(look.get_check_constraints(name), key=str),
        }
    return found


def is_sqlite(connection: Connection) -> bool:
    return connection.dialect.name == "sqlite"


def upgraded(url: str, version: str) -> None:
    """To that version alone."""
    with closing(Database(url)) as database, database.upgrading() as connection:
        command.upgrade(schema._config(connection), version)


# By database: what SQLAlchemy sees of it, so that any server of PostgreSQL says the same.
FROZEN = {
    "sqlite": "b834332f56d882b3febbdb870ffa255d92be072d9df1b752fc0663345d4dabc9",
    "postgresql": "eb20359d56ae9c9a05dbf695adc63aaed27e45adc77d604e640957e89445dda8",
}


def test_schema_0100_is_what_it_was_for_ever(shared_url):
    upgraded(shared_url, "0100")
    with closing(Database(shared_url)) as database, database.reading() as connection:
        look = inspect(connection)
        found = described(connection)
        for name, table in found.items():
            table["columns"] = [
                (each["name"], str(each["type"]), each["nullable"], each["default"]) for each in look.get_columns(name)
            ]
        kind = connection.dialect.name
    text_ = re.sub(r"\s+", " ", json.dumps(found, sort_keys=True, default=str))
    assert hashlib.sha256(text_.encode()).hexdigest() == FROZEN[kind], "add a version; 0100 is out"


def test_the_migrations_make_what_the_tables_would(shared_url):
    with Store.open(shared_url) as store, store._database.reading() as connection:
        migrated = described(connection)
    with closing(Database(shared_url)) as database:
        with database.upgrading() as connection:
            tables.metadata.drop_all(connection)
            tables.metadata.create_all(connection)
        with database.reading() as connection:
            assert described(connection) == migrated


def test_versions_are_one_chain_in_the_order_of_their_numbers():
    with closing(Database("sqlite://")) as database, database.upgrading() as connection:
        script = ScriptDirectory.from_config(schema._config(connection))
        chain = [each.revision for each in script.walk_revisions()]
    assert chain[::-1] == schema._known()
    assert schema._known()[0] == "0100"


def test_the_recorded_rows_fill_every_table_and_column():
    """Of those that schema 0100 has; the columns named here nothing that ran on one machine could fill."""
    unfilled = {
        (table, column)
        for table, filled in recorded_rows().items()
        for column in filled[0]
        if all(row[column] in (None, "", "{}", "[]") for row in filled)
    }
    assert unfilled == {("calibrations", "program"), ("calibrations", "owner"), ("calibrations", "project")}


def test_an_old_database_is_brought_to_the_newest_schema_with_its_rows(old, later, make):
    later()
    before = rows(old)
    with Store.open(old) as store, store._database.reading() as connection:
        assert schema.version_of(connection) == "8999"
        assert connection.scalar(text("SELECT count(*) FROM trials WHERE note = 'none'")) == len(before["trials"])
    require_kept(before, old)
    assert maintenance.check(old).troubles == []
    given = next(row["seq"] for row in recorded_rows()["sqlite_sequence"] if row["name"] == "events")
    with Store.open(old) as store:  # again, by whoever comes next
        make.running(store, "new")
        assert min(event.id for event in store.events("new")) == given + 1


def test_every_version_is_upgraded_from_with_its_rows(shared_url, home, later):
    later()
    load(shared_url, home.root)
    for version in schema._known()[1:]:
        before = rows(shared_url)
        upgraded(shared_url, version)
        require_kept(before, shared_url)
    with Store.open(shared_url):
        pass


def test_an_upgrade_that_fails_leaves_all_as_it_was(old, later):
    folder = later()
    before = rows(old)
    with (folder / "versions" / "v8999_fills.py").open("a") as file:
        file.write("    op.execute('SELECT 1 FROM nowhere')\n")
    with pytest.raises(StoreError, match="nowhere"):
        Store.open(old)
    assert rows(old) == before


def test_an_old_database_in_use_is_not_upgraded(old, later):
    with Store.open(old) as store:
        store.leases.renew("host:1:abc", 60.0, serves=True)
        before = rows(old)
        later()
        for upgrade in (Store.open, maintenance.upgrade):
            with pytest.raises(StoreUnavailable, match="is in use by host:1:abc; stop it first") as caught:
                upgrade(old)
            assert caught.value.transient
        assert rows(old) == before
        store.leases.leave("host:1:abc")
    before, after = maintenance.upgrade(old)
    assert (before < after, after) == (True, "8999")


def test_a_process_that_slept_while_the_schema_was_upgraded_drives_nothing_any_more(old, later):
    with Store.open(old) as asleep:
        asleep.leases.renew("host:1:abc", -1.0, serves=True)
        later()
        maintenance.upgrade(old)
        newer = schema._MIGRATIONS
        schema._MIGRATIONS = newer.with_name("older")
        shutil.copytree(newer, schema._MIGRATIONS, ignore=shutil.ignore_patterns("v899*"))
        with pytest.raises(StoreUnavailable, match="has the schema 8999, and this meshtune knows"):
            asleep.leases.renew("host:1:abc", 60.0, serves=True)


def test_a_database_of_a_newer_meshtune_is_refused_untouched(old, later):
    known = schema._MIGRATIONS
    later()
    maintenance.upgrade(old)
    before = rows(old)
    schema._MIGRATIONS = known
    newer = r"newer meshtune \(schema 8999, this one knows up to \d{4}\); install that version, or restore a copy"
    for act in (Store.open, maintenance.upgrade):
        with pytest.raises(StoreUnavailable, match=newer) as caught:
            act(old)
        assert not caught.value.transient
    with pytest.raises(StoreUnavailable, match="has the schema 8999, and this meshtune knows"):
        maintenance.check(old)
    assert rows(old) == before


def test_a_sqlite_file_is_copied_before_and_restoring_the_copy_goes_back(file_url, home, tmp_path, later, caplog):
    load(file_url, home.root)
    before, known, file = rows(file_url), schema._MIGRATIONS, tmp_path / "store.db"
    later()
    (tmp_path / ".store.db.schema-0100.1.partial").touch()  # of one that was killed
    with Store.open(file_url) as store:
        store.leases.leave("nobody")
    copy = tmp_path / "store.db.schema-0100"
    assert f"was 0100 and is 8999 now; {copy} is as it was" in caplog.text
    assert copy.stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob(".*"))
    for left in tmp_path.glob("store.db*"):
        if left != copy:
            left.unlink()
    copy.rename(file)
    schema._MIGRATIONS = known
    assert rows(file_url) == before
    maintenance.upgrade(file_url)
    assert maintenance.check(file_url).troubles == []


def test_a_new_version_is_written_with_the_next_number(later, file_url):
    folder = later()
    schema.revise("what changes")
    (written,) = (folder / "versions").glob("v9000_*")
    assert "Revises 8999;" in written.read_text()
    assert maintenance.upgrade(file_url) == ("", "9000")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE steps SET seconds = 1e-307 WHERE attempt_id = :id",
        "UPDATE measurements SET peak_flops_per_device = 1e31 WHERE attempt_id = :id",
        "UPDATE measurements SET model_flops_per_token = 1e-9 WHERE attempt_id = :id",
        "UPDATE measurements SET compile_s = 1e10 WHERE attempt_id = :id",
        "UPDATE measurements SET profile = :profile WHERE attempt_id = :id",
        "UPDATE measurements SET profile = '{\"torn\": 1}' WHERE attempt_id = :id",
        "UPDATE steps SET warmup = true WHERE attempt_id = :id",
        "DELETE FROM steps WHERE attempt_id = :id",
    ],
)
def test_numbers_that_schema_0100_took_and_nobody_can_have_measured_are_a_crash(old, change):
    profile = '{"step_time_s": 1e300, "parts_s": [{}], "waiting_s": [{}], "own_times_s": [[1.0]], "stages": [0]}'
    engine = create_engine(old)
    with engine.begin() as connection:
        id = connection.scalar(text("SELECT max(attempt_id) FROM measurements"))
        values = {"id": id, "profile": profile} if ":profile" in change else {"id": id}
        connection.execute(text(change), values)
    maintenance.upgrade(old)
    assert maintenance.check(old).troubles == []
    with engine.begin() as connection:
        verdict, reason = connection.execute(
            text("SELECT verdict, reason FROM attempts WHERE id = :id"), {"id": id}
        ).one()
    engine.dispose()
    assert "profile" in change or (verdict, reason.startswith("what the job left makes no sense")) == ("crashed", True)
