import shutil
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text

from meshtune.tuner.store import Store, StoreError, StoreUnavailable, schema, tables

NEXT_VERSION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "0101", "0100", None, None


def upgrade():
    op.add_column("trials", sa.Column("note", sa.Text(), nullable=False, server_default="none"))
"""


def differences(connection: Connection) -> list[tuple]:
    context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
    return compare_metadata(context, tables.metadata)


def test_the_migrations_make_exactly_the_tables(store: Store):
    with store._database.reading() as connection:
        assert differences(connection) == []


def test_an_older_database_is_brought_to_the_newest_schema_with_its_rows(
    shared_url: str, tmp_path: Path, make, monkeypatch
):
    with Store.open(shared_url) as store:
        make.running(store, trials=2)
        before = (store.campaign("c1"), store.trials("c1"), store.events(None))
    migrations = tmp_path / "migrations"
    shutil.copytree(schema._MIGRATIONS, migrations)
    monkeypatch.setattr(schema, "_MIGRATIONS", migrations)
    (migrations / "versions" / "v0101_next.py").write_text(NEXT_VERSION)
    with Store.open(shared_url) as store:
        assert (store.campaign("c1"), store.trials("c1"), store.events(None)) == before
        with store._database.reading() as connection:
            assert connection.scalar(text("SELECT note FROM trials WHERE number = 1")) == "none"
            assert schema.version_of(connection) == "0101"


def test_a_change_of_the_schema_that_orphans_rows_is_undone(file_url: str, make):
    with Store.open(file_url) as store:
        make.running(store)
        orphans = pytest.raises(StoreError, match="rows that refer to others which are not there")
        with orphans, store._database.upgrading() as connection:
            connection.execute(text("DELETE FROM trials"))
        assert len(store.trials("c1")) == 1
        with pytest.raises(StoreError, match="FOREIGN KEY"), store._database.writing() as connection:
            connection.execute(text("DELETE FROM trials"))


def test_a_database_of_a_newer_meshtune_is_refused_untouched(shared_url: str, make):
    with Store.open(shared_url) as store:
        make.running(store)
        with store._database.writing() as connection:
            connection.execute(text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(StoreUnavailable, match=r"newer meshtune \(schema 9999, this one knows up to \d{4}\)") as caught:
        Store.open(shared_url)
    assert not caught.value.transient
    assert str(caught.value).startswith("the ")


def test_a_file_uses_write_ahead_logging_and_foreign_keys(file_url: str, tmp_path: Path):
    with Store.open(file_url) as store, store._database.reading() as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        assert connection.scalar(text("PRAGMA foreign_keys")) == 1
        assert connection.scalar(text("PRAGMA busy_timeout")) == 10_000
        assert connection.scalar(text("PRAGMA synchronous")) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["store.db"]
