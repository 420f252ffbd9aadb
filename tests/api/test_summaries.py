"""A summary is counted once for each change of its campaign; one of a campaign that is over outlives the service."""

from jobs import wait_for
from sqlalchemy import delete

from meshtune.api.reading import Reading
from meshtune.api.summaries import TOP, Summaries, summary_of
from meshtune.tuner.store import tables


def forget_trials(store) -> None:
    """Whoever counts them again from now on comes to another summary."""
    with store._database.writing() as connection:
        for table in (tables.steps, tables.measurements, tables.attempts, tables.trials):
            connection.execute(delete(table))


def test_a_summary_is_counted_once_for_each_change(service, create):
    store, id = service.store, create()
    summaries = Summaries(store)
    while not store.trials(id):
        service.tick(id)
    campaign, event = store.campaign(id), store.pages.newest_event(id)
    before = summaries.of(campaign, event)
    forget_trials(store)
    assert summaries.of(campaign, event) is before
    assert summaries.of(campaign, event + 1).trials == {}


def test_the_next_service_finds_the_summary_of_a_campaign_that_is_over(service, over):
    store = service.store
    campaign, event = store.campaign(over), store.pages.newest_event(over)
    right = summary_of(store, campaign)
    first = Summaries(store)
    first.start()
    wait_for(lambda: store.summaries.kept([over]), limit_s=30)
    assert first.stop(30)
    forget_trials(store)
    assert Summaries(store).of(campaign, event) == right
    assert Summaries(store).of(campaign, event + 1) != right


def test_a_campaign_that_ends_meanwhile_is_kept_when_it_is_asked_for(service, create, drive):
    store = service.store
    summaries = Summaries(store)
    summaries.start()
    id = create()
    drive(id)
    summaries.of(store.campaign(id), store.pages.newest_event(id))
    wait_for(lambda: store.summaries.kept([id]), limit_s=30)
    assert summaries.stop(30)


def test_a_campaign_that_ends_meanwhile_is_made_before_anybody_asks(service, create, drive, monkeypatch):
    monkeypatch.setattr("meshtune.api.summaries.ENDED_EVERY_S", 0.01)
    store, told = service.store, []
    summaries = Summaries(store, over=told.append)
    id = create()
    summaries.start()
    wait_for(lambda: summaries._kept.get(id, store.pages.newest_event(id)), limit_s=30)
    assert told == []
    drive(id)
    wait_for(lambda: store.summaries.kept([id]) and told == [id], limit_s=30)
    assert summaries.stop(30)


def test_a_shortlist_is_made_once_for_all_that_rest_on_it(service, over):
    store = service.store
    reading = Reading(store)
    campaign, event = store.campaign(over), store.pages.newest_event(over)
    few = reading.summaries.shortlist(campaign, event, 0)
    forget_trials(store)
    assert reading.summaries.shortlist(campaign, event, TOP) is few
    assert reading.summaries.of(campaign, event).best.trial == few.ranking[0].trial.number
    assert reading.summaries.shortlist(campaign, event + 1, TOP).trials == ()


def test_what_goes_on_is_made_ahead_and_not_written(service, create, over):
    store, id = service.store, create()
    summaries = Summaries(store)
    summaries.start()
    wait_for(lambda: store.summaries.kept([over]), limit_s=30)
    wait_for(lambda: summaries._kept.get(id, store.pages.newest_event(id)), limit_s=30)
    assert summaries.stop(30)
    assert store.summaries.kept([id]) == {}
