"""A whole analysis of made-up trials, where the answers are known, and of campaigns that hold little or nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import toy
from rich.console import Console

from meshtune.runners.documents import plain
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Expectation, Origin
from meshtune.tuner.cli.render.analysis import analysis_parts
from meshtune.tuner.results.analysis.analysis import analyse
from meshtune.tuner.results.analysis.knob_effects import Evidence
from meshtune.tuner.results.analysis.knob_importance import MIN_PLANS
from meshtune.tuner.specs.read import read_spec

SPEC = toy.SPEC | {
    "model": "gpt-micro",
    "space": {"tp": [1, 2, 4], "pp": [1], "micro_batch_size": [1, 2], "zero_stage": [0, 1]},
    "baseline": {"tp": 1, "pp": 1},
    "budget": {"trials": 20},
}
STEPS_S = {1: 2.0, 2: 1.0, 4: 1.25}


@pytest.fixture
def analysed(make):
    """The analysis of trials of the spec's plans, in the order of the space; the first is the baseline."""

    def build(outcome, *, count=None, change=lambda trials: trials, **over):
        spec, space = read_spec({**SPEC, **over}, None)
        trials = [
            make.trial(
                number,
                outcome(plan),
                plan=plan,
                origin=Origin.BASELINE if plan == spec.baseline else Origin.SEARCH,
            )
            for number, plan in enumerate(list(space)[:count])
        ]
        return analyse(make.campaign(spec, CampaignState.COMPLETED), space, change(trials))

    return build


@pytest.fixture
def by_tp(make):
    return lambda plan: make.measurement(STEPS_S[plan.tp])


def printed(found):
    console = Console(width=150)
    with console.capture() as captured:
        for part in analysis_parts(found):
            console.print(part, soft_wrap=True)
    return captured.get()


def effects(found, evidence):
    return [effect.words for effect in found.effects if effect.evidence is evidence]


def test_where_one_knob_decides_it_has_all_the_variance_and_the_whole_effect(analysed, by_tp):
    found = analysed(by_tp)
    assert found.sensitivity.plans == 12
    assert found.sensitivity.importances[0].knob == "tp"
    assert found.sensitivity.importances[0].share > 0.99
    assert effects(found, Evidence.MEASURED)[:3] == [
        "tp 1 -> 2: +100 % (measured, 4 pairs, +100 to +100 %)",
        "tp 1 -> 4: +60 % (measured, 4 pairs, +60 to +60 %)",
        "tp 4 -> 2: +25 % (measured, 4 pairs, +25 to +25 %)",
    ]
    assert effects(found, Evidence.PREDICTED) == []
    assert [winner.plan.tp for winner in found.winners] == [2, 2, 2]


def test_a_change_that_was_measured_is_not_predicted_and_one_that_was_not_is(analysed, by_tp, make):
    found = analysed(lambda plan: by_tp(plan) if plan.tp != 4 else Verdict.OOM)
    told = {(effect.knob, frozenset((effect.before, effect.after))): effect for effect in found.effects}
    assert len(told) == len(found.effects)
    assert told["tp", frozenset((1, 2))].evidence is Evidence.MEASURED
    assert told["tp", frozenset((2, 4))].evidence is Evidence.PREDICTED
    gains = [effect.gain.value for effect in found.effects]
    assert gains == sorted(gains, reverse=True)


def test_too_few_plans_or_equal_ones_say_nothing_of_importance(analysed, by_tp, make):
    assert analysed(by_tp, count=MIN_PLANS).sensitivity.importances
    found = analysed(by_tp, count=MIN_PLANS - 1)
    assert found.sensitivity.importances == ()
    equal = analysed(lambda plan: make.measurement(1.0))
    assert equal.sensitivity.nothing == "all measured plans are equally fast"
    assert f"{MIN_PLANS - 1} measured plans are fewer than {MIN_PLANS}" in printed(found)


def test_what_trains_otherwise_is_left_out(analysed, make):
    def measured(plan):
        wrong = plan.tp == 4
        return make.measurement(0.01 if wrong else STEPS_S[plan.tp], first_losses=(9.0 if wrong else 7.0,))

    found = analysed(measured)
    assert found.sensitivity.plans == 8
    assert {winner.plan.tp for winner in found.winners} <= {1, 2}
    assert not any(4 in (effect.before, effect.after) for effect in found.effects if effect.pairs)


def test_without_the_clusters_speeds_nothing_is_predicted_and_what_is_missing_is_named(analysed, by_tp):
    device = {name: value for name, value in toy.DEVICE.items() if name != "peak_flops"}
    spec = {"cluster": {**toy.CLUSTER, "device": device}, "workload": "torch", "runner": "local"}
    found = analysed(lambda plan: by_tp(plan) if plan.tp != 4 else Verdict.OOM, **spec)
    assert found.basis is None
    assert effects(found, Evidence.PREDICTED) == []
    assert effects(found, Evidence.MEASURED)
    assert "no times can be predicted: " in printed(found)
    assert "peak_flops" in found.unpredicted
    assert found.winners[0].evidence is None


@pytest.mark.parametrize("ended", [None, Verdict.OOM])
def test_a_campaign_that_measured_nothing_is_analysed_all_the_same(analysed, ended):
    found = analysed(lambda plan: ended)
    assert (found.effects, found.winners) == ((), ())
    assert found.trials == (0 if ended is None else 12)
    words = printed(found)
    assert "No plan was measured" in words
    assert ("no trial has ended yet" in words) == (ended is None)
    assert ("12 of 12 trials (100 %)" in words) == (ended is Verdict.OOM)


def test_the_page_tells_what_the_document_has(analysed, by_tp):
    known = Expectation(
        step_time_s=1.5, step_time_low_s=1.0, step_time_high_s=2.5, p_fits=0.8, gain=0.1, peak_bytes=1e9
    )
    found = analysed(
        lambda plan: by_tp(plan) if plan.tp != 4 else Verdict.OOM,
        change=lambda trials: [replace(trial, expectation=known) for trial in trials],
    )
    document = json.loads(json.dumps(plain(found), allow_nan=False))
    words = printed(found)
    assert words.startswith("simulated: nothing below was measured on any device\n")
    for part in (*document["effects"], *document["winners"]):
        assert part["words"] in words
    assert document["hindsight"]["steps"]["within"] == 1.0
    assert "100 % of 8 within their 95 % interval" in words
    assert "Expected to fit: 9.6 of 12 trials, 8 did" in words
    assert f"basis of what is predicted: {document['basis']['words']}" in words
