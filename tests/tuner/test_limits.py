"""Limits that follow from the prediction: what a spec leaves open, what cannot hold the baseline, and a late baseline.

A model of 70 B parameters on a simulated cluster, whose steps take 50 to 160 s: the default of 300 s timed all out.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from command_lab import shown

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.campaign.campaign import Campaign, CampaignState
from meshtune.tuner.campaign.second_runs import planned_runs
from meshtune.tuner.campaign.spec import document_of
from meshtune.tuner.campaign.trial import Trial, first_runs
from meshtune.tuner.cli.render.display import header, progress
from meshtune.tuner.cli.render.predictions import quote_parts
from meshtune.tuner.prediction.predict import Basis
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.document import InvalidSpec
from meshtune.tuner.specs.read import quoted, read_spec

pytestmark = pytest.mark.slow

SPEC = {
    "name": "big",
    "model": {"preset": "llama3-70b", "seq_len": 8192},
    "cluster": {"preset": "dgx-h100", "nodes": 8},
    "global_batch_size": 512,
    "space": {"recompute": ["full"]},
    "workload": {"kind": "simulated", "framework": "megatron-core"},
    "runner": {"kind": "simulated", "seed": 2},
    "baseline": {"tp": 8, "pp": 4, "micro_batch_size": 1, "zero_stage": 1, "recompute": "full"},
    "budget": {"trials": 6},
}
# Whose physics nobody named.
WORDS = ["x", "{tp}", "{micro_batch_size}", "{grad_accum_steps}"]
PROGRAM = {"workload": {"kind": "command", "command": WORDS}, "runner": "local", "baseline": None, "space": {}}
SHORT = "trial.time_limit_s: 300 s cannot hold the baseline: 13 steps of 97.94 s (63.66 to 150.7) and 120 s of start; "


def driven(service: Service, id: str) -> tuple[Campaign, list[Trial]]:
    drive_one(Driver(service), service, id, lambda: None)
    return service.store.campaign(id), service.store.trials(id)


def quote(basis=None, **over):
    document = {**SPEC, **over}
    return quoted(document, *read_spec(document, None), basis or Basis())


# The time of a trial


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_a_trial_has_time_for_its_predicted_steps(service, seed):
    campaign, trials = driven(service, service.create({**SPEC, "runner": {"kind": "simulated", "seed": seed}}).id)
    assert campaign.spec.trial.time_limit_s == quote().limits.time_limit_s > 20 * 103 + 120
    assert [trial.verdict for trial in trials if trial.verdict is Verdict.TIMED_OUT] == []
    assert sum(trial.measurement is not None for trial in trials) > 6


def test_the_limits_are_shown_and_stand_in_the_spec_as_if_they_had_been_written(service):
    found = quote()
    text = shown(*quote_parts(found), soft_wrap=True)
    assert all(words in text for words in found.limits.words)
    assert f"trial.time_limit_s {found.limits.time_limit_s:g}" in found.limits.words[0]
    assert "trial.time_limit_s 1000000: " in quote(trial={"time_limit_s": 1_000_000}).limits.words[0]
    campaign = service.create(SPEC)
    document = document_of(campaign.spec)
    assert document["trial"]["time_limit_s"] == found.limits.time_limit_s
    assert document["budget"]["device_hours"] == found.limits.device_hours
    assert service.create(document).spec == campaign.spec
    assert "a trial may take 1 h" in header(campaign)
    assert "device-hours" in header(campaign)


@pytest.mark.parametrize(
    ("over", "limit_s", "words"),
    [
        ({"trial": {"time_limit_s": 5000}}, 5000, "as the spec states"),
        ({"trial": {"time_limit_cap_s": 3000}}, 3000, "cut off by trial.time_limit_cap_s"),
        ({"model": "gpt-micro", "baseline": None}, 300, "for the slowest plan that may be the best"),
        ({**PROGRAM}, 300, "the default, since the steps of command are open"),
        ({**PROGRAM, "trial": {"start_s": 300}}, 900, "the default"),
        ({**PROGRAM, "trial": {"start_s": 10**9}}, 10**9, "the default"),
    ],
)
def test_a_limit_says_where_it_is_from(over, limit_s, words):
    limits = quote(**over).limits
    assert limits.time_limit_s == limit_s
    assert words in limits.words[0]


def test_a_program_that_is_told_its_steps_is_predicted_by_them():
    told = {**PROGRAM["workload"], "framework": "megatron-core-bfloat16", "steps": 40}
    found = quote(**PROGRAM | {"workload": told})
    assert found.cost.steps == (40, 40)
    assert "40 steps of" in found.limits.words[0]


def test_a_limit_that_cannot_hold_the_baseline_is_refused_with_the_numbers(service):
    document = {**SPEC, "trial": {"time_limit_s": 300}}
    for refuses in (lambda: quote(trial={"time_limit_s": 300}), lambda: service.create(document)):
        with pytest.raises(InvalidSpec) as error:
            refuses()
        assert str(error.value) == f"{SHORT}at least 1,400, better left out"
    assert service.campaigns(limit=1) == []


# A baseline that was late


def test_a_late_baseline_pauses_the_campaign_and_runs_again_under_a_larger_limit(service):
    # A run differs by what its job is named: with little noise 6 steps are never done by then, however alike they are.
    runner = {**SPEC["runner"], "noise": 0.005}
    id = service.create({**SPEC, "runner": runner, "trial": {"time_limit_s": 880}, "parallel": 1}).id
    campaign, trials = driven(service, id)
    assert (campaign.state, len(trials)) == (CampaignState.PAUSED, 1)
    assert re.search(r"limit of 880 s; 7 steps of [\d.]+ s each are done then; `meshtune edit", campaign.reason)
    with pytest.raises(InvalidValue, match="300 s cannot hold the baseline"):
        service.changing.change(id, {"trial": {"time_limit_s": 300}})
    own = campaign.spec.budget.device_hours
    service.changing.change(id, {"trial": {"time_limit_s": 4300}}, resume=True)
    campaign, trials = driven(service, id)
    assert campaign.state is CampaignState.COMPLETED
    # Those of the quote had been of trials that end after 880 s.
    assert campaign.spec.budget.device_hours == pytest.approx(own * 4300 / 880)
    assert own < quote().limits.device_hours < own * 4300 / 880
    events = [event.data for event in service.events(id, after=0, limit=999) if event.kind == "campaign.changed"]
    assert [event["trial"]["time_limit_s"] for event in events] == [4300]
    assert service.changing.change(id, {"trial": {"time_limit_s": 5000}}).state is CampaignState.COMPLETED
    assert [attempt.number for attempt in trials[0].attempts] == [1, 2]
    assert trials[0].verdict is Verdict.OK
    # Predicted alone, 13 steps take 873 s at the least; its own trials say more.
    with pytest.raises(InvalidValue, match="1,000 s cannot hold the baseline"):
        service.changing.change(id, {"trial": {"time_limit_s": 1000}})


def test_a_limit_that_is_taken_back_stays(service):
    id = service.create(SPEC).id
    before = service.campaign(id).spec.trial
    assert service.changing.change(id, {"trial": {"time_limit_s": None}}).spec.trial == before


def test_a_spec_made_of_another_has_the_limits_of_its_own_prediction(service):
    document = document_of(service.create(SPEC).spec)
    longer = {**document, "model": {**document["model"], "seq_len": 32768}}
    assert service.create(longer).spec.trial.limit_s > 3 * document["trial"]["time_limit_s"]
    id = service.create(SPEC).id
    stated = service.changing.change(id, {"trial": {"time_limit_s": 3600}})
    assert service.create(document_of(stated.spec)).spec.trial.limit_s == 3600
    with pytest.raises(InvalidSpec, match="3,600 s cannot hold the baseline"):
        service.create({**document_of(stated.spec), "model": longer["model"]})


# The quote


def test_a_quote_is_within_a_factor_of_three_and_a_campaign_within_its_limit(service):
    """Simulated: what jobs would have taken on that cluster."""
    cost = quote().cost
    assert cost.device_hours.low < cost.device_hours.p50 < cost.device_hours.high < 3 * cost.device_hours.low
    assert cost.wall_s.high < 3 * cost.wall_s.low
    assert cost.second_runs == (3, 4, 56)
    spent = []
    for seed in range(1, 11):
        _, trials = driven(service, service.create({**SPEC, "runner": {"kind": "simulated", "seed": seed}}).id)
        steps = [trial.measurement for trial in trials if trial.measurement is not None]
        spent.append(sum(120 + sum(one.step_times_s) + sum(one.warmup_times_s) for one in steps) * 64 / 3600)
    assert quote().limits.device_hours > max(spent)
    assert cost.device_hours.low / 2 < np.median(spent) < cost.device_hours.p50


def test_what_was_stated_or_measured_takes_the_place_of_the_usual_start():
    usual, stated, measured = quote(), quote(trial={"start_s": 600}), quote(Basis(startup_s=20.0))
    assert [one.cost.startup_s for one in (usual, stated, measured)] == [120, 600, 20]
    assert stated.limits.time_limit_s > usual.limits.time_limit_s > measured.limits.time_limit_s


def test_device_hours_are_limited_unless_the_spec_states_them_or_lifts_them(service):
    own = quote().limits
    assert own.device_hours > quote().cost.device_hours.high
    assert "90th percentile" in own.words[1]
    assert quote(budget={"trials": 6, "device_hours": 7}).limits.device_hours == 7
    lifted = service.create({**SPEC, "budget": {"trials": 6, "device_hours": None}})
    assert lifted.spec.budget.device_hours is None
    assert service.create(document_of(lifted.spec)).spec == lifted.spec
    unknown = quote(**PROGRAM).limits
    assert (unknown.device_hours, unknown.words[1]) == (None, "no limit of device-hours, since none can be predicted")


def test_more_trials_later_raise_device_hours_that_nobody_stated(service):
    id = service.create(SPEC).id
    own = service.campaign(id).spec.budget.device_hours

    def hours(**patch: object) -> float:
        return service.changing.change(id, patch).spec.budget.device_hours

    # 3 second runs at the least, whatever the trials.
    assert hours(budget={"trials": 30}) == pytest.approx(own * 33 / 9)
    assert hours(budget={"trials": 3}) == pytest.approx(own * 6 / 9)
    assert hours(budget={"trials": 6}) == pytest.approx(own)
    for trials in (3, 30, 60):
        assert hours(budget={"trials": trials}) > quote(budget={"trials": trials}).cost.device_hours.high
    assert hours(budget={"device_hours": 9}) == 9
    assert hours(budget={"trials": 60}) == 9
    document = document_of(service.create(SPEC).spec)
    more = service.create({**document, "budget": {**document["budget"], "trials": 30}}).spec.budget.device_hours
    assert more == quote(budget={"trials": 30}).limits.device_hours > own


def test_second_runs_are_counted_from_the_start_on(service):
    campaign = service.create(SPEC)
    assert "6 trials and 3 to 56 second runs" in header(campaign)
    assert "0/6 trials, 0 of 3 to 56 second runs" in shown(progress(campaign, [], [], ""), soft_wrap=True)
    assert "6 trials and 3 to 56 second runs, likely 4;" in shown(*quote_parts(quote()), soft_wrap=True)
    alone = service.create({**SPEC, "baseline": None})
    assert "6 trials and 6 second runs" in header(alone)
    assert sum(trial.round > 0 for trial in driven(service, alone.id)[1]) == 6


@pytest.mark.parametrize(
    ("tp", "trials", "runs"),
    [([1, 2, 4], None, 3), ([2, 4], None, 3), ([1, 2, 4], 99, 3), ([2, 4], 99, 3), ([2, 4], 2, 2)],
)
def test_as_many_first_runs_are_planned_as_run(service, tp, trials, runs):
    """The baseline, tp 1, is in the space or not."""
    budget = {"wall_time_s": 1000} if trials is None else {"trials": trials}
    micro = {
        "model": "gpt-micro",
        "cluster": {"preset": "dgx-h100", "nodes": 1, "devices_per_node": 4},
        "global_batch_size": 16,
    }
    space = {"tp": tp, "pp": [1], "cp": [1], "micro_batch_size": [1], "zero_stage": [0], "recompute": ["none"]}
    document = SPEC | micro | {"space": space, "budget": budget, "workload": "simulated", "search": "grid"}
    document |= {"baseline": {"tp": 1, "micro_batch_size": 1}}
    campaign, found = driven(service, service.create(document).id)
    assert campaign.state is CampaignState.COMPLETED
    assert len(first_runs(found)) == planned_runs(campaign.spec, campaign.legal)[0] == runs
    assert quoted(document, *read_spec(document, None), Basis()).cost.first_runs == runs
