import threading
from itertools import count

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import CampaignState, Event
from meshtune.tuner.campaign.proposal import Choice
from meshtune.tuner.campaign.trial import Origin, TrialState
from meshtune.tuner.store import AlreadyExists, IllegalMove, NotFound, Store, database

_ids = count()

trial_numbers = st.integers(0, 3)
commands = st.one_of(
    st.tuples(st.just("plan"), st.lists(st.integers(1, 5), min_size=1, max_size=3)),
    st.tuples(st.just("attempt"), trial_numbers),
    st.tuples(st.just("submit"), trial_numbers),
    st.tuples(st.just("run"), trial_numbers),
    st.tuples(st.just("finish"), trial_numbers, st.sampled_from([Verdict.OK, Verdict.LOST, Verdict.OOM])),
    st.tuples(st.just("move"), st.sampled_from(CampaignState)),
)


def obey(store: Store, id: str, command: tuple, make) -> None:
    match command:
        case ("plan", degrees):
            store.plan_trials(id, [Choice(Plan(tp=tp)) for tp in degrees], Origin.SEARCH, now=1.0)
        case ("attempt", number):
            store.plan_attempt(id, number, now=1.0)
        case ("submit", number):
            store.mark_submitted(id, number, "j", now=1.0)
        case ("run", number):
            store.mark_running(id, number, started_at=1.0, now=1.0)
        case ("finish", number, verdict):
            store.finish(id, number, make.outcome(verdict), started_at=1.0, finished_at=2.0, now=2.0)
        case ("move", state):
            store.move_campaign(id, state, reason="", now=1.0)


def replay(events: list[Event]) -> tuple[CampaignState, dict[int, tuple[int, TrialState, Verdict | None]]]:
    """The state of a campaign and, by trial, its last attempt's number, state and verdict: told by the events alone."""
    campaign, trials = None, {}
    for event in events:
        if event.kind.startswith("campaign."):
            campaign = CampaignState(event.data["state"])
        else:
            verdict = event.data.get("verdict")
            trials[event.data["number"]] = (
                event.data["attempt"],
                TrialState(event.data["state"]),
                None if verdict is None else Verdict(verdict),
            )
    return campaign, trials


def rows(store: Store, id: str) -> tuple[CampaignState, dict[int, tuple[int, TrialState, Verdict | None]]]:
    trials = {trial.number: (trial.last.number, trial.state, trial.verdict) for trial in store.trials(id)}
    return store.campaign(id).state, trials


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(commands, min_size=3, max_size=20))
def test_the_events_replayed_give_what_the_rows_say_and_refusals_leave_no_trace(store: Store, make, script):
    id = f"h{next(_ids)}"
    store.create_campaign(make.campaign(id))
    for command in script:
        before = (store.campaign(id), store.trials(id), store.events(id))
        try:
            obey(store, id, command, make)
        except (AlreadyExists, IllegalMove, NotFound):
            assert (store.campaign(id), store.trials(id), store.events(id)) == before
        else:
            assert len(store.events(id)) > len(before[2])
    assert replay(store.events(id)) == rows(store, id)


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
