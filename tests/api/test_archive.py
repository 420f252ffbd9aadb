"""Answers about campaigns that are over outlive the service, and go with what they were made of."""

import pytest
from jobs import wait_for
from sqlalchemy import delete, update

from meshtune.api.reading import Reading
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.store import tables
from meshtune.tuner.store.answers import KeptAnswer

PATHS = {"best": Reading.best, "pareto": Reading.pareto, "analysis": Reading.analysis}


@pytest.fixture
def reading(service):
    """One that writes, until the end of the test."""
    made = Reading(service.store)
    made.start()
    yield made
    assert made.stop(30)


def forget_trials(store) -> None:
    """Whoever looks at them from now on comes to another answer."""
    with store._database.writing() as connection:
        for table in (tables.steps, tables.measurements, tables.attempts, tables.trials):
            connection.execute(delete(table))


@pytest.mark.parametrize("question", PATHS)
def test_the_next_service_finds_the_answers_about_a_campaign_that_is_over(service, over, reading, question):
    store, ask = service.store, PATHS[question]
    right = ask(reading, over)
    wait_for(lambda: store.answers.kept(over, question), limit_s=30)
    forget_trials(store)
    assert ask(Reading(store), over) == right
    with store._database.writing() as connection:
        connection.execute(update(tables.answers).values(event=1))
    assert ask(Reading(store), over) != right


def test_the_best_of_a_campaign_that_is_over_is_made_ahead(service, over, reading):
    wait_for(lambda: service.store.answers.kept(over, "best"), limit_s=30)


def test_another_number_of_first_places_is_not_kept(service, over, reading):
    reading.best(over, 3)
    reading.pareto(over)
    wait_for(lambda: service.store.answers.kept(over, "pareto"), limit_s=30)
    with service.store._database.reading() as connection:
        asked = set(connection.scalars(tables.answers.select().with_only_columns(tables.answers.c.question)))
    assert asked <= {"best", "pareto"}


def test_what_goes_on_is_not_kept(service, create, over, reading):
    store, id = service.store, create()
    service.tick(id)
    reading.best(id)
    reading.pareto(over)
    wait_for(lambda: store.answers.kept(over, "pareto"), limit_s=30)
    assert store.answers.kept(id, "best") is None


def test_a_job_that_begins_to_run_leaves_an_analysis_as_it_is(service, create, runner):
    runner.hold = True
    store, id = service.store, create()
    reading = Reading(store)
    while not store.trials(id):
        service.tick(id)
    first, planned = reading.analysis(id), store.pages.newest_event(id)
    while store.trials(id)[0].state is not TrialState.RUNNING:
        service.tick(id)
    since = {event.kind for event in store.events(id, after=planned)}
    assert since == {"trial.submitted", "trial.running"}
    assert reading.known_analysis(id) is first


def test_kept_answers_go_with_their_campaign_and_with_another_meshtune(service, over):
    answers, kept = service.store.answers, KeptAnswer(7, 'W/"a"', b"packed")
    answers.keep({(over, "best"): kept, (over, "pareto"): kept, ("gone", "best"): kept})
    assert answers.kept(over, "best") == answers.kept(over, "pareto") == kept
    assert answers.kept("gone", "best") is None
    newer = KeptAnswer(8, 'W/"b"', b"other")
    answers.keep({(over, "best"): newer})
    assert (answers.kept(over, "best"), answers.kept(over, "pareto")) == (newer, kept)
    with service.store._database.writing() as connection:
        connection.execute(update(tables.answers).where(tables.answers.c.question == "best").values(made_by="0.0.1"))
    assert answers.kept(over, "best") is None
    service.store.remove_campaign(over)
    assert answers.kept(over, "pareto") is None
