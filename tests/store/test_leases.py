"""One holder for each campaign, by the database's clock; what another one writes is refused."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Origin, TrialState
from meshtune.tuner.store import Lease, LeaseLost, Store, StoreUnavailable
from meshtune.tuner.store.database import Database

ME, OTHER = "here:1:aaaaaa", "there:2:bbbbbb"


def take(store: Store, holder: str = ME, *, lease_s: float = 60.0) -> Lease:
    store.leases.renew(holder, lease_s, serves=True)
    return store.leases.take(holder, ["c1"])["c1"]


def test_a_holder_that_was_not_heard_of_for_a_lease_is_followed_by_another_with_the_next_epoch(store: Store, make):
    make.running(store)
    first = take(store)
    store.leases.renew(OTHER, 600.0, serves=True)
    assert store.leases.take(OTHER, ["c1", "nowhere"]) == {}
    assert take(store) == first
    store.leases.renew(ME, 0.1, serves=True)  # and is not heard of again
    deadline = time.monotonic() + 60.0
    while store.leases.driver("c1") == ME and time.monotonic() < deadline:
        time.sleep(0.01)
    assert store.leases.driver("c1") == ""
    assert store.leases.take(OTHER, ["c1"]) == {"c1": Lease("c1", OTHER, first.epoch + 1)}
    store.leases.renew(ME, 60.0, serves=True)
    assert store.leases.take(ME, ["c1"]) == {}


def test_a_holder_that_was_late_keeps_what_nobody_took(store: Store, make):
    make.running(store)
    lease = take(store, lease_s=0.0)
    store.leases.renew(ME, 60.0, serves=True)
    store.leases.require(lease)
    assert store.leases.driver("c1") == ME


def test_what_is_released_or_left_is_free_at_once(store: Store, make):
    make.running(store)
    lease = take(store)
    store.leases.release(lease)
    with pytest.raises(LeaseLost, match="no process has campaign c1 now, which here:1:aaaaaa had"):
        store.leases.require(lease)
    again = take(store, OTHER)
    store.leases.release(lease)  # of the past: it frees nothing
    assert store.leases.driver("c1") == OTHER
    store.leases.leave(OTHER)
    assert store.leases.drivers().servers == 1
    assert take(store).epoch == again.epoch + 1


WRITES = {
    "plan_trials": lambda store, make: store.plan_trials("c1", make.choices(1, first=9), Origin.SEARCH, now=200.0),
    "mark_submitted": lambda store, make: store.mark_submitted("c1", 0, "job", now=200.0),
    "mark_running": lambda store, make: store.mark_running("c1", 0, started_at=150.0, now=200.0),
    "finish": lambda store, make: store.finish("c1", 0, make.ok(), started_at=1.0, finished_at=2.0, now=200.0),
    "plan_attempt": lambda store, make: store.plan_attempt("c1", 1, now=200.0),
    "end_search": lambda store, make: store.end_search("c1", "enough", now=200.0),
    "move_campaign": lambda store, make: store.move_campaign("c1", CampaignState.COMPLETED, reason="", now=200.0),
    "add_elapsed": lambda store, make: store.add_elapsed("c1", 1.0, 200.0),
    "mark_sending": lambda store, make: store.leases.mark_sending(Lease("c1", ME, 1), "c1-t0000-a1"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_who_lost_its_lease_writes_nothing(store: Store, make, write):
    make.running(store, trials=2)
    store.finish("c1", 1, make.failed(Verdict.LOST), started_at=1.0, finished_at=2.0, now=110.0)
    lease = take(store, lease_s=0.0)
    take(store, OTHER)
    before = (store.campaign("c1"), store.trials("c1"), store.events(None))
    store.leases.renew(ME, 60.0, serves=True)  # it woke up
    with pytest.raises(LeaseLost, match="there:2:bbbbbb has campaign c1 now"), store.leases.guarding(lease):
        write(store, make)
    assert (store.campaign("c1"), store.trials("c1"), store.events(None)) == before
    write(store, make) if write is not WRITES["mark_sending"] else None  # people's orders need no lease


def test_a_guard_holds_for_its_own_thread_and_no_longer_than_its_block(store: Store, make):
    make.running(store)
    lease = take(store, lease_s=0.0)
    take(store, OTHER)
    with store.leases.guarding(lease):
        thread = threading.Thread(
            target=store.move_campaign, args=("c1", CampaignState.PAUSED), kwargs={"reason": "", "now": 1.0}
        )
        thread.start()
        thread.join(30)
    assert store.campaign("c1").state is CampaignState.PAUSED
    assert store.move_campaign("c1", CampaignState.RUNNING, reason="", now=2.0).state is CampaignState.RUNNING


def test_an_attempt_is_sent_again_by_whoever_marked_it_or_follows_one_that_surely_ended(store: Store, make):
    make.running(store)
    name = store.trial("c1", 0).last.job_name
    first = take(store)
    assert store.leases.mark_sending(first, name)
    assert store.leases.mark_sending(first, name)
    store.leases.leave(ME)
    second = take(store, OTHER)
    assert store.leases.mark_sending(second, name)


def test_an_attempt_that_somebody_may_still_send_is_nobody_elses_to_send_however_often_the_lease_changes(store, make):
    make.running(store, trials=2)
    one, two = (trial.last.job_name for trial in store.trials("c1"))
    first = take(store, lease_s=0.0)
    assert store.leases.mark_sending(first, one)
    second = take(store, OTHER)
    assert not store.leases.mark_sending(second, one)
    assert store.leases.mark_sending(second, two)
    store.leases.leave(OTHER)
    third = take(store)
    assert not store.leases.mark_sending(third, one)
    assert store.leases.mark_sending(third, two)
    assert all(trial.state is TrialState.PLANNED for trial in store.trials("c1"))


def test_the_drivers_are_the_active_campaigns_their_living_drivers_and_the_servers(store: Store, make):
    for number, id in enumerate(("c1", "c2", "c3", "c4")):
        store.create_campaign(make.campaign(id, created_at=100.0 - number))
    store.move_campaign("c4", CampaignState.COMPLETED, reason="", now=200.0)
    store.leases.renew(ME, 60.0, serves=True)
    store.leases.renew(OTHER, 0.0, serves=True)
    store.leases.renew("run:3:cccccc", 60.0, serves=False)
    store.leases.take(ME, ["c1", "c4"])
    store.leases.take(OTHER, ["c2"])
    drivers = store.leases.drivers()
    assert list(drivers.by_campaign.items()) == [("c3", ""), ("c2", ""), ("c1", ME)]
    assert drivers.servers == 1


def test_a_campaign_may_be_created_as_somebodys(store: Store, make):
    store.leases.renew(ME, 60.0, serves=False)
    store.create_campaign(make.campaign(), holder=ME)
    assert store.leases.driver("c1") == ME
    assert store.leases.take(ME, ["c1"]) == {"c1": Lease("c1", ME, 1)}


def test_holders_that_vanished_long_ago_are_forgotten_once_they_have_nothing(make):
    now = [1000.0]
    with Store.open("sqlite://", clock=lambda: now[0]) as store:
        make.running(store)
        take(store, lease_s=1.0)
        store.leases.renew("idle:4:dddddd", 1.0, serves=True)
        now[0] += 2 * 86400.0
        take(store, OTHER)
        take(store, OTHER)
        with store._database.reading() as connection:
            names = connection.exec_driver_sql("SELECT name FROM holders").scalars().all()
        assert names == [OTHER]


@pytest.mark.postgres
def test_a_writer_that_stands_still_in_its_transaction_does_not_keep_others_out(postgres_url, monkeypatch, make):
    with Store.open(postgres_url) as store:
        make.running(store)
        stopped = Database(postgres_url)
        gone = pytest.raises(StoreUnavailable, match=r"stood still|cannot be reached")
        monkeypatch.setattr("meshtune.tuner.store.database.IDLE_WRITER_TIMEOUT_S", 1)
        with gone as caught, stopped.writing() as connection:
            monkeypatch.undo()  # who comes after it may be as slow as ever
            store.add_elapsed("c1", 1.0, 200.0)  # waits, and comes through
            connection.exec_driver_sql("SELECT 1")
        assert caught.value.transient
        stopped.close()
        assert store.campaign("c1").elapsed_s == 1.0


def test_one_process_serves_a_sqlite_file_and_a_second_is_told_which(file_url: str, tmp_path: Path):
    with Store.open(file_url) as store, store.serving():
        message = r"store\.db is served by process \d+ already, and SQLite takes one service"
        refused = pytest.raises(StoreUnavailable, match=message)
        with Store.open(file_url) as second, refused as caught, second.serving():
            raise AssertionError("it was claimed twice")
        assert not caught.value.transient
    with Store.open(file_url) as third, third.serving():
        pass
