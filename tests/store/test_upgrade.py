"""Databases of older schemas, with data: upgrades keep every row, and end whole or not at all.

The data is what real campaigns of schema 0100 left (`recorded_home`). All tests hold for any number of later versions,
and two are added to them here, so that there is something to upgrade to: one that copies tables as SQLite needs it, and
one that fills a new column.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from jobs import wait_for
from postgres_lab import PostgresLab
from recorded_home import load, recorded_rows
from sqlalchemy import Connection, inspect, text

from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.store import Store, StoreError, StoreUnavailable, maintenance, schema, tables
from meshtune.tuner.store.database import Database

COPIES = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "8998", "{newest}", None, None


def upgrade():
    with op.batch_alter_table("attempts") as attempts:
        attempts.alter_column("reason", existing_type=sa.Text(), nullable=True)
    with op.batch_alter_table("events", table_kwargs={{"sqlite_autoincrement": True}}) as events:
        events.alter_column("kind", existing_type=sa.Text(), nullable=True)
"""
FILLS = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "8999", "8998", None, None


def upgrade():
    op.add_column("trials", sa.Column("note", sa.Text(), nullable=False, server_default="none"))
"""
# Says that it is in the middle, and stays there while it is held.
HELD = """
    from pathlib import Path
    import os, time
    with Path({folder!r}, "middle").open("a") as middle:
        middle.write(f"{{os.getpid()}}\\n")
    while Path({folder!r}, "held").exists():
        time.sleep(0.02)
"""
OPENS = """
import sys
from pathlib import Path
from meshtune.tuner.store import Store, schema
schema._MIGRATIONS = Path(sys.argv[2])
Store.open(sys.argv[1]).close()
"""


def differences(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
    return list(compare_metadata(context, tables.metadata))


def described(connection: Connection) -> dict[str, Any]:
    """All tables but that of the version, without the order of columns, and without defaults, which fill old rows."""
    look = inspect(connection)
    found: dict[str, Any] = {}
    for name in sorted(set(look.get_table_names()) - {schema.VERSION_TABLE}):
        sql = (
            connection.scalar(text(f"SELECT sql FROM sqlite_master WHERE name = '{name}'"))
            if is_sqlite(connection)
            else ""
        )
        found[name] = {
            "columns": {each["name"]: (str(each["type"]), each["nullable"]) for each in look.get_columns(name)},
            "counts on": "AUTOINCREMENT" in sql,
            "key": look.get_pk_constraint(name),
            "refers to": sorted(look.get_foreign_keys(name), key=str),
            "unique": sorted(look.get_unique_constraints(name), key=str),
            "indexes": sorted(look.get_indexes(name), key=str),
            "checks": sorted(look.get_check_constraints(name), key=str),
        }
    return found


def is_sqlite(connection: Connection) -> bool:
    return connection.dialect.name == "sqlite"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def old(shared_url: str, home: Home) -> str:
    """The URL of a database of schema 0100 with data."""
    load(shared_url, home.root)
    return shared_url


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Add two versions to those that there are; with `held` the last one can be held in the middle. Their folder."""

    def add(*, held: bool = False) -> Path:
        migrations = tmp_path / "migrations"
        shutil.copytree(schema._MIGRATIONS, migrations)
        (migrations / "versions" / "v8998_copies.py").write_text(COPIES.format(newest=schema._known()[-1]))
        more = HELD.format(folder=str(tmp_path)) if held else ""
        (migrations / "versions" / "v8999_fills.py").write_text(FILLS + more)
        monkeypatch.setattr(schema, "_MIGRATIONS", migrations)
        return migrations

    return add


def upgraded(url: str, version: str) -> None:
    """To that version alone."""
    with closing(Database(url)) as database, database.upgrading() as connection:
        command.upgrade(schema._config(connection), version)


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
    """Every value that there was is there, but of columns that are gone."""
    after = rows(url)
    for name, old_rows in before.items():
        if name == "probes":  # counts looks at the database
            continue
        assert len(after[name]) == len(old_rows), name
        for was, is_now in zip(old_rows, after[name], strict=True):
            assert {key: value for key, value in was.items() if key in is_now} == {
                key: value for key, value in is_now.items() if key in was
            }


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


def test_the_migrations_make_exactly_the_tables(shared_url, tmp_path, request):
    with Store.open(shared_url) as store, store._database.reading() as connection:
        assert differences(connection) == []
        migrated = described(connection)
    with closing(Database(shared_url)) as database:
        with database.upgrading() as connection:
            tables.metadata.drop_all(connection)
            tables.metadata.create_all(connection)
        with database.reading() as connection:
            assert described(connection) == migrated


def test_versions_are_one_chain_in_the_order_of_their_numbers():
    with closing(Database("sqlite://")) as database, database.upgrading() as connection:
        from alembic.script import ScriptDirectory

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


