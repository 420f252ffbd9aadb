"""What REST shows of trials: every number of a measurement, typed; several side by side; and the runs that confirm the
best plans."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from meshtune.runners.base import Cause
from meshtune.runners.hardware import HardwareKind
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Lesson
from meshtune.tuner.campaign.trial import Attempt, Choice, Expectation, Origin, Trial, TrialState
from meshtune.tuner.service.views.trials import trial_view


@pytest.fixture
def trial():
    def build(*outcomes: Outcome) -> Trial:
        attempts = tuple(
            Attempt(number=number, job_name=f"j{number}", state=TrialState.DONE, planned_at=0.0, outcome=outcome)
            for number, outcome in enumerate(outcomes, start=1)
        )
        return Trial(campaign_id="c", number=0, plan=Plan(), origin=Origin.SEARCH, attempts=attempts)

    return build


def test_a_measurement_shows_mfu_memory_held_and_where_the_time_went(client, create, drive):
    id = create()
    drive(id)
    measured = client.get(f"/v1/campaigns/{id}/trials/0").json()["measurement"]
    assert measured["mfu"] == pytest.approx(measured["flops_per_s_per_device"] / 1e10)
    assert measured["peak_memory_bytes"] == [10**6] * 4
    assert measured["peak_held_bytes"] == [3 * 10**6] * 4
    profile = measured["profile"]
    assert profile["parts_s"] == [{"compute": pytest.approx(0.375), "dp": pytest.approx(0.125)}] * 4
    assert profile["waiting_s"] == [{"dp": 0.01}] * 4
    assert profile["own_time_s"] == [0.11, 0.11, 0.11, 0.22]
    assert profile["stages"] == [0] * 4
    step_s = measured["step_time_s"]
    assert (profile["serialised"], profile["exposed_s"]) == (
        False,
        [pytest.approx(max(0.0, step_s - own)) for own in profile["own_time_s"]],
    )
    assert profile["straggler"] == {"rank": 3, "ratio": pytest.approx(2.0)}


def test_a_measurement_shows_the_hardware_of_its_nodes(trial):
    kind = HardwareKind(device="NVIDIA H100 80GB HBM3", clock_mhz=1980, driver="550.54", nodes=("n0", "n1"))
    measured = Measurement(step_times_s=(1.0,), tokens_per_step=8, devices=2, hardware=(kind,))
    view = trial_view(trial(Outcome(verdict=Verdict.OK, measurement=measured)))
    assert view.measurement.hardware == (kind,)


def test_a_pruned_trial_shows_its_steps_apart_and_no_measurement(client, create, drive):
    id = create(space={"tp": [2], "pp": [2]}, budget={"trials": 2})
    drive(id)
    trial = client.get(f"/v1/campaigns/{id}/trials/1").json()
    assert (trial["verdict"], trial["measurement"]) == ("pruned", None)
    assert trial["partial"] == trial["attempts"][0]["partial"]
    assert trial["partial"]["steps"] == 3
    assert trial["partial"]["step_time_s"] == trial["partial"]["step_times_s"][0]
    best = client.get(f"/v1/campaigns/{id}/best").json()["best"]
    assert [entry["trial"] for entry in best] == [0]


def test_a_trial_that_was_lost_and_then_pruned_shows_the_steps_of_the_last_attempt(trial):
    losses = (2.0, float("nan"), float("inf"))
    pruned = Measurement(step_times_s=(0.5, 0.7, 0.6), tokens_per_step=8, devices=2, first_losses=losses)
    view = trial_view(trial(Outcome(verdict=Verdict.LOST), Outcome(verdict=Verdict.PRUNED, partial=pruned)))
    assert view.attempts[0].partial is None
    assert view.partial == view.attempts[1].partial
    assert (view.partial.steps, view.partial.step_time_s) == (3, 0.6)
    assert view.partial.first_losses == (2.0, None, None)  # what JSON cannot say is null


def test_the_best_say_their_speed_their_time_their_straggler_and_their_training(client, create, drive):
    id = create(budget={"trials": 12})
    drive(id)
    entry = client.get(f"/v1/campaigns/{id}/best").json()["best"][0]
    assert entry["tflops_per_device"] == pytest.approx(2048 / entry["step_time_s"] / 4 * 1e6 / 1e12)
    parts = {part["part"]: (part["time_s"], part["share"]) for part in entry["time_by_part"]}
    assert parts["compute"][1] == pytest.approx(0.75)
    assert parts["dp"][1] == pytest.approx(0.25)
    assert parts["dp"][0] == pytest.approx(parts["compute"][0] / 3)
    assert entry["straggler"]["rank"] == 3
    assert entry["trains_as_baseline"] is True


def test_an_attempt_shows_why_it_failed_and_where(trial):
    lost = Outcome(verdict=Verdict.LOST, cause=Cause.PREEMPTION, reason="gone")
    shown = trial(lost, Outcome(verdict=Verdict.OOM), Outcome(verdict=Verdict.CANCELLED))
    first = replace(shown.attempts[0], avoid=("n9",), nodes=("n1", "n2"), failed_nodes=("n2",))
    attempts = trial_view(replace(shown, attempts=(first, *shown.attempts[1:]))).attempts
    assert [attempt.failure for attempt in attempts] == [Cause.PREEMPTION, Cause.OOM, None]
    assert (attempts[0].avoid, attempts[0].nodes, attempts[0].failed_nodes) == (("n9",), ("n1", "n2"), ("n2",))
    assert (attempts[1].avoid, attempts[1].nodes, attempts[1].failed_nodes) == ((), (), ())


@pytest.fixture
def shown(client, create, drive):
    """The campaign, and its comparison of these trials."""
    id = create(budget={"trials": 40})
    drive(id)

    def compare(*numbers):
        return client.get(f"/v1/campaigns/{id}/trial-comparison", params={"trial": list(numbers)})

    compare.trials = client.get(f"/v1/campaigns/{id}/trials", params={"page_size": 200}).json()["trials"]
    return compare


def test_trials_are_compared_by_what_differs_by_their_numbers_and_by_time(shown):
    failed = next(trial for trial in shown.trials if trial["verdict"] == "oom")
    other = next(trial for trial in shown.trials[1:] if trial["verdict"] == "ok")
    found = shown(failed["number"], 0, other["number"]).json()
    assert found["simulated"] is False
    assert [one["trial"] for one in found["trials"]] == [failed["number"], 0, other["number"]]
    whole = [failed, shown.trials[0], other]
    told = {row["name"]: row["values"] for row in found["differences"]}
    assert told["tp"] == [trial["plan"]["tp"] for trial in whole]
    for name in whole[0]["plan"]:
        values = [trial["plan"][name] for trial in whole]
        assert (name in told) == (values != [values[0]] * 3), name
    without, first, second = found["trials"]
    assert (without["verdict"], without["objective"], without["relative"], without["parts"]) == ("oom", None, None, [])
    assert first["relative"] == 1
    assert second["relative"] == pytest.approx(first["step_time_s"] / second["step_time_s"])
    assert second["step_time_s"] == other["measurement"]["step_time_s"]
    assert [part["part"] for part in first["parts"]] == ["compute", "dp"]


def test_too_few_too_many_and_unknown_trials_are_refused(shown, problem):
    for numbers in ((0,), range(6), (0, -1)):
        problem(shown(*numbers), 422, "/problems/malformed-request")
    problem(shown(0, 999), 404, "/problems/not-found")


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
