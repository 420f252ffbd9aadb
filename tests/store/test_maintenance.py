"""Schema and upkeep: the migrations, checks for contradictions, copies that are whole while others write."""

import os
import random
import resource
import sqlite3
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text

from meshtune.runners.command import call
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.store import Store, StoreError, StoreUnavailable, maintenance, schema, tables
from meshtune.tuner.store.mark import path_of

# Of the first release's tables, the columns that it did not have.
LATER_COLUMNS = (
    *(("measurements", name) for name in ("mean_step_time_s", "first_gradient_norms")),
    *(("trials", name) for name in ("etp", "zero_group")),
)


def differences(connection: Connection) -> list[tuple]:
    context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
    return compare_metadata(context, tables.metadata)


def test_the_migrations_make_exactly_the_tables(store: Store):
    with store._database.reading() as connection:
        assert differences(connection) == []


def test_measurements_of_the_first_release_get_their_means_and_what_nobody_measured_is_a_crash(shared_url: str, make):
    odd = Measurement(step_times_s=(1.0,) * 9 + (11.0,), tokens_per_step=8, devices=4)
    with Store.open(shared_url) as store:
        make.running(store, trials=4)
        for number in range(3):
            outcome = Outcome(verdict=Verdict.OK, measurement=odd)
            store.finish("c1", number, outcome, started_at=1.0, finished_at=2.0, now=2.0)
        pruned = Outcome(verdict=Verdict.PRUNED, partial=odd)
        store.finish("c1", 3, pruned, started_at=1.0, finished_at=2.0, now=2.0)
        before = store.trials("c1")
        with store._database.upgrading() as connection:  # as 0.1.0 left it
            connection.execute(text("UPDATE measurements SET step_time_low_s = 1.0, step_time_high_s = 1.0"))
            connection.execute(text("UPDATE steps SET seconds = 1e-307 WHERE number = 3 AND attempt_id = 2"))
            for table, later in LATER_COLUMNS:
                connection.execute(text(f"ALTER TABLE {table} DROP COLUMN {later}"))
            connection.execute(text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '0100'"))
    with Store.open(shared_url) as store:
        first, wrong, last, given_up = store.trials("c1")
        assert (first, last, given_up) == (before[0], before[2], before[3])
        assert (wrong.verdict, wrong.measurement) == (Verdict.CRASHED, None)
        assert "nobody can have measured such numbers" in wrong.outcome.reason
        listed = store.pages.listed("c1")
        assert [trial.measurement and trial.measurement.step_time_s for trial in listed] == [2.0, None, 2.0, None]
        assert listed[0].measurement.step_time_interval_s.high == first.measurement.step_time_interval_s.high > 2.0
        with store._database.reading() as connection:
            assert differences(connection) == []


def test_a_change_of_the_schema_that_orphans_rows_is_undone(file_url: str, make):
    with Store.open(file_url) as store:
        make.running(store)
        orphans = pytest.raises(StoreError, match="rows that refer to others which are not there")
        with orphans, store._database.upgrading() as connection:
            connection.execute(text("DELETE FROM trials"))
        assert len(store.trials("c1")) == 1
        with pytest.raises(StoreError, match="FOREIGN KEY"), store._database.writing() as connection:
            connection.execute(text("DELETE FROM trials"))


def test_a_file_uses_write_ahead_logging_and_foreign_keys(file_url: str, tmp_path: Path):
    with Store.open(file_url) as store, store._database.reading() as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        assert connection.scalar(text("PRAGMA foreign_keys")) == 1
        assert connection.scalar(text("PRAGMA busy_timeout")) == 10_000
        assert connection.scalar(text("PRAGMA synchronous")) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store.db", "store.db.mark"]


@pytest.fixture
def file(tmp_path, make) -> Path:
    """The SQLite file of a database with a campaign of two trials: one measured, one failed."""
    with Store.open(f"sqlite:///{tmp_path}/one.db") as store:
        make.running(store, trials=2)
        for number, verdict in enumerate((Verdict.OK, Verdict.OOM)):
            store.mark_submitted("c1", number, f"job{number}", now=102.0)
            store.finish("c1", number, make.outcome(verdict), started_at=103.0, finished_at=104.0, now=105.0)
    return tmp_path / "one.db"


def troubles(file: Path) -> list[str]:
    return list(maintenance.check(f"sqlite:///{file}").troubles)


def test_nothing_is_wrong_with_what_the_store_wrote(file, make):
    with Store.open(f"sqlite:///{file}") as store:
        store.plan_trials("c1", make.choices(1, first=9), Origin.SEARCH, now=106.0)
        store.mark_submitted("c1", 2, "job2", now=107.0)
    report = maintenance.check(f"sqlite:///{file}")
    assert report.troubles == []
    assert report.rows == {"campaigns": 1, "trials": 3, "attempts": 3, "measurements": 1, "events": 9}
    assert report.in_flight == [("c1", "c1-t0002-a1")]


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE attempts SET verdict = NULL WHERE job_name = 'c1-t0000-a1'", "done without a verdict: c1-t0000-a1"),
        ("UPDATE attempts SET state = 'running' WHERE job_name = 'c1-t0001-a1'", "but are not done: c1-t0001-a1"),
        ("UPDATE attempts SET finished_at = NULL", "done without an end: c1-t0000-a1, c1-t0001-a1"),
        ("DELETE FROM measurements", "ok without a measurement: c1-t0000-a1"),
        ("UPDATE attempts SET verdict = 'oom' WHERE verdict = 'ok'", "a measurement that are not ok: c1-t0000-a1"),
        ("DELETE FROM steps WHERE NOT warmup", "measurements without steps: c1-t0000-a1"),
        ("UPDATE trials SET number = 7 WHERE number = 1", "not numbered 0, 1, 2 ...: c1"),
        ("UPDATE attempts SET number = 2 WHERE job_name = 'c1-t0001-a1'", "not numbered 1, 2, 3 ...: c1"),
        ("DELETE FROM attempts WHERE job_name = 'c1-t0001-a1'", "without an attempt: c1"),
        (
            "INSERT INTO attempts (trial_id, number, job_name, state, reason, wait, log_tail, planned_at, running_s)"
            " SELECT trial_id, 2, 'again', 'planned', '', '', '', 1.0, 0.0 FROM attempts WHERE verdict = 'oom'",
            "their verdict allows it not: c1-t0001-a1",
        ),
        ("DELETE FROM events WHERE kind = 'campaign.created'", "nothing tells of: c1"),
        ("UPDATE sqlite_sequence SET seq = 1 WHERE name = 'events'", "would get the id 2"),
        (
            "UPDATE campaigns SET state = 'completed';"
            " UPDATE attempts SET state = 'running', verdict = NULL WHERE verdict = 'oom'",
            "though their campaigns are over: c1-t0001-a1",
        ),
        ("DELETE FROM campaigns", "refers to a row of campaigns that is not there"),
    ],
)
def test_a_check_tells_what_contradicts_itself(file, statement, told):
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(statement)
    path_of(file).unlink()  # it would tell first that events are gone
    assert any(told in trouble for trouble in troubles(file)), troubles(file)