@pytest.fixture
def opening(old: str, later: Callable[..., Path], tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start a process that opens the database, and so upgrades it, and waits in the middle while `held` exists."""
    migrations = later(held=True)
    (tmp_path / "held").touch()
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", OPENS, old, str(migrations)], stderr=subprocess.PIPE)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def middle(tmp_path: Path) -> list[str]:
    """The processes that came to the middle of an upgrade."""
    path = tmp_path / "middle"
    return path.read_text().split() if path.exists() else []


@pytest.mark.slow
def test_an_upgrade_that_is_killed_in_the_middle_did_nothing_and_is_done_by_the_next(old, opening, tmp_path):
    before = rows(old)
    for turn in (1, 2):
        process = opening()
        wait_for(lambda: len(middle(tmp_path)) == turn)  # noqa: B023
        process.kill()
        process.wait()
        assert rows(old) == before
    (tmp_path / "held").unlink()
    process = opening()
    assert process.wait(60) == 0
    require_kept(before, old)


@pytest.mark.slow
def test_of_two_that_start_at_once_one_upgrades_and_the_other_waits(old, opening, tmp_path):
    before = rows(old)
    both = [opening(), opening()]
    wait_for(lambda: middle(tmp_path))
    time.sleep(3.0)
    assert [process.poll() for process in both] == [None, None]
    (tmp_path / "held").unlink()
    assert [process.wait(60) for process in both] == [0, 0]
    assert len(middle(tmp_path)) == 1
    require_kept(before, old)


def test_an_old_database_in_use_is_not_upgraded(old, later):
    with Store.open(old) as store:
        store.leases.renew("host:1:abc", 60.0, serves=True)
        before = rows(old)
        later()
        for upgrade in (Store.open, maintenance.upgrade):
            with pytest.raises(StoreUnavailable, match="is in use by host:1:abc; stop what works on it") as caught:
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
    with Store.open(file_url) as store:
        store.leases.leave("nobody")
    copy = tmp_path / "store.db.schema-0100"
    assert f"was 0100 and is 8999 now; {copy} is as it was" in caplog.text
    assert copy.stat().st_mode & 0o777 == 0o600
    for left in tmp_path.glob("store.db*"):
        if left != copy:
            left.unlink()
    copy.rename(file)
    schema._MIGRATIONS = known
    assert maintenance.check(file_url).troubles == []
    assert rows(file_url) == before


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A disk of 16 MB, which all may write to, at this place."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m,mode=777", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def server_disk(server: PostgresLab) -> Iterator[Path]:
    """A folder for a database of the server on a disk of its own."""
    with small_disk(server.folder / "disk") as disk:
        space = disk / "space"
        space.mkdir()
        subprocess.run(["chown", "--reference", server.folder, space], check=True)
        yield space


@pytest.mark.slow
def test_an_upgrade_of_a_file_on_a_full_disk_does_nothing_until_there_is_room(disk, home, later):
    url = f"sqlite:///{disk}/store.db"
    load(url, home.root)
    before = rows(url)
    later()
    fill(disk, but=2**17)  # with less, SQLite opens nothing
    with pytest.raises(StoreUnavailable, match=r"no copy can be made before: .*db upgrade --no-copy") as caught:
        Store.open(url)
    assert caught.value.transient
    with pytest.raises(StoreUnavailable, match="is full, or its disk is"):
        maintenance.upgrade(url, copy=False)
    assert rows(url) == before
    assert not list(disk.glob("*schema*"))
    (disk / "ballast").unlink()
    assert maintenance.upgrade(url) == ("0100", "8999")
    require_kept(before, url)


@pytest.mark.slow
@pytest.mark.postgres
def test_an_upgrade_of_a_server_with_a_full_disk_does_nothing_until_there_is_room(server, server_disk, home, later):
    with server.connect() as admin:
        admin.execute(f"CREATE TABLESPACE small LOCATION '{server_disk}'")
        admin.execute("CREATE DATABASE small TABLESPACE small")
    try:
        url = server.url("small")
        load(url, home.root)
        before = rows(url)
        folder = later()
        with (folder / "versions" / "v8999_fills.py").open("a") as file:
            file.write("    op.execute('UPDATE events SET kind = repeat(kind, 1000)')\n")
            file.write("    op.execute('UPDATE events SET kind = left(kind, length(kind) / 1000)')\n")
        fill(server_disk.parent)
        with pytest.raises(StoreUnavailable, match="has a full disk") as caught:
            Store.open(url)
        assert caught.value.transient
        assert rows(url) == before
        (server_disk.parent / "ballast").unlink()
        assert maintenance.upgrade(url) == ("0100", "8999")
        require_kept(before, url)
    finally:
        server.drop("small")
        with server.connect() as admin:
            admin.execute("DROP TABLESPACE small")


def fill(disk: Path, but: int = 0) -> None:
    """Leave so many bytes free."""
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        with suppress(OSError):
            while True:
                ballast.write(bytes(4096))
        ballast.truncate(ballast.tell() - but)
