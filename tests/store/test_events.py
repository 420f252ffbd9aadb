import threading

from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.store import Store, database


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
