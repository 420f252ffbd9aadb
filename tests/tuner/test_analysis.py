"""Analyses of made-up trials, of which the answers are known: the whole, failure rates, forecasts, knob importances."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest
import toy
from command_lab import shown

from meshtune.runners.documents import plain
from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.plan import Recompute
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Expectation, Origin, TrialState
from meshtune.tuner.cli.render.analysis import analysis_parts
from meshtune.tuner.results.analysis.analysis import analyse, count_failures
from meshtune.tuner.results.analysis.forecast_check import check_forecasts
from meshtune.tuner.results.analysis.knob_effects import Evidence
from meshtune.tuner.results.analysis.knob_importance import MIN_PLANS, importances
from meshtune.tuner.specs.read import read_spec

pytestmark = pytest.mark.slow

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
        origins = {spec.baseline: Origin.BASELINE}
        trials = [
            make.trial(number, outcome(plan), plan=plan, origin=origins.get(plan, Origin.SEARCH))
            for number, plan in enumerate(list(space)[:count])
        ]
        return analyse(make.campaign(spec, CampaignState.COMPLETED), space, change(trials))

    return build


@pytest.fixture
def by_tp(make):
    return lambda plan: make.measurement(STEPS_S[plan.tp])


def printed(found):
    return shown(*analysis_parts(found), soft_wrap=True)


def effects(found, evidence):
    return [effect.words for effect in found.effects if effect.evidence is evidence]


def test_where_one_knob_decides_it_has_all_the_variance_and_the_whole_effect(analysed, by_tp):
    found = analysed(by_tp)
    assert found.sensitivity.plans == 12
    assert found.sensitivity.importances[0].knob == "tp"
    assert found.sensitivity.importances[0].share > 0.99
    assert effects(found, Evidence.SIMULATED)[:3] == [
        "tp 1 -> 2: +100 % (simulated, 4 pairs, +100 to +100 %)",
        "tp 1 -> 4: +60 % (simulated, 4 pairs, +60 to +60 %)",
        "tp 4 -> 2: +25 % (simulated, 4 pairs, +25 to +25 %)",
    ]
    assert effects(found, Evidence.PREDICTED) == []
    # After the best the recommended one: the baseline, as nothing was measured again.
    assert [winner.plan.tp for winner in found.winners] == [2, 2, 2, 1]
    assert found.winners[-1].trial == 0


def test_a_change_that_was_measured_is_not_predicted_and_one_that_was_not_is(analysed, by_tp, make):
    found = analysed(lambda plan: by_tp(plan) if plan.tp != 4 else Verdict.OOM)
    told = {(effect.knob, frozenset((effect.before, effect.after))): effect for effect in found.effects}
    assert len(told) == len(found.effects)
    assert told["tp", frozenset((1, 2))].evidence is Evidence.SIMULATED
    assert told["tp", frozenset((2, 4))].evidence is Evidence.PREDICTED
    gains = [effect.gain.value for effect in found.effects]
    assert gains == sorted(gains, reverse=True)


def test_too_few_plans_or_equal_ones_say_nothing_of_importance(analysed, by_tp, make):
    assert analysed(by_tp, count=MIN_PLANS).sensitivity.importances
    found = analysed(by_tp, count=MIN_PLANS - 1)
    assert found.sensitivity.importances == ()
    equal = analysed(lambda plan: make.measurement(1.0))
    assert equal.sensitivity.nothing == "all plans with a speed are equally fast"
    assert f"{MIN_PLANS - 1} plans with a speed are fewer than {MIN_PLANS}" in printed(found)


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
    assert "No plan was simulated" in words
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
    assert "Expected against simulated step times: " in words
    assert {part["evidence"] for part in document["effects"]} <= {"simulated", "predicted"}
    assert "Expected to fit: 9.6 of 12 trials, 8 did" in words
    assert f"basis of what is predicted: {document['basis']['words']}" in words


@pytest.fixture
def trials(make):
    """Trials that ended so, in the order of planning; None still runs."""

    def build(*verdicts):
        return [
            make.trial(number, state=TrialState.RUNNING)
            if verdict is None
            else make.trial(number, make.measurement(1.0) if verdict is Verdict.OK else verdict)
            for number, verdict in enumerate(verdicts)
        ]

    return build


OK, OOM, CRASHED = Verdict.OK, Verdict.OOM, Verdict.CRASHED


def test_rates_are_counted_after_each_trial(trials):
    found = count_failures(trials(OOM, OK, CRASHED, OK))
    assert [window.rate for window in found.so_far] == pytest.approx([1, 1 / 2, 2 / 3, 1 / 2])
    assert found.all.verdicts == {OK: 2, OOM: 1, CRASHED: 1}


def test_windows_are_ten_trials_each_and_stand_alone(trials):
    found = count_failures(trials(*[OOM] * 9, OK, *[OK] * 8, OOM, OOM, OK, OOM, OK))
    assert [(window.first, window.last, window.rate) for window in found.windows] == [
        (0, 9, 0.9),
        (10, 19, 0.2),
        (20, 22, pytest.approx(1 / 3)),
    ]
    assert found.all.rate == pytest.approx(12 / 23)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_what_ended_without_a_speed_and_not_by_intent_has_failed(trials, verdict):
    found = count_failures(trials(OK, verdict))
    failed = {Verdict.OOM, Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.ILLEGAL, Verdict.LOST}
    assert found.all.failed == (verdict in failed)
    assert found.all.trials == (1 if verdict is Verdict.CANCELLED else 2)


def test_trials_are_taken_in_the_order_of_planning_and_running_ones_are_not_counted(trials):
    found = count_failures(list(reversed(trials(OOM, None, OK))))
    assert [(one.trial, one.failed) for one in found.so_far] == [(0, 1), (2, 1)]


@pytest.fixture
def trial(make):
    """A trial that was expected to take `expected_s` (half to twice as long), and took `measured_s` or ended so."""

    def build(number, expected_s, outcome, p_fits=0.9):
        known = Expectation(
            step_time_s=expected_s,
            step_time_low_s=expected_s / 2,
            step_time_high_s=expected_s * 2,
            p_fits=p_fits,
            gain=0.0,
            peak_bytes=1e9,
        )
        measured = outcome if isinstance(outcome, Verdict) else make.measurement(outcome)
        return replace(make.trial(number, measured), expectation=known)

    return build


def test_step_times_are_compared_by_their_ratio(trial):
    found = check_forecasts([trial(0, 1.0, 1.1), trial(1, 2.0, 1.8), trial(2, 4.0, 12.0)])
    assert [forecast.ratio for forecast in found.forecasts] == pytest.approx([1.1, 0.9, 3.0])
    assert [forecast.within for forecast in found.forecasts] == [True, True, False]
    assert found.steps.trials == 3
    assert found.steps.within == pytest.approx(2 / 3)
    assert found.steps.median_error == pytest.approx(0.1)
    assert found.steps.spearman == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("measured", "expected"), [((4.0, 3.0, 2.0, 1.0), -1.0), ((1.0, 2.0, 4.0, 3.0), 0.8), ((1.0, 1.0, 1.0, 1.0), None)]
)
def test_ranks_are_compared_where_there_is_an_order(trial, measured, expected):
    found = check_forecasts([trial(number, 1.0 + number, step) for number, step in enumerate(measured)]).steps.spearman
    assert found == (None if expected is None else pytest.approx(expected))


def test_the_probability_to_fit_is_compared_with_what_fitted(trial):
    found = check_forecasts(
        [
            trial(0, 1.0, 1.0, p_fits=1.0),
            trial(1, 1.0, Verdict.PRUNED, p_fits=0.9),
            trial(2, 1.0, Verdict.OOM, p_fits=0.6),
            trial(3, 1.0, Verdict.OOM, p_fits=0.05),
        ]
    ).fits
    assert (found.trials, found.fitted) == (4, 2)
    assert found.expected == pytest.approx(2.55)
    assert found.brier == pytest.approx((0 + 0.01 + 0.36 + 0.0025) / 4)
    assert found.brier_of_share == pytest.approx(0.25)
    assert [(one.low, one.high, one.trials, one.fitted) for one in found.classes] == [
        (0.9, 1.0, 2, 2),
        (0.5, 0.9, 1, 0),
        (0.0, 0.1, 1, 0),
    ]
    assert found.classes[0].expected == pytest.approx(1.9)


@pytest.mark.parametrize(
    "verdict", [Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.CANCELLED, Verdict.LOST, Verdict.ILLEGAL]
)
def test_what_ended_otherwise_says_nothing_of_memory(trial, verdict):
    found = check_forecasts([trial(0, 1.0, verdict)])
    assert (found.forecasts, found.steps, found.fits) == ((), None, None)


def test_a_search_that_expected_nothing_is_compared_with_nothing(make):
    found = check_forecasts([make.trial(0, make.measurement(1.0)), make.trial(1, Verdict.OOM)])
    assert plain(found) == {"forecasts": [], "steps": None, "fits": None}


KNOBS = {
    "tp": (1, 2, 4, 8),
    "micro_batch_size": (1, 2, 4),
    "recompute": tuple(Recompute),
    "sequence_parallel": (False, True),
}
POINTS = [dict(zip(KNOBS, values, strict=True)) for values in product(*KNOBS.values())]


@pytest.mark.parametrize("knob", KNOBS)
def test_a_knob_that_alone_decides_takes_all(knob):
    found = importances(POINTS, [float(KNOBS[knob].index(point[knob])) for point in POINTS])
    assert next(iter(found)) == knob
    assert found[knob] > 0.99
    assert sum(found.values()) == pytest.approx(1.0)
    assert set(found) == set(KNOBS)


def test_shares_are_those_of_the_variance():
    # Two values 4 apart beside two that are 2 apart: variances of 4 and 1.
    points = [{"tp": tp, "pp": pp, "zero_stage": zero} for tp, pp, zero in product((1, 8), (1, 4), (0, 1))]
    found = importances(points, [4.0 * (point["tp"] == 8) + 2.0 * (point["pp"] == 1) for point in points])
    assert found["tp"] == pytest.approx(0.8, abs=0.1)
    assert found["pp"] == pytest.approx(0.2, abs=0.1)
    assert found["zero_stage"] == pytest.approx(0.0, abs=0.02)


def test_a_value_far_from_the_others_weighs_no_more_than_they():
    near = [{"tp": tp, "pp": pp} for tp, pp in product((1, 2, 3), (1, 2))]
    far = [{**point, "tp": {1: 1, 2: 2, 3: 512}[point["tp"]]} for point in near]
    values = [float(point["tp"] == 2) + 0.5 * point["pp"] for point in near]
    assert importances(far, values) == importances(near, values)
