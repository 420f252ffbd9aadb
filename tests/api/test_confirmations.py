"""REST tells how a search ended, what it expected, and which trials measure the best plans once more."""

from dataclasses import asdict

from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Lesson
from meshtune.tuner.campaign.trial import Choice, Expectation, Origin

EXPECTATION = Expectation(
    step_time_s=1.0, step_time_low_s=0.5, step_time_high_s=2.0, p_fits=0.9, gain=0.03, peak_bytes=2.0**30
)


def test_a_campaign_says_what_its_search_said_last(client, create, service):
    id = create()
    fresh = client.get(f"/v1/campaigns/{id}").json()
    assert (fresh["search_ended"], fresh["chance_left"], fresh["lessons"]) == ("", None, [])
    service.store.plan_trials(id, [], Origin.SEARCH, chance_left=0.3, now=1.0)
    assert client.get(f"/v1/campaigns/{id}").json()["chance_left"] == 0.3
    service.store.keep_lessons(id, [Lesson(campaign_id="before-1", trials=12, weight=0.2)], now=1.0)
    learns = client.get(f"/v1/campaigns/{id}").json()["lessons"]
    assert learns == [{"campaign_id": "before-1", "trials": 12, "weight": 0.2, "calibration": False}]
    service.store.end_search(id, "enough", chance_left=0.01, now=2.0)
    ended = client.get(f"/v1/campaigns/{id}").json()
    assert (ended["state"], ended["search_ended"], ended["chance_left"]) == ("running", "enough", 0.01)


def test_a_trial_shows_what_was_expected_of_it(client, create, service):
    id = create()
    choices = [Choice(Plan(dp=4), EXPECTATION), Choice(Plan(tp=4))]
    service.store.plan_trials(id, choices, Origin.SEARCH, now=1.0)
    trials = client.get(f"/v1/campaigns/{id}/trials").json()["trials"]
    assert [trial["expectation"] for trial in trials] == [asdict(EXPECTATION), None]