def test_a_damaged_file_is_told(file):
    with file.open("r+b") as raw:
        raw.seek(3 * 4096)
        raw.write(random.Random(0).randbytes(2 * 4096))
    try:
        found = troubles(file)
    except StoreError as error:
        found = [str(error)]
    assert any("damaged" in trouble for trouble in found)


def test_an_older_schema_is_told_and_not_touched(file):
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE meshtune_version SET version_num = '0003'")
        connection.commit()
    with pytest.raises(StoreUnavailable, match="has the schema 0003, and this meshtune knows"):
        maintenance.check(f"sqlite:///{file}")


def test_a_copy_made_while_others_write_is_whole(file, tmp_path, make):
    over = threading.Event()

    def write() -> None:
        with Store.open(f"sqlite:///{file}") as store:
            number = 2
            while not over.is_set():
                store.plan_trials("c1", make.choices(1, first=number + 10), Origin.SEARCH, now=1.0)
                number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for turn in range(5):
            target = tmp_path / f"copy{turn}.db"
            with maintenance.new_file(target, force=False) as partial:
                maintenance.copy_sqlite(file, partial)
            assert troubles(target) == []
    finally:
        over.set()
        writer.join()
    assert not list(tmp_path.glob(".*"))


def test_a_copy_is_one_file_that_only_its_owner_reads(file, tmp_path):
    target = tmp_path / "copy.db"
    with maintenance.new_file(target, force=False) as partial:
        maintenance.copy_sqlite(file, partial)
    assert target.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.glob("*copy*")) == ["copy.db"]
    with Store.open(f"sqlite:///{target}") as copy, Store.open(f"sqlite:///{file}") as original:
        assert copy.trials("c1") == original.trials("c1")


def test_a_file_that_is_there_is_replaced_only_by_force(tmp_path):
    target = tmp_path / "there"
    target.write_text("precious")
    with pytest.raises(StoreError, match="exists already"), maintenance.new_file(target, force=False):
        pass
    assert target.read_text() == "precious"
    with maintenance.new_file(target, force=True) as partial:
        partial.write_text("new")
    assert target.read_text() == "new"


@contextmanager
def small_files(most_bytes: int):
    """No file of this process may grow above this, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_and_leaves_nothing_behind(file, tmp_path):
    folder = tmp_path / "full"
    folder.mkdir()
    with (
        pytest.raises(StoreUnavailable, match="cannot be copied"),
        maintenance.new_file(folder / "copy.db", force=False) as partial,
        small_files(16384),
    ):
        maintenance.copy_sqlite(file, partial)
    assert list(folder.iterdir()) == []


@pytest.mark.postgres
def test_a_dump_brings_a_postgresql_database_back(server, postgres_url, make, tmp_path):
    with Store.open(postgres_url) as store:
        make.running(store, trials=2)
        trials = store.trials("c1")
    dump = maintenance.dump_of(postgres_url, tmp_path / "dump")
    for command in (dump.command, dump.check):
        answer = call(command, time_limit_s=60, environment={**os.environ, **dump.environment})
        assert answer.code == 0, answer.complaint
    url = server.create("brought_back")
    try:
        back = ["pg_restore", "--no-owner", f"--dbname={url}", str(tmp_path / "dump")]
        answer = call(back, time_limit_s=60)
        assert answer.code == 0, answer.complaint
        assert maintenance.check(url).troubles == []
        with Store.open(url) as store:
            assert store.trials("c1") == trials
            store.plan_trials("c1", make.choices(1, first=9), Origin.SEARCH, now=1.0)
    finally:
        server.drop("brought_back")


@pytest.mark.parametrize(
    "url", ["postgresql://me:s3cret%40@db:5433/mesh", "postgresql://me@db/mesh?password=s3cret%40"]
)
def test_the_password_of_a_dump_is_in_its_environment_alone(url, tmp_path):
    dump = maintenance.dump_of(url, tmp_path / "dump")
    assert dump.environment == {"PGPASSWORD": "s3cret@"}
    assert "s3cret" not in " ".join((*dump.command, *dump.check))
    assert any("me@db" in word for word in dump.command)
