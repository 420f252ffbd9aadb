"""Plans that were measured again: one entry each, ranked by the second run, and no winner without a second look."""

from __future__ import annotations

from math import log, sqrt

import pytest

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.trial import Origin, TrialState
from meshtune.tuner.results.export import best_document, choose, ranked_document
from meshtune.tuner.results.ranking import rank, run_variance
from meshtune.tuner.results.recommendation import recommend

BASELINE, SEARCH, CONFIRMATION = Origin.BASELINE, Origin.SEARCH, Origin.CONFIRMATION


@pytest.fixture
def campaign(lab, make):
    return lambda **over: make.campaign(lab.spec(**{"baseline": {"tp": 1}, **over}))


@pytest.fixture
def trials(make):
    """First runs by their steps' seconds, the first the baseline; then second runs: number of the first -> seconds, or
    how it ended, or a state."""

    def build(*steps, again=(), spread=0.001):
        built = [
            make.trial(number, make.measurement(step, spread=spread), origin=SEARCH if number else BASELINE)
            for number, step in enumerate(steps)
        ]
        for first, ended in dict(again).items():
            state = ended if isinstance(ended, TrialState) else None
            outcome = None if state else ended
            if isinstance(ended, float):
                outcome = make.measurement(ended, spread=spread)
            plan = built[first].plan
            built.append(make.trial(len(built), outcome, state=state, origin=CONFIRMATION, plan=plan))
        return built

    return build


def numbers(ranking):
    return [entry.trial.number for entry in ranking]


# The ranking


def test_a_plan_that_was_measured_again_is_one_entry_ranked_by_its_second_run(campaign, trials):
    ranking = rank(campaign(), trials(1.0, 0.5, 0.6, again={1: 0.8}))
    assert numbers(ranking) == [2, 1, 0]
    entry = ranking[1]
    assert entry.measurement.step_time_s == pytest.approx(0.8)
    assert entry.objective.value == pytest.approx(256 / 0.8)
    assert (entry.trial.number, entry.measured_by.number, entry.confirmation.trial.number) == (1, 3, 3)
    assert entry.confirmation.first == pytest.approx(256 / 0.5)
    assert entry.confirmation.change == pytest.approx(0.5 / 0.8 - 1)
    assert entry.gain.value == pytest.approx(1.0 / 0.8 - 1)


def test_the_baselines_second_run_is_what_everything_is_compared_with(campaign, trials):
    ranking = rank(campaign(), trials(1.0, 0.5, again={0: 1.25}))
    assert [entry.gain.value for entry in ranking] == [pytest.approx(1.25 / 0.5 - 1), 0.0]
    assert ranking[1].trial.origin is BASELINE


@pytest.mark.parametrize("ended", [TrialState.PLANNED, TrialState.SUBMITTED, TrialState.RUNNING])
def test_a_second_run_that_has_not_ended_changes_nothing(campaign, trials, ended):
    assert rank(campaign(), trials(1.0, 0.5, again={1: ended})) == rank(campaign(), trials(1.0, 0.5))


def test_every_interval_covers_what_differs_between_runs_once_that_is_known(campaign, trials):
    once, again = trials(1.0, 0.5, 0.6), trials(1.0, 0.5, 0.6, again={1: 0.52, 2: 0.59})
    sd = sqrt((log(0.5 / 0.52) ** 2 + log(0.6 / 0.59) ** 2) / 4)
    for entry in rank(campaign(), again):
        width = log(entry.objective.high / entry.objective.value)
        assert width == pytest.approx(4.303 * sd)
        assert log(entry.tokens_per_s.value / entry.tokens_per_s.low) == pytest.approx(width)
        if entry.trial.origin is not BASELINE:
            assert log((1 + entry.gain.value) / (1 + entry.gain.low)) == pytest.approx(width * sqrt(2))
    assert all(entry.objective.high < 1.002 * entry.objective.value for entry in rank(campaign(), once))
    assert run_variance(rank(campaign(), once)) is None
    assert run_variance(rank(campaign(), again)).log_sd == pytest.approx(sd)


def test_the_memory_left_is_that_of_the_fuller_run(campaign, make):
    plan, device = make.trial(1).plan, campaign().spec.cluster.device.memory_bytes
    peaks = [(3000, 1000), (2000, 5000)]
    first, second = (make.measurement(1.0, peak_memory_bytes=(100,), peak_held_bytes=held) for held in peaks)
    again = make.trial(2, second, origin=CONFIRMATION, plan=plan)
    (entry,) = rank(campaign(), [make.trial(1, first), again])
    assert entry.headroom_bytes == device - 5000
    (entry,) = rank(campaign(), [make.trial(1, second), make.trial(2, first, origin=CONFIRMATION, plan=plan)])
    assert entry.headroom_bytes == device - 5000
    (entry,) = rank(campaign(), [make.trial(1, make.measurement(1.0)), again])
    assert entry.headroom_bytes == device - 5000


# The recommendation


def test_a_winner_is_named_by_second_runs_and_says_how_they_differ_from_the_first(campaign, trials):
    found = recommend(campaign(), trials(1.0, 0.5, 0.51, again={1: 0.53, 2: 0.52}))
    assert (found.choice.trial.number, found.better) == (2, True)
    assert found.reason.endswith(" faster than the baseline; measured again: -1.9 % against its first run")


