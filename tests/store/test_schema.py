from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.store import Store, StoreError, StoreUnavailable, schema, tables


def differences(connection: Connection) -> list[tuple]:
    context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
    return compare_metadata(context, tables.metadata)


def test_the_migrations_make_exactly_the_tables(store: Store):
    with store._database.reading() as connection:
        assert differences(connection) == []


@pytest.mark.parametrize("revision", ["0001", "0002", "0003", "0005", "0006", "0009"])
def test_rows_from_before_are_still_read_and_the_schema_is_todays(shared_url: str, revision: str, make, write_old):
    with Store.open("sqlite://") as store:
        make.running(store, trials=2)
        store.finish("c1", 0, make.ok(), started_at=1.0, finished_at=2.0, now=3.0)
        write_old(shared_url, revision, store)
        before = (store.campaign("c1"), store.trials("c1"), store.events(None))
    with Store.open(shared_url) as store:
        assert (store.campaign("c1"), store.trials("c1"), store.events(None)) == before
        assert [demand.devices for demand in store.demands("", 0.0)] == [8]
        with store._database.reading() as connection:
            assert differences(connection) == []
        again = store.plan_trials("c1", make.choices(1), Origin.CONFIRMATION, now=4.0)
        assert (again[0].number, again[0].plan) == (2, before[1][0].plan)
        assert store.end_search("c1", "enough", chance_left=0.5, now=5.0).chance_left == 0.5


def test_a_change_of_the_schema_that_orphans_rows_is_undone(file_url: str, make):
    with Store.open(file_url) as store:
        make.running(store)
        orphans = pytest.raises(StoreError, match="rows that refer to others which are not there")
        with orphans, store._database.upgrading() as connection:
            connection.execute(text("DELETE FROM trials"))
        assert len(store.trials("c1")) == 1
        with pytest.raises(StoreError, match="FOREIGN KEY"), store._database.writing() as connection:
            connection.execute(text("DELETE FROM trials"))


def test_a_difference_would_be_seen(store: Store):
    with store._database.writing() as connection:
        connection.execute(text("ALTER TABLE steps ADD COLUMN surplus INTEGER"))
    with store._database.reading() as connection:
        [found] = differences(connection)
    assert found[0] == "remove_column"


def test_every_constraint_and_index_has_a_name_and_the_lookups_have_an_index(store: Store):
    with store._database.reading() as connection:
        found = inspect(connection)
        columns = set()
        for table in tables.metadata.tables:
            # SQLite has no place for the name of a key that counts by AUTOINCREMENT.
            if table != "events" or connection.dialect.name != "sqlite":
                assert found.get_pk_constraint(table)["name"] == f"pk_{table}"
            constraints = found.get_foreign_keys(table) + found.get_unique_constraints(table)
            assert all(constraint["name"] for constraint in constraints)
            keys = found.get_indexes(table) + found.get_unique_constraints(table)
            columns |= {(table, *key["column_names"]) for key in keys}
    assert {
        ("events", "campaign_id", "id"),
        ("trials", "campaign_id", "number"),
        ("trials", "campaign_id", "plan_key", "origin"),
        ("attempts", "trial_id", "number"),
        ("attempts", "job_name"),
        ("campaigns", "created_at", "id"),
    } <= columns


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
