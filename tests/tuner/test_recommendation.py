"""The promise of a recommendation: nothing that was not surely measured better; and the front of speed and memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.runners.outcome import Verdict
from meshtune.runners.step_breakdown import Profile
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.objective import Objective
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.results.export import (
    NothingToExport,
    best_document,
    choose,
    ranked_document,
    recommendation_document,
)
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.recommendation import front_of, recommend

GIB = 2**30
CLUSTER = {"preset": "local-cpu", "device": {"memory_bytes": 64 * GIB, "peak_flops": {"float32": 1e12}}}


@pytest.fixture
def campaign(lab, make):
    return lambda **over: make.campaign(lab.spec(**{"baseline": {"tp": 1}, **over}))


def numbers(ranking):
    return [entry.trial.number for entry in ranking]


@pytest.mark.parametrize(
    ("steps", "choice", "better", "reason"),
    [
        ((1.0, 0.8), 1, True, "+25.0 % (+24.8 to +25.3 %) faster than the baseline"),
        (((1.0, 0.1), (0.95, 0.1)), 0, False, "keep the baseline; the fastest other setting, "),
        ((1.0, (0.79, 0.4), 0.8), 2, True, "+25.0 %"),  # a sure gain before a larger one within the noise
        ((1.0, 1.5), 0, False, "no setting was measured faster than the baseline"),
        ((None, 0.8), 1, False, "the fastest setting measured; the baseline itself has no measurement"),
        ((None, None), None, False, "no setting was measured"),
        ((), None, False, "no setting was measured"),
    ],
)
def test_only_what_was_measured_surely_better_is_called_better(campaign, runs, steps, choice, better, reason):
    found = recommend(campaign(), runs(*steps))
    assert (found.choice and found.choice.trial.number, found.better) == (choice, better)
    assert found.reason.startswith(reason)


def test_without_a_baseline_the_fastest_is_named_without_a_gain(campaign, runs):
    found = recommend(campaign(baseline=None), runs(1.0, 0.8, baseline=False))
    assert (found.choice.trial.number, found.better, found.choice.gain) == (1, False, None)
    assert "names no baseline" in found.reason


@pytest.mark.parametrize("objective", ["step_time", "cost"])
def test_step_time_and_cost_are_better_when_smaller(campaign, runs, objective):
    found = recommend(campaign(objective=objective), runs(1.0, 2.0, 0.5))
    assert (found.choice.trial.number, found.better) == (2, True)


# Second runs


ONCE = "ranks above it, but was measured only once"


@pytest.mark.parametrize(
    ("steps", "again", "choice", "better", "words"),
    [
        ((1.0, 0.5, 0.51), {1: 0.53, 2: 0.52}, 2, True, " measured again: -1.9 % against its first run"),
        ((1.0, 0.5, 0.505, 0.506), {1: 0.51}, 1, True, f"; {{2}} {ONCE} (1 more likewise)"),
        ((1.0, 0.9, 0.95), {1: 1.01}, 0, False, f"measured again is faster than the baseline; {{2}} {ONCE}"),
        ((1.0, 1.5), {0: Verdict.OOM, 1: 1.5}, 1, False, "; the baseline itself ended oom when it was measured again"),
        (
            (1.0, 0.5),
            {0: Verdict.OOM, 1: Verdict.CRASHED},
            None,
            False,
            "no setting that was measured can be used; {1}",
        ),
    ],
)
def test_a_winner_is_named_by_second_runs(campaign, runs, steps, again, choice, better, words):
    measured = runs(*steps, again=again)
    found = recommend(campaign(), measured)
    assert (found.choice and found.choice.trial.number, found.better) == (choice, better)
    assert words.format(*(trial.plan.key for trial in measured)) in found.reason


def test_a_gain_that_second_runs_do_not_reproduce_is_not_recommended(campaign, runs):
    """Chance alone: a first run 10 % faster than the baseline, and a second one as slow as it."""
    assert recommend(campaign(), runs(1.0, 0.9)).better
    found = recommend(campaign(), runs(1.0, 0.9, again={1: 0.99}))
    assert (found.choice.trial.number, found.better) == (0, False)
    assert "not beyond the noise" in found.reason


@pytest.mark.parametrize("verdict", [Verdict.OOM, Verdict.CRASHED, Verdict.TIMED_OUT])
def test_what_fails_the_second_time_is_never_recommended_and_it_is_said(campaign, runs, verdict):
    measured = runs(1.0, 0.5, 0.6, again={1: verdict, 2: 0.6})
    found = recommend(campaign(), measured)
    assert (found.choice.trial.number, found.better) == (2, True)
    assert found.reason.endswith(
        f"; {measured[1].plan.key} ranks above it, but ended {verdict} when it was measured again"
    )
    best = rank(campaign(), measured)[0]
    assert (best.trial.number, best.failed_again, best.usable, best.confirmed) == (1, True, False, False)
    assert best.objective.value == pytest.approx(256 / 0.5)


@pytest.mark.parametrize("verdict", [Verdict.LOST, Verdict.CANCELLED])
def test_what_the_infrastructure_did_to_the_second_run_says_nothing_of_the_setting(campaign, runs, verdict):
    found = recommend(campaign(), runs(1.0, 0.5, again={1: verdict}))
    assert (found.choice.trial.number, found.better, found.choice.failed_again) == (1, True, False)
    assert "again" not in found.reason


# The front of speed and memory left over


@pytest.fixture
def pareto(campaign):
    return lambda **over: campaign(**{"cluster": CLUSTER, "pareto": True, **over})


@pytest.fixture
def held(make):
    """By (seconds of a step, GiB at the fullest rank or None), the first the baseline."""

    def build(*given):
        return [
            make.trial(
                number,
                make.measurement(step, peak_held_bytes=() if peak is None else (GIB, int(peak * GIB))),
                origin=Origin.SEARCH if number else Origin.BASELINE,
            )
            for number, (step, peak) in enumerate(given)
        ]

    return build


@pytest.mark.parametrize("objective", Objective)
def test_the_front_is_what_nothing_beats_in_both_speed_and_memory_the_fastest_first(pareto, held, objective):
    measured = held((1.0, 20), (0.5, 40), (0.6, 45), (0.7, 30), (2.0, 10), (3.0, 10), (0.4, None))
    assert numbers(front_of(rank(pareto(objective=objective), measured))) == [1, 3, 0, 4]


def test_what_is_never_recommended_is_not_on_the_front(pareto, held, make):
    measured = held((1.0, 20), (0.5, 10), (0.6, 15))
    measured.append(make.trial(3, Verdict.OOM, origin=Origin.CONFIRMATION, plan=measured[1].plan))
    assert numbers(front_of(rank(pareto(), measured))) == [2]


def test_the_fastest_of_the_front_is_recommended_with_what_the_others_give_up_and_gain(pareto, held):
    measured = held((1.0, 20), (0.46, 48), (0.5, 36), (0.6, 60))
    found = recommend(pareto(), measured)
    assert (found.choice.trial.number, found.better) == (1, True)
    key, baseline = measured[2].plan.key, measured[0].plan.key
    assert found.reason.endswith(
        f" faster than the baseline; or {key}: 8.0 % slower, 12 GiB more headroom; "
        f"or {baseline}: 54.0 % slower, 28 GiB more headroom"
    )
    assert "headroom" not in recommend(pareto(pareto=False), measured).reason


def test_a_faster_plan_whose_memory_is_unknown_is_not_recommended(pareto, held):
    measured = held((1.0, 20), (0.4, None), (0.5, 36))
    assert recommend(pareto(), measured).choice.trial.number == 2
    assert recommend(pareto(pareto=False), measured).choice.trial.number == 1


# Documents


def test_documents_say_speed_and_where_the_time_goes(campaign, make):
    profile = Profile(
        step_time_s=1.0,
        parts_s=({"compute": 0.9, "tp": 0.1}, {"compute": 0.7, "tp": 0.3}),
        waiting_s=({}, {}),
        own_times_s=((0.1, 0.1, 0.1), (0.2, 0.2, 0.2)),
        stages=(0, 0),
    )
    flops = {"model_flops_per_token": 1e9, "peak_flops_per_device": 1e12}
    trial = make.trial(0, make.measurement(1.0, profile=profile, **flops))
    document = ranked_document(campaign(), rank(campaign(), [trial])[0])
    assert document["tflops_per_device"] == pytest.approx(trial.measurement.flops_per_s_per_device / 1e12)
    assert document["mfu"] == pytest.approx(trial.measurement.mfu)
    assert [part["part"] for part in document["time_by_part"]] == ["compute", "tp"]
    assert [part["share"] for part in document["time_by_part"]] == pytest.approx([0.8, 0.2])
    assert document["straggler"] == {"rank": 1, "ratio": 2.0}
    assert document["trains_as_baseline"] is None


def test_documents_say_what_the_values_say(campaign, runs):
    found, measured = campaign(), runs(1.0, 0.5)
    ranking = rank(found, measured)
    document = ranked_document(found, ranking[0])
    assert Plan(**document["plan"]) == measured[1].plan
    assert document["gain_over_baseline"]["value"] == pytest.approx(1.0)
    assert document["objective"]["name"] == "tokens_per_s_per_device"
    assert recommendation_document(found, recommend(found, measured))["setting"] == document
    assert recommendation_document(found, recommend(found, ()))["setting"] is None
    assert ranked_document(found, replace(ranking[0], gain=None))["gain_over_baseline"] is None


def test_documents_show_both_runs(campaign, runs):
    found, measured = campaign(), runs(1.0, 0.5, 0.6, again={1: 0.55, 2: Verdict.OOM})
    once, failed, twice = (ranked_document(found, entry) for entry in reversed(rank(found, measured)))
    assert once["measured_again"] is None
    assert failed["measured_again"] == {"trial": 4, "verdict": "oom", "first": pytest.approx(256 / 0.6), "change": None}
    again = {"trial": 3, "verdict": "ok", "first": pytest.approx(256 / 0.5), "change": pytest.approx(0.5 / 0.55 - 1)}
    assert twice["measured_again"] == again
    assert (twice["trial"], twice["step_time_s"]) == (1, pytest.approx(0.55))


def test_the_best_document_holds_the_whole_front_however_few_of_the_best_are_asked_for(pareto, held):
    measured = held((1.0, 40), (2.0, 30), (3.0, 10))
    document = best_document(pareto(), measured, 1)
    assert [entry["trial"] for entry in document["best"]] == [0]
    assert [entry["trial"] for entry in document["front"]] == [0, 1, 2]
    assert [entry["headroom_bytes"] for entry in document["front"]] == [24 * GIB, 34 * GIB, 54 * GIB]


def test_settings_are_chosen_by_word_or_the_number_of_either_run(campaign, runs):
    measured = runs((1.0, 0.1), (0.95, 0.1), 2.0, None, again={1: (0.95, 0.1)})
    chosen = [choose(campaign(), measured, name).trial.number for name in ("best", "worst", "recommended", "2", "4")]
    assert chosen == [1, 2, 0, 2, 1]


@pytest.mark.parametrize("selector", ["3", "99", "-1", "fastest", ""])
def test_a_trial_that_was_not_measured_cannot_be_chosen(campaign, runs, selector):
    with pytest.raises(NothingToExport, match="measured: 1, 0"):
        choose(campaign(), runs(1.0, 0.5, None, None), selector)
    with pytest.raises(NothingToExport, match="no measured trial yet"):
        choose(campaign(), runs(None), "best")
