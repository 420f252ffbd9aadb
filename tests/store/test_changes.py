"""What people do to a campaign beside moving it, in the store: whole or not at all, and once for each request."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.spec import Budget
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.store import AlreadyExists, BudgetSpent, IllegalMove, NotFound, Store

OTHER = Plan(dp=8, micro_batch_size=99)


def test_a_change_is_kept_with_one_event_and_no_change_has_none(store: Store, make):
    make.running(store, trials=2)
    seen = []

    def change(campaign, trials):
        seen.append(len(trials))
        spec = replace(campaign.spec, name="new", budget=Budget(trials=30))
        return replace(campaign, spec=replace(spec, tags=("a", "b_c"), notes="x\0y"))

    changed = store.change_campaign("c1", change, now=200.0)
    assert (changed.spec.name, changed.spec.budget, changed.spec.tags) == ("new", Budget(trials=30), ("a", "b_c"))
    assert (changed.spec.notes, changed.updated_at, store.campaign("c1")) == ("x\ufffdy", 200.0, changed)
    event = store.events("c1")[-1]
    assert (event.kind, event.data["name"], event.data["tags"]) == ("campaign.changed", "new", ["a", "b_c"])
    store.change_campaign("c1", lambda campaign, _: campaign, now=300.0)
    assert (store.events("c1")[-1], store.campaign("c1").updated_at, seen) == (event, 200.0, [2])
    with pytest.raises(NotFound):
        store.change_campaign("c9", change, now=1.0)


def test_of_changes_at_once_none_is_lost(shared_url: str, make):
    with Store.open(shared_url) as store, Store.open(shared_url) as other:
        store.create_campaign(make.campaign())

        def tag(which: Store, name: str) -> None:
            for number in range(10):

                def add(campaign: Campaign, _: object, word: str = f"{name}{number}") -> Campaign:
                    spec = campaign.spec
                    return replace(campaign, spec=replace(spec, tags=(*spec.tags, word)))

                which.change_campaign("c1", add, now=200.0)

        threads = [threading.Thread(target=tag, args=each) for each in ((store, "a"), (other, "b"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(store.campaign("c1").spec.tags)) == 20


def test_a_plan_by_hand_is_numbered_on_and_counts_for_the_budget(store: Store, make):
    make.running(store, trials=2)
    made = store.enqueue_trial("c1", OTHER, now=200.0)
    assert (made.number, made.origin, store.trial("c1", 2)) == (2, Origin.ENQUEUED, made)
    with pytest.raises(AlreadyExists, match="as trial 2"):
        store.enqueue_trial("c1", OTHER, now=201.0)
    store.repeat_plans("c1", [OTHER], now=202.0)
    store.change_campaign("c1", lambda campaign, _: _with_trials(campaign, 4), now=202.0)
    assert [
        trial.number
        for trial in store.plan_trials("c1", make.choices(5, first=3), Origin.SEARCH, within_budget=True, now=203.0)
    ] == [4]
    assert len(store.trials("c1")) == 5, "second runs are not counted, what is beyond is left out"
    with pytest.raises(BudgetSpent, match="all 4 trials of campaign c1's budget"):
        store.enqueue_trial("c1", Plan(dp=8, micro_batch_size=98), now=205.0)
    store.move_campaign("c1", CampaignState.PAUSED, reason="", now=206.0)
    store.change_campaign("c1", lambda campaign, _: _with_trials(campaign, 5), now=207.0)
    store.enqueue_trial("c1", Plan(dp=8, micro_batch_size=98), now=208.0)


def _with_trials(campaign, trials):
    return replace(campaign, spec=replace(campaign.spec, budget=Budget(trials=trials)))


def test_second_runs_by_request_are_a_round_of_their_own_and_set_a_complete_campaign_running(store: Store, make):
    make.running(store, trials=2)
    plans = [trial.plan for trial in store.trials("c1")]
    for number in (0, 1):
        store.finish("c1", number, make.ok(), started_at=110.0, finished_at=120.0, now=120.0)
    store.move_campaign("c1", CampaignState.COMPLETED, reason="done", now=130.0)
    with pytest.raises(IllegalMove, match="raise its budget first"):
        store.enqueue_trial("c1", OTHER, now=131.0)
    first = store.repeat_plans("c1", plans, now=140.0)
    second = store.repeat_plans("c1", plans[1:], now=150.0)
    assert [(trial.number, trial.round, trial.origin) for trial in (*first, *second)] == [
        (2, 1, Origin.CONFIRMATION), (3, 1, Origin.CONFIRMATION), (4, 2, Origin.CONFIRMATION),
    ]  # fmt: skip
    campaign = store.campaign("c1")
    assert (campaign.state, campaign.reason, campaign.running_since) == (CampaignState.RUNNING, "", 140.0)
    assert [event.kind for event in store.events("c1")][-4:] == ["campaign.running", *["trial.planned"] * 3]


def test_a_request_that_comes_again_finds_what_it_did(store: Store, make):
    make.running(store, trials=1)
    keys = store.access.keys
    for key, act in (
        ("one", lambda: [store.enqueue_trial("c1", OTHER, now=200.0)]),
        ("two", lambda: store.repeat_plans("c1", [OTHER], now=201.0)),
    ):
        keys.claim("me", key, "", "holder", 200.0)
        with keys.acting("me", key):
            assert act() == act()
    assert len(store.trials("c1")) == 3


def test_the_text_of_a_spec_is_kept_whole_and_goes_with_its_campaign(store: Store, make):
    text = "# a comment\n" + "x" * 100_000
    store.create_campaign(make.campaign(), text=text)
    assert (store.spec_text("c1"), store.spec_text("c2")) == (text, "")
    for state in (CampaignState.CANCELLING, CampaignState.CANCELLED):
        store.move_campaign("c1", state, reason="", now=1.0)
    store.remove_campaign("c1")
    assert store.spec_text("c1") == ""
