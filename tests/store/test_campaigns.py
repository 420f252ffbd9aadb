import pytest

from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.store import AlreadyExists, IllegalMove, NotFound, Store
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
