"""A database that fails gives one error, fit for a user, and nothing half-written."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.pool import Pool

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Origin, TrialState
from meshtune.tuner.store import Store, StoreError, StoreUnavailable, database


def refused(url: str, match: str, *, transient: bool) -> str:
    with pytest.raises(StoreUnavailable, match=match) as caught:
        Store.open(url)
    assert caught.value.transient is transient
    message = str(caught.value)
    for noise in ("Traceback", "sqlalche.me", "[SQL", "\n", "hunter2"):
        assert noise not in message
    return message


@pytest.mark.parametrize(
    "url",
    [
        "",
        "store.db",
        "mysql://user:hunter2@host/db",
        "postgresql://user:hun@hunter2@host/db",
        "postgresql://user:pw@host:hunter2/db",
        "postgresql://user:hunter2@127.0.0.1:1/db?no_such_option=1",
        "sqlite://store.db",
    ],
)
def test_a_url_that_names_no_database_is_refused_without_its_password(url: str):
    refused(url, "database", transient=False)


def test_a_missing_folder_is_named(tmp_path: Path):
    refused(f"sqlite:///{tmp_path}/no/store.db", f"there is no folder {tmp_path}/no$", transient=False)


def test_another_file_is_no_database(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("not a database\n" * 100)
    refused(f"sqlite:///{tmp_path}/notes.txt", "is not a SQLite database", transient=False)
    assert (tmp_path / "notes.txt").read_text() == "not a database\n" * 100


def test_no_server_is_worth_another_try(tmp_path: Path):
    message = refused("postgresql://user:hunter2@127.0.0.1:1/db", "cannot be reached", transient=True)
    assert "the PostgreSQL database db on 127.0.0.1:1" in message
    refused(f"postgresql://user:hunter2@/db?host={tmp_path}", "cannot be reached", transient=True)


def test_a_file_opened_read_only_is_refused(file_url: str, tmp_path: Path, make):
    with Store.open(file_url) as store:
        make.running(store)
    refused(f"sqlite:///file:{tmp_path}/store.db?mode=ro&uri=true", "is read-only", transient=False)


@pytest.mark.postgres
def test_a_read_only_server_fails_the_check_and_opening(postgres_url: str, server):
    name = postgres_url.partition("@/")[2].partition("?")[0]
    with Store.open(postgres_url) as store:
        store.check()
        with server.connect() as admin:
            admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        server.end_sessions(name)
        with pytest.raises(StoreUnavailable, match="is read-only") as caught:
            store.check()
        assert not caught.value.transient
        assert store.events(None) == []
    refused(postgres_url, "is read-only", transient=False)


@pytest.mark.postgres
def test_lost_connections_are_made_anew(postgres_url: str, server, make):
    name = postgres_url.partition("@/")[2].partition("?")[0]
    with Store.open(postgres_url) as store:
        make.running(store)
        server.end_sessions(name)
        store.mark_submitted("c1", 0, "j", now=1.0)
        assert store.trial("c1", 0).state is TrialState.SUBMITTED


def test_a_database_that_another_process_locks_is_worth_another_try(file_url: str, tmp_path: Path, make):
    with Store.open(f"{file_url}?timeout=0.05") as store:
        make.running(store)
        other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for call in (store.check, lambda: store.mark_submitted("c1", 0, "j", now=1.0)):
            with pytest.raises(StoreUnavailable, match="is locked by another process") as caught:
                call()
            assert caught.value.transient
        assert store.trial("c1", 0).state is TrialState.PLANNED  # readers go on
        other.execute("ROLLBACK")
        other.close()
        store.mark_submitted("c1", 0, "j", now=1.0)
        assert store.trial("c1", 0).state is TrialState.SUBMITTED


@pytest.mark.postgres
def test_a_writer_that_does_not_end_is_worth_another_try(
    postgres_url: str, server, make, monkeypatch: pytest.MonkeyPatch
):
    name = postgres_url.partition("@/")[2].partition("?")[0]
    with Store.open(postgres_url) as store:
        make.running(store)
        monkeypatch.setattr(database, "LOCK_TIMEOUT_S", 0.05)
        with server.connect(name) as other:
            other.execute("SELECT pg_advisory_lock(%s)", [database.WRITER_LOCK])
            with pytest.raises(StoreUnavailable, match="is locked by another process") as caught:
                store.mark_submitted("c1", 0, "j", now=1.0)
            assert caught.value.transient
            assert store.trial("c1", 0).state is TrialState.PLANNED
            other.execute("SELECT pg_advisory_unlock(%s)", [database.WRITER_LOCK])  # not at the end of its session
        store.mark_submitted("c1", 0, "j", now=1.0)
        assert store.trial("c1", 0).state is TrialState.SUBMITTED


REFUSE_EVENTS = {
    "sqlite": ["CREATE TRIGGER refuse BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'no more events'); END"],
    "postgresql": [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'no more events'; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION refuse()",
    ],
}


def test_a_write_that_fails_at_its_event_leaves_no_rows(store: Store, url: str, make):
    make.running(store, trials=2)
    store.finish("c1", 1, make.failed(Verdict.LOST), started_at=1.0, finished_at=2.0, now=2.0)
    with store._database.writing() as connection:
        for statement in REFUSE_EVENTS[url.partition(":")[0]]:
            connection.execute(text(statement))
    before = (store.campaigns(limit=9), store.trials("c1"), store.events(None))
    for call in (
        lambda: store.create_campaign(make.campaign("c2")),
        lambda: store.move_campaign("c1", CampaignState.PAUSED, reason="", now=3.0),
        lambda: store.end_search("c1", "enough", chance_left=0.01, now=3.0),
        lambda: store.plan_trials("c1", [], Origin.SEARCH, chance_left=0.5, now=3.0),
        lambda: store.plan_trials("c1", make.choices(3, first=7), Origin.SEARCH, now=3.0),
        lambda: store.plan_attempt("c1", 1, now=3.0),
        lambda: store.mark_submitted("c1", 0, "j", now=3.0),
        lambda: store.mark_running("c1", 0, started_at=3.0, now=3.0),
        lambda: store.finish("c1", 0, make.ok(), started_at=1.0, finished_at=2.0, now=3.0),
    ):
        with pytest.raises(StoreError, match="no more events"):
            call()
        assert (store.campaigns(limit=9), store.trials("c1"), store.events(None)) == before
    with store._database.reading() as connection:
        for table in ("measurements", "steps"):
            assert connection.scalar(text(f"SELECT count(*) FROM {table}")) == 0


@pytest.fixture
def small_disk() -> Iterator[None]:
    """SQLite databases hold 80 pages of 4 KiB at the most."""

    def limit(connection, _record) -> None:
        connection.execute("PRAGMA max_page_count = 80")

    event.listen(Pool, "connect", limit)
    yield
    event.remove(Pool, "connect", limit)


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_keeps_what_was_written_before(file_url: str, make):
    with Store.open(file_url) as store:
        make.running(store, trials=50)

        def fill() -> None:
            for number in range(50):
                store.finish("c1", number, make.ok(steps=400), started_at=1.0, finished_at=2.0, now=2.0)

        with pytest.raises(StoreUnavailable, match="is full, or its disk is") as caught:
            fill()
        finished = store.verdict_counts(["c1"])["c1"]["ok"]
        assert caught.value.transient
        assert finished > 1
        trials = store.trials("c1")
        assert [trial.number for trial in trials if trial.state is TrialState.DONE] == list(range(finished))
        assert all(trial.measurement == make.ok(steps=400).measurement for trial in trials[:finished])
        assert [event.kind for event in store.events("c1")].count("trial.done") == finished
        with store._database.writing() as connection:
            connection.execute(text("PRAGMA max_page_count = 10000"))
        store.finish("c1", finished, make.ok(), started_at=1.0, finished_at=2.0, now=2.0)
        assert store.verdict_counts(["c1"])["c1"]["ok"] == finished + 1


def test_a_spec_that_this_meshtune_cannot_read_is_named(store: Store, make):
    store.create_campaign(make.campaign())
    with store._database.writing() as connection:
        connection.execute(text("""UPDATE campaigns SET spec = '{"name": "old"}'"""))
    with pytest.raises(StoreError, match="campaign c1 is stored as this meshtune does not read it"):
        store.campaign("c1")
