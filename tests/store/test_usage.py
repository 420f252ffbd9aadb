"""What campaigns have in flight and used, where nodes failed, and that one place is given once."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from meshtune.runners.base import Cause
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.tuner.access.quotas import ALIVE_S, CLAIM_S, RECENT_S, Demand, ServiceLimits
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.spec import TrialLimits
from meshtune.tuner.store import NotFound, Store
from meshtune.tuner.store.usage import GRACE_S

LIMIT_S = 300.0
DEVICES = 8  # of the spec: 2 nodes of 4


def lost(*nodes, now=50.0):
    outcome = Outcome(verdict=Verdict.LOST, cause=Cause.NODE_FAULT, reason="gone")
    return {"outcome": outcome, "nodes": ("n0", *nodes), "failed_nodes": nodes, "finished_at": now, "now": now}


def test_nodes_and_causes_are_kept_and_told(store: Store, make):
    make.running(store)
    store.mark_submitted("c1", 0, "7", avoid=("n8", "n9"), now=1.0)
    store.mark_running("c1", 0, started_at=2.0, nodes=("n1", "n2"), now=3.0)
    trial = store.trial("c1", 0)
    assert (trial.last.avoid, trial.last.nodes, trial.last.failed_nodes) == (("n8", "n9"), ("n1", "n2"), ())
    outcome = Outcome(verdict=Verdict.CRASHED, cause=Cause.HANG, reason="no collective ended")
    store.finish("c1", 0, outcome, started_at=None, finished_at=9.0, failed_nodes=("n2",), now=9.0)
    trial = store.trial("c1", 0)
    assert trial.outcome == outcome
    assert (trial.last.nodes, trial.last.failed_nodes) == (("n1", "n2"), ("n2",))
    submitted, running, done = (
        event.data for event in store.events("c1") if event.data.get("attempt") and "plan" not in event.data
    )
    assert submitted["avoid"] == ["n8", "n9"]
    assert (running["nodes"], done["nodes"], done["failed_nodes"]) == (["n1", "n2"], ["n1", "n2"], ["n2"])
    assert done["failure"] == "hang"


def test_failures_of_nodes_are_counted_by_device_and_age(store: Store, make):
    make.running(store, "a", trials=3)
    make.running(store, "b", trials=1)
    other = make.campaign("other")
    cluster = replace(other.spec.cluster, device=replace(other.spec.cluster.device, name="H100"))
    store.create_campaign(replace(other, spec=replace(other.spec, cluster=cluster)))
    for id, number, entry in (
        ("a", 0, lost("n1", "n2")),
        ("a", 1, lost("n2", now=60.0)),
        ("a", 2, lost(now=60.0)),
        ("b", 0, lost("n2", now=70.0)),
    ):
        store.finish(id, number, started_at=1.0, **entry)
    assert store.node_faults("H200", 0.0) == {"n1": 1, "n2": 3}
    assert store.node_faults("H200", 60.0) == {"n2": 2}
    assert store.node_faults("H100", 0.0) == {}


def demand(store, id="c1", now=200.0, asking=""):
    return next(one for one in store.demands(asking, now) if one.campaign_id == id)


def test_a_campaign_that_searches_wants_what_its_spec_allows(store: Store, make):
    store.create_campaign(make.campaign())
    expected = Demand(campaign_id="c1", devices=DEVICES, in_flight=0, wanted=2, used_device_s=0.0)
    assert demand(store) == expected
    store.plan_trials("c1", make.choices(1), make.origin, now=101.0)
    assert demand(store) == expected


def test_after_its_search_a_campaign_wants_what_is_planned_as_far_as_it_may_run_at_once(store: Store, make):
    make.running(store, trials=3)  # two at once
    store.end_search("c1", "enough", now=150.0)
    assert (demand(store).in_flight, demand(store).wanted) == (0, 2)
    store.mark_submitted("c1", 0, "7", now=160.0)
    assert (demand(store).in_flight, demand(store).wanted) == (1, 2)
    store.finish("c1", 0, make.ok(), started_at=161.0, finished_at=170.0, now=170.0)
    store.finish("c1", 1, make.ok(), started_at=161.0, finished_at=170.0, now=170.0)
    assert (demand(store).in_flight, demand(store).wanted) == (0, 1)


def test_a_paused_campaign_has_what_runs_and_wants_no_more(store: Store, make):
    make.running(store, trials=2)
    store.mark_submitted("c1", 0, "7", now=160.0)
    store.move_campaign("c1", CampaignState.PAUSED, reason="paused", now=170.0)
    assert (demand(store).in_flight, demand(store).wanted) == (1, 1)
    store.move_campaign("c1", CampaignState.CANCELLING, reason="no", now=171.0)
    store.move_campaign("c1", CampaignState.CANCELLED, reason="no", now=172.0)
    assert store.demands("", 200.0) == []


def test_a_campaign_that_nobody_works_on_wants_nothing_and_its_jobs_count_while_they_may_run(store: Store, make):
    campaign = make.campaign()
    limits = TrialLimits(time_limit_s=LIMIT_S)
    store.create_campaign(replace(campaign, spec=replace(campaign.spec, trial=limits)))
    store.plan_trials("c1", make.choices(1), make.origin, now=100.0)
    store.mark_submitted("c1", 0, "7", now=100.0)
    assert (demand(store, now=99.0 + ALIVE_S).wanted, demand(store, now=100.0 + ALIVE_S).wanted) == (2, 1)
    assert demand(store, now=100.0 + ALIVE_S, asking="c1").wanted == 2
    ends = 100.0 + LIMIT_S + GRACE_S
    assert (demand(store, now=ends - 1).in_flight, demand(store, now=ends).in_flight) == (1, 0)
    store.mark_running("c1", 0, started_at=250.0, now=250.0)
    assert demand(store, now=ends).in_flight == 1
    assert demand(store, now=10**6).in_flight == 0
    assert demand(store, now=10**6, asking="c1").in_flight == 1
    # It counts for as long as somebody saw it run, whatever the clock on the wall says.
    store.add_elapsed("c1", 10.0, 260.0, {"c1-t0000-a1": 10.0})
    assert store.spent_device_s(0.0, 10**6) == store.spent_device_s(0.0, 260.0) == DEVICES * 10.0
    assert store.spent_device_s(255.0, 260.0) == DEVICES * 5.0
    assert store.trial("c1", 0).last.running_s == 10.0


def test_what_was_used_counts_from_when_the_youngest_came(store: Store, make):
    make.running(store, "old", trials=2)
    store.finish("old", 0, make.ok(), started_at=110.0, finished_at=150.0, now=150.0)
    store.mark_submitted("old", 1, "8", now=150.0)
    store.mark_running("old", 1, started_at=160.0, now=160.0)
    store.add_elapsed("old", 40.0, 200.0, {"old-t0001-a1": 40.0})
    assert demand(store, "old", now=200.0).used_device_s == DEVICES * (40.0 + 40.0)
    store.create_campaign(make.campaign("young", created_at=140.0))
    assert demand(store, "old", now=200.0).used_device_s == DEVICES * (10.0 + 40.0)
    assert demand(store, "old", now=200.0).used_device_s > demand(store, "young", now=200.0).used_device_s == 0.0
    store.move_campaign("young", CampaignState.PAUSED, reason="paused", now=190.0)
    assert demand(store, "old", now=200.0).used_device_s == DEVICES * (40.0 + 40.0)


def test_what_was_used_long_ago_is_forgotten(store: Store, make):
    make.running(store)
    store.finish("c1", 0, make.ok(), started_at=110.0, finished_at=150.0, now=150.0)
    assert demand(store, now=140.0 + RECENT_S).used_device_s == DEVICES * 10.0
    assert demand(store, now=160.0 + RECENT_S).used_device_s == 0.0


def test_device_hours_are_added_up_over_all_campaigns_within_the_window(store: Store, make):
    for id in ("a", "b"):
        make.running(store, id, trials=2)
        store.finish(id, 0, make.ok(), started_at=110.0, finished_at=150.0, now=150.0)
        store.finish(id, 1, Outcome(verdict=Verdict.CANCELLED), started_at=None, finished_at=160.0, now=160.0)
    store.move_campaign("a", CampaignState.FAILED, reason="no", now=170.0)
    assert store.spent_device_s(0.0, 200.0) == 2 * DEVICES * 40.0
    assert store.spent_device_s(145.0, 200.0) == 2 * DEVICES * 5.0
    assert store.spent_device_s(150.0, 200.0) == 0.0


def test_a_place_is_given_once_however_many_ask(store: Store, make):
    ids = [f"c{number}" for number in range(6)]
    for id in ids:
        make.running(store, id)
    limits, answers = ServiceLimits(jobs=2), {}

    def ask(id):
        answers[id] = store.claim(id, 0, limits, now=110.0)

    threads = [threading.Thread(target=ask, args=(id,)) for id in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(answers.values()) == 2
    assert sum(one.in_flight for one in store.demands("", 110.0)) == 2
    held = [id for id in ids if answers[id]]
    assert all(store.claim(id, 0, limits, now=111.0) for id in held)
    assert sum(one.in_flight for one in store.demands("", 111.0 + CLAIM_S)) == 0


def test_a_campaign_that_is_not_running_gets_no_place(store: Store, make):
    make.running(store)
    store.move_campaign("c1", CampaignState.CANCELLING, reason="no", now=105.0)
    assert store.claim("c1", 0, ServiceLimits(jobs=9), now=110.0) is False
    with pytest.raises(NotFound):
        store.claim("c1", 7, ServiceLimits(jobs=9), now=110.0)
