"""A page of briefs is written without its model, and says what the model says."""

import json
from dataclasses import asdict

import pytest
from pydantic import TypeAdapter

from meshtune.api.schemas.trial_brief import TrialBriefPage, brief_page
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.digest import Digest
from meshtune.tuner.campaign.listing import TrialsWanted
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.trial_brief import Brief

MODEL = TypeAdapter(TrialBriefPage)
EXPECTED = {
    "step_time_s": 0.5,
    "step_time_low_s": 0.4,
    "step_time_high_s": 0.6,
    "p_fits": 0.9,
    "gain": 0.0,
    "peak_bytes": 1e9,
}


@pytest.fixture
def briefs(service, create, drive):
    """Of a campaign that is over, with its id."""
    id = create()
    drive(id)
    return id, service.store.pages.briefs(id, TrialsWanted())


def brief(**over) -> Brief:
    values = {
        "number": 7,
        "origin": "search",
        "state": "planned",
        "verdict": None,
        "failure": None,
        "reason": "",
        "plan": Plan(tp=2).as_dict(),
        "plan_key": "tp2",
        "measurement": None,
        "expectation": EXPECTED,
        "held_s": 0.0,
        "attempts": 1,
        "nodes": (),
        "planned_at": 1.25e9 + 0.123456,
        "submitted_at": None,
        "started_at": None,
        "finished_at": None,
        "value": None,
    }
    return Brief(**{**values, **over})


def as_the_model_writes(body: bytes):
    return json.loads(MODEL.dump_json(MODEL.validate_json(body)))


def test_a_page_is_what_its_model_would_write(service, briefs):
    id, found = briefs
    body = brief_page(service.store.campaign(id).spec, found, "next")
    assert json.loads(body) == as_the_model_writes(body)
    assert [list(line) for line in json.loads(body)["trials"]] == [
        list(line) for line in as_the_model_writes(body)["trials"]
    ]
    assert json.loads(body)["next_page_token"] == "next"


def test_a_line_says_what_the_whole_trial_says(service, briefs):
    id, found = briefs
    spec = service.store.campaign(id).spec
    lines = MODEL.validate_json(brief_page(spec, found, None)).trials
    trials = service.store.trials(id)
    for line, trial in zip(lines, trials, strict=True):
        assert (line.number, line.origin, line.state, line.verdict) == (
            trial.number,
            trial.origin,
            trial.state,
            trial.verdict,
        )
        assert (line.plan, line.plan_key, line.failure) == (trial.plan, trial.plan.key, trial.outcome.failure)
        assert line.device_seconds == sum(attempt.running_s for attempt in trial.attempts) * spec.cluster.devices
        assert line.finished_at.timestamp() == pytest.approx(trial.last.finished_at, abs=1e-6)
        if (measured := trial.measurement) is None:
            assert line.step_time_s is line.objective is line.peak_memory_bytes is line.headroom_bytes is None
            continue
        assert line.step_time_s == measured.step_time_s
        assert asdict(line.objective) == asdict(yardstick_of(spec).reached(measured))
        assert line.tokens_per_s_per_device == measured.tokens_per_s_per_device
        assert line.peak_memory_bytes == max(measured.peak_memory_bytes)
        assert line.headroom_bytes == spec.cluster.device.memory_bytes - measured.fullest_rank_bytes


def test_expectations_nodes_and_times_are_what_the_model_would_write(service, create):
    spec = service.store.campaign(create()).spec
    lines = [brief(), brief(expectation=None, nodes=("a", "b"), submitted_at=1.25e9)]
    body = brief_page(spec, lines, None)
    assert json.loads(body) == as_the_model_writes(body)
    first, second = json.loads(body)["trials"]
    assert (first["expectation"], second["expectation"], second["nodes"]) == (EXPECTED, None, ["a", "b"])


def test_a_number_that_json_cannot_say_is_null(service, create):
    spec = service.store.campaign(create()).spec
    tiny = Digest(step_times_s=(), tokens_per_step=2**40, devices=1, median_s=5e-324, low_s=5e-324, high_s=5e-324)
    (line,) = json.loads(brief_page(spec, [brief(measurement=tiny)], None))["trials"]
    assert line["tokens_per_s_per_device"] is None
    assert line["headroom_bytes"] is None
