"""Earlier campaigns are found by device and workload, and what is learnt from them is kept with the campaign."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import text

from meshtune.tuner.campaign.campaign import Lesson
from meshtune.tuner.campaign.spec import Backend
from meshtune.tuner.store import Store

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
        {"campaign_id": "old", "trials": 20, "weight": 0.35},
        {"campaign_id": "older", "trials": 1, "weight": 1.0},
    ]
    assert told == [(2.0, {"lessons": documents}), (4.0, {"lessons": documents[:1]})]
    assert store.campaign("c1").updated_at == 4.0
