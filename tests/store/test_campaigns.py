"""Campaigns, lessons and events of the store."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from sqlalchemy import text

from meshtune.tuner.campaign.campaign import CampaignState, Lesson
from meshtune.tuner.campaign.spec import Backend
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.store import AlreadyExists, IllegalMove, NotFound, Store, database
from meshtune.tuner.store.rows import decode_spec, encode_spec


def test_a_spec_survives_json_exactly(make):
    assert decode_spec(encode_spec(make.spec)) == make.spec
    assert decode_spec(encode_spec(make.spec)).workload.options == make.spec.workload.options


def test_a_spec_with_an_unknown_key_is_refused(make):
    with pytest.raises(ValueError):
        decode_spec({**encode_spec(make.spec), "typo": 1})


def test_a_taken_id_is_refused_and_the_first_campaign_stays(store: Store, make):
    store.create_campaign(make.campaign())
    with pytest.raises(AlreadyExists, match="campaign c1 exists already"):
        store.create_campaign(make.campaign(name="another"))
    assert store.campaign("c1") == make.campaign()
    assert [event.kind for event in store.events(None)] == ["campaign.created"]


def test_unknown_campaigns_are_not_found(store: Store, make):
    for call in (
        lambda: store.campaign("\0"),
        lambda: store.campaign("\udcff"),
        lambda: store.move_campaign("c9", CampaignState.PAUSED, reason="", now=1.0),
        lambda: store.plan_trials("c9", make.choices(1), Origin.SEARCH, now=1.0),
    ):
        with pytest.raises(NotFound, match="no campaign"):
            call()
    assert store.events(None) == []
    assert store.events("c9") == []
    assert store.trials("c9") == []


@pytest.mark.parametrize("to", CampaignState)
@pytest.mark.parametrize("start", CampaignState)
def test_a_campaign_moves_exactly_where_its_state_may(start: CampaignState, to: CampaignState, make):
    paths = {
        CampaignState.RUNNING: [],
        CampaignState.CANCELLED: [CampaignState.CANCELLING, CampaignState.CANCELLED],
    }
    with Store.open("sqlite://") as store:
        store.create_campaign(make.campaign())
        for state in paths.get(start, [start]):
            store.move_campaign("c1", state, reason="on the way", now=150.0)
        before = (store.campaign("c1"), store.events(None))
        if start.may_become(to):
            moved = store.move_campaign("c1", to, reason="why", now=200.0)
            assert (moved.state, moved.reason, moved.updated_at) == (to, "why", 200.0)
            assert store.campaign("c1") == moved
            last = store.events("c1")[-1]
            assert (last.kind, last.at) == (f"campaign.{to}", 200.0)
            assert last.data == {"state": str(to), "reason": "why"}
        else:
            with pytest.raises(IllegalMove, match=f"campaign c1 is {start} and cannot become {to}") as refused:
                store.move_campaign("c1", to, reason="why", now=200.0)
            assert (refused.value.thing, refused.value.state, refused.value.wanted) == ("campaign c1", start, to)
            assert (store.campaign("c1"), store.events(None)) == before


def test_elapsed_time_adds_up_without_events(store: Store, make):
    store.create_campaign(make.campaign())
    store.add_elapsed("c1", 1.5, 110.0)
    store.add_elapsed("c1", 2.25, 120.0)
    assert (store.campaign("c1").elapsed_s, store.campaign("c1").updated_at) == (3.75, 120.0)
    assert len(store.events(None)) == 1


def test_a_search_ends_once_for_the_first_reason(store: Store, make):
    make.running(store)
    assert (store.campaign("c1").search_ended, store.campaign("c1").chance_left) == ("", None)
    ended = store.end_search("c1", "enough \u2713", chance_left=0.008, now=200.0)
    assert (ended.search_ended, ended.chance_left, ended.updated_at) == ("enough \u2713", 0.008, 200.0)
    assert store.end_search("c1", "too late", chance_left=0.5, now=300.0) == ended == store.campaign("c1")
    told = [(event.at, event.data) for event in store.events("c1") if event.kind == "search.ended"]
    assert told == [(200.0, {"reason": "enough \u2713", "chance_left": 0.008})]


def test_only_the_search_of_a_running_campaign_ends(store: Store, make):
    store.create_campaign(make.campaign())
    store.move_campaign("c1", CampaignState.PAUSED, reason="", now=201.0)
    before = (store.campaign("c1"), store.events(None))
    with pytest.raises(IllegalMove, match=r"the search of campaign c1 .* the campaign is paused, not running"):
        store.end_search("c1", "enough", now=202.0)
    assert (store.campaign("c1"), store.events(None)) == before


def test_campaigns_are_listed_from_new_to_old(store: Store, make):
    # c3 and c4 are made in the same moment; the id decides.
    for id, created_at in (("c2", 20.0), ("c1", 10.0), ("c4", 30.0), ("c3", 30.0), ("c5", 50.0)):
        store.create_campaign(make.campaign(id, created_at=created_at))
    assert [campaign.id for campaign in store.campaigns(limit=9)] == ["c5", "c4", "c3", "c2", "c1"]
    assert [campaign.id for campaign in store.campaigns(limit=2)] == ["c5", "c4"]
    store.move_campaign("c3", CampaignState.PAUSED, reason="", now=60.0)
    running = store.campaigns(limit=3, states=[CampaignState.RUNNING])
    assert [campaign.id for campaign in running] == ["c5", "c4", "c2"]
    assert store.campaigns(limit=10, states=()) == []


LESSONS = (Lesson(campaign_id="old", trials=20, weight=0.35), Lesson(campaign_id="older", trials=1, weight=1.0))


def named(make, id: str, *, created_at: float = 100.0, device: str = "H200", workload: str = "command"):
    campaign = make.campaign(id, created_at=created_at)
    cluster = replace(campaign.spec.cluster, device=replace(campaign.spec.cluster.device, name=device))
    return replace(campaign, spec=replace(campaign.spec, cluster=cluster, workload=Backend(kind=workload)))


def test_campaigns_on_a_device_with_a_workload_come_newest_first(store: Store, make):
    for number, id in enumerate("abcd"):
        store.create_campaign(named(make, id, created_at=100.0 + number))
    store.create_campaign(named(make, "device", device="H100"))
    store.create_campaign(named(make, "workload", workload="torch"))
    assert [found.id for found in store.campaigns_on("H200", "command", limit=3)] == ["d", "c", "b"]
    assert [found.id for found in store.campaigns_on("H100", "command", limit=3)] == ["device"]
    assert store.campaigns_on("H100", "torch", limit=3) == []
    assert store.campaigns_on("H200", "command", limit=9)[-1] == store.campaign("a")


def test_a_campaign_whose_spec_is_not_read_any_more_is_left_out(store: Store, make):
    for id in "ab":
        store.create_campaign(named(make, id))
    with store._database.writing() as connection:
        connection.execute(text("UPDATE campaigns SET spec = '{}' WHERE id = 'b'"))
    assert [found.id for found in store.campaigns_on("H200", "command", limit=9)] == ["a"]


def test_lessons_are_kept_and_told_once(store: Store, make):
    store.create_campaign(make.campaign())
    assert store.campaign("c1").lessons == ()
    store.keep_lessons("c1", [], now=1.0)
    for now in (2.0, 3.0):
        store.keep_lessons("c1", LESSONS, now=now)
        assert store.campaign("c1").lessons == LESSONS
    store.keep_lessons("c1", LESSONS[:1], now=4.0)
    told = [(event.at, event.data) for event in store.events("c1") if event.kind == "campaign.learns"]
    documents = [
        {"campaign_id": "old", "trials": 20, "weight": 0.35, "calibration": False},
        {"campaign_id": "older", "trials": 1, "weight": 1.0, "calibration": False},
    ]
    assert told == [(2.0, {"lessons": documents}), (4.0, {"lessons": documents[:1]})]
    assert store.campaign("c1").updated_at == 4.0


def test_events_are_read_from_where_one_stopped(store: Store, make):
    make.running(store, "c1", trials=2)
    make.running(store, "c2", trials=1)
    every = store.events(None)
    assert [event.campaign_id for event in every] == ["c1", "c1", "c1", "c2", "c2"]
    assert [event.id for event in every] == sorted({event.id for event in every})
    assert store.events(None, after=every[1].id) == every[2:]
    assert store.events(None, after=every[1].id, limit=2) == every[2:4]
    assert store.events("c2", after=every[3].id) == every[4:]
    assert store.events(None, after=every[-1].id) == []


def test_a_reader_that_asks_for_what_came_after_misses_nothing(shared_url: str, make, monkeypatch):
    """Two processes' worth of writers: with ids in any other order than that of commits, this loses events."""
    monkeypatch.setattr(database, "LOCK_TIMEOUT_S", 100)  # of four writers one may be the last for long
    writers = [Store.open(shared_url) for _ in range(4)]
    done = threading.Event()
    seen: list[int] = []

    def follow() -> None:
        while not done.is_set():
            seen.extend(event.id for event in reader.events(None, after=seen[-1] if seen else 0))

    def write(number: int) -> None:
        make.running(writers[number], f"c{number}", trials=8)
        for trial in range(8):
            writers[number].mark_submitted(f"c{number}", trial, "j", now=1.0)

    with Store.open(shared_url) as reader:
        following = threading.Thread(target=follow)
        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        following.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        done.set()
        following.join(60)
        seen.extend(event.id for event in reader.events(None, after=seen[-1] if seen else 0))
        assert seen == [event.id for event in reader.events(None)]
        assert len(seen) == 4 * (1 + 8 + 8)
    for writer in writers:
        writer.close()


def test_what_an_event_tells_comes_back_as_it_was_told(store: Store, make):
    make.running(store)
    reason = "half a surrogate \udc80, a NUL \0, 1/3 and \u00e4"
    store.move_campaign("c1", CampaignState.FAILED, reason=reason, now=2.0)
    assert store.events("c1")[-1].data["reason"] == reason