def test_what_was_measured_once_does_not_win_over_what_was_measured_twice(campaign, trials):
    measured = trials(1.0, 0.5, 0.505, 0.506, again={1: 0.51})
    found = recommend(campaign(), measured)
    assert (found.choice.trial.number, found.better) == (1, True)
    assert found.reason.endswith(
        f"; {measured[2].plan.key} ranks above it, but was measured only once (1 more likewise)"
    )


def test_a_gain_that_second_runs_do_not_reproduce_is_not_recommended(campaign, trials):
    """Chance alone: a first run 10 % faster than the baseline, and a second one as slow as it."""
    assert recommend(campaign(), trials(1.0, 0.9)).better
    found = recommend(campaign(), trials(1.0, 0.9, again={1: 0.99}))
    assert (found.choice.trial.number, found.better) == (0, False)
    assert "not beyond the noise" in found.reason


def test_when_only_what_was_measured_once_is_faster_the_baseline_stays(campaign, trials):
    measured = trials(1.0, 0.9, 0.95, again={1: 1.01})
    found = recommend(campaign(), measured)
    assert (found.choice.trial.number, found.better) == (0, False)
    assert found.reason == (
        "no setting that was measured again is faster than the baseline; "
        f"{measured[2].plan.key} ranks above it, but was measured only once"
    )


@pytest.mark.parametrize("verdict", [Verdict.OOM, Verdict.CRASHED, Verdict.TIMED_OUT])
def test_what_fails_the_second_time_is_never_recommended_and_it_is_said(campaign, trials, verdict):
    measured = trials(1.0, 0.5, 0.6, again={1: verdict, 2: 0.6})
    found = recommend(campaign(), measured)
    assert (found.choice.trial.number, found.better) == (2, True)
    assert found.reason.endswith(
        f"; {measured[1].plan.key} ranks above it, but ended {verdict} when it was measured again"
    )
    best = rank(campaign(), measured)[0]
    assert (best.trial.number, best.failed_again, best.usable, best.confirmed) == (1, True, False, False)
    assert best.objective.value == pytest.approx(256 / 0.5)


@pytest.mark.parametrize("verdict", [Verdict.LOST, Verdict.CANCELLED])
def test_what_the_infrastructure_did_to_the_second_run_says_nothing_of_the_setting(campaign, trials, verdict):
    found = recommend(campaign(), trials(1.0, 0.5, again={1: verdict}))
    assert (found.choice.trial.number, found.better, found.choice.failed_again) == (1, True, False)
    assert "again" not in found.reason


def test_a_baseline_that_fails_the_second_time_is_no_setting_to_keep(campaign, trials):
    found = recommend(campaign(), trials(1.0, 1.5, again={0: Verdict.OOM, 1: 1.5}))
    assert (found.choice.trial.number, found.better) == (1, False)
    assert found.reason.startswith(
        "the fastest setting measured; the baseline itself ended oom when it was measured again; measured again: +0.0 %"
    )


def test_when_nothing_is_left_nothing_is_recommended(campaign, trials):
    measured = trials(1.0, 0.5, again={0: Verdict.OOM, 1: Verdict.CRASHED})
    found = recommend(campaign(), measured)
    assert (found.choice, found.better) == (None, False)
    assert found.reason == (
        "no setting that was measured can be used; "
        f"{measured[1].plan.key} ended crashed when it was measured again (1 more likewise)"
    )


# What programs get


def test_documents_show_both_runs(campaign, trials):
    found, measured = campaign(), trials(1.0, 0.5, 0.6, again={1: 0.55, 2: Verdict.OOM})
    once, failed, twice = (ranked_document(found, entry) for entry in reversed(rank(found, measured)))
    assert once["measured_again"] is None
    assert failed["measured_again"] == {"trial": 4, "verdict": "oom", "first": pytest.approx(256 / 0.6), "change": None}
    again = {"trial": 3, "verdict": "ok", "first": pytest.approx(256 / 0.5), "change": pytest.approx(0.5 / 0.55 - 1)}
    assert twice["measured_again"] == again
    assert (twice["trial"], twice["step_time_s"]) == (1, pytest.approx(0.55))


def test_a_setting_is_chosen_by_the_number_of_either_run(campaign, trials):
    measured = trials(1.0, 0.5, again={1: 0.55})
    assert [choose(campaign(), measured, selector).trial.number for selector in ("1", "2", "best")] == [1, 1, 1]


def test_the_best_document_holds_the_whole_front_however_few_of_the_best_are_asked_for(campaign, make):
    held = (4 * 2**20, 3 * 2**20, 2**20)
    measured = [
        make.trial(number, make.measurement(1.0 + number, peak_held_bytes=(size,)), origin=SEARCH)
        for number, size in enumerate(held)
    ]
    document = best_document(campaign(baseline=None), measured, 1)
    assert [entry["trial"] for entry in document["best"]] == [0]
    assert [entry["trial"] for entry in document["front"]] == [0, 1, 2]
    device = campaign().spec.cluster.device.memory_bytes
    assert [device - entry["headroom_bytes"] for entry in document["front"]] == list(held)
