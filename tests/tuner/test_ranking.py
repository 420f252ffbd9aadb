"""Ranking, gains with their intervals, second runs, and whether settings train the same."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, log, nan, sqrt

import numpy as np
import pytest

from meshtune.tuner.campaign.trial import Origin, TrialState
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.results.ranking import LossCheck, check_losses, rank, run_variance, variance_of
from meshtune.tuner.results.recommendation import recommend


@pytest.fixture
def campaign(lab, make):
    return lambda **over: make.campaign(lab.spec(**{"baseline": {"tp": 1}, **over}))


def numbers(ranking):
    return [entry.trial.number for entry in ranking]


def test_the_fastest_ranks_first_equal_ones_by_number_and_what_failed_not_at_all(campaign, runs):
    ranking = rank(campaign(), list(reversed(runs(1.0, 2.0, None, 0.5, 1.0))))
    assert numbers(ranking) == [3, 0, 4, 1]
    assert [entry.rank for entry in ranking] == [1, 2, 3, 4]


def test_the_numbers_of_a_ranked_trial(campaign, runs):
    entry = rank(campaign(), runs((2.0, 0.1), peak_memory_bytes=(5, 9, 7)))[0]
    assert entry.objective.value == pytest.approx(1024 / 4 / 2.0)
    assert (entry.objective.low, entry.objective.high) == pytest.approx((1024 / 4 / 2.2, 1024 / 4 / 1.8))
    assert entry.tokens_per_s.value == pytest.approx(512)
    assert entry.memory_bytes == 9
    assert rank(campaign(), runs(1.0))[0].memory_bytes is None


@pytest.mark.parametrize(
    ("objective", "flops", "value"),
    [
        ("tokens_per_s_per_device", None, 256 / 0.5),
        ("step_time", None, 0.5),
        ("tflops_per_device", 2e12, 256 / 0.5 * 2),
        ("mfu", 1e9, 100 * 256 / 0.5 * 1e9 / 1e15),
        ("cost", None, 1e9 / (256 / 0.5) / 3600),
    ],
)
def test_every_objective_ranks_by_its_own_measure_in_its_own_unit(campaign, runs, objective, flops, value):
    cluster = {"preset": "local-cpu", "device": {"peak_flops": {"float32": 1e15}}}
    found = campaign(objective=objective, cluster=cluster)
    ranking = rank(found, runs((1.0, 0.1), (0.5, 0.1), model_flops_per_token=flops))
    reached = ranking[0].objective
    assert numbers(ranking) == [1, 0]
    assert reached.value == pytest.approx(value)
    assert reached.low < reached.value < reached.high
    if objective == "mfu":
        assert 100 * ranking[0].mfu == pytest.approx(value)


def test_flops_that_the_job_does_not_report_follow_from_the_models_shapes(campaign, runs):
    found = campaign(objective="tflops_per_device")
    entry = rank(found, runs(1.0))[0]
    assert entry.objective.value == pytest.approx(256 * found.spec.model.flops_per_token / 1e12)


def test_a_gain_is_the_ratio_of_speeds_with_the_widest_ends_and_the_baselines_is_nothing(campaign, runs):
    faster, baseline = (entry.gain for entry in rank(campaign(), runs((1.0, 0.1), (0.5, 0.1))))
    assert (faster.value, faster.low, faster.high) == pytest.approx((1.0, (0.9 / 0.55) - 1, (1.1 / 0.45) - 1))
    assert baseline == Estimate(0, 0, 0)


# Second runs


def test_a_plan_that_was_measured_again_is_one_entry_ranked_by_its_second_run(campaign, runs):
    ranking = rank(campaign(), runs(1.0, 0.5, 0.6, again={1: 0.8}))
    assert numbers(ranking) == [2, 1, 0]
    entry = ranking[1]
    assert entry.measurement.step_time_s == pytest.approx(0.8)
    assert entry.objective.value == pytest.approx(256 / 0.8)
    assert (entry.trial.number, entry.measured_by.number, entry.confirmation.trial.number) == (1, 3, 3)
    assert entry.confirmation.first == pytest.approx(256 / 0.5)
    assert entry.confirmation.change == pytest.approx(0.5 / 0.8 - 1)
    assert entry.gain.value == pytest.approx(1.0 / 0.8 - 1)


def test_the_baselines_second_run_is_what_everything_is_compared_with(campaign, runs):
    ranking = rank(campaign(), runs(1.0, 0.5, again={0: 1.25}))
    assert [entry.gain.value for entry in ranking] == [pytest.approx(1.25 / 0.5 - 1), 0.0]


@pytest.mark.parametrize("ended", [TrialState.PLANNED, TrialState.SUBMITTED, TrialState.RUNNING])
def test_a_second_run_that_has_not_ended_changes_nothing(campaign, runs, ended):
    assert rank(campaign(), runs(1.0, 0.5, again={1: ended})) == rank(campaign(), runs(1.0, 0.5))


def test_every_interval_covers_what_differs_between_runs_once_that_is_known(campaign, runs):
    once, again = runs(1.0, 0.5, 0.6), runs(1.0, 0.5, 0.6, again={1: 0.52, 2: 0.59})
    sd = sqrt((log(0.5 / 0.52) ** 2 + log(0.6 / 0.59) ** 2) / 4)
    for entry in rank(campaign(), again):
        width = log(entry.objective.high / entry.objective.value)
        assert width == pytest.approx(4.303 * sd)
        assert log(entry.tokens_per_s.value / entry.tokens_per_s.low) == pytest.approx(width)
        if entry.trial.origin is not Origin.BASELINE:
            assert log((1 + entry.gain.value) / (1 + entry.gain.low)) == pytest.approx(width * sqrt(2))
    assert all(entry.objective.high < 1.002 * entry.objective.value for entry in rank(campaign(), once))
    assert run_variance(rank(campaign(), once)) is None
    assert run_variance(rank(campaign(), again)).log_sd == pytest.approx(sd)


def test_the_memory_left_is_that_of_the_fuller_run(campaign, make):
    plan, device = make.trial(1).plan, campaign().spec.cluster.device.memory_bytes
    small, large, unknown = (make.measurement(1.0, peak_held_bytes=held) for held in ((3000, 1000), (2000, 5000), ()))
    for first, second in ((small, large), (large, small), (unknown, large)):
        again = make.trial(2, second, origin=Origin.CONFIRMATION, plan=plan)
        (entry,) = rank(campaign(), [make.trial(1, first), again])
        assert entry.headroom_bytes == device - 5000


@pytest.mark.parametrize(("pairs", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (10, 3.182)])
def test_the_interval_is_students_with_as_many_degrees_of_freedom_as_pairs_up_to_three(pairs, quantile):
    known = variance_of((exp(0.02) - 1,) * pairs)
    for runs in (1, 2):
        found = known.around(Estimate(100.0, 99.9, 100.1), runs=runs)
        width = quantile * 0.02 / sqrt(2) * sqrt(runs)
        assert (log(found.high / 100), log(100 / found.low)) == pytest.approx((width, width))


@pytest.mark.parametrize("pairs", [1, 3, 10])
@pytest.mark.parametrize("spread", [0.0, 0.02])
def test_the_second_run_of_the_best_is_covered_although_it_was_chosen_for_a_lucky_first_one(pairs, spread):
    """20 plans, one run each; the best are run again, and the best of these by its second run is the winner."""
    random = np.random.default_rng(20 * pairs)
    covered = better = 0
    campaigns = 1500
    for _ in range(campaigns):
        true = random.normal(0, spread, 20)
        first = true + random.normal(0, 0.02, 20)
        top = np.argsort(-first)[:pairs]
        second = true[top] + random.normal(0, 0.02, pairs)
        known = variance_of((np.exp(second - first[top]) - 1).tolist())
        winner = int(np.argmax(second))
        speed = known.around(Estimate.around(exp(second[winner]), 1.0), runs=1)
        covered += speed.low <= exp(true[top[winner]]) <= speed.high
        # Plan 0 is the baseline, measured once.
        gain = known.around(Estimate.around(exp(second[winner] - first[0]), 1.0), runs=2)
        better += gain.low > 1 and true[top[winner]] <= true[0]
    assert covered / campaigns > 0.94
    assert better / campaigns < 0.04


# Whether it is the same training


@pytest.mark.parametrize(
    ("first", "second", "found", "words"),
    [
        ([2.5, 2.25], [2.5, 2.25 + 2**-16], LossCheck(True, 1, 2**-16), "trains the same: the losses of step 1"),
        ([2.5, 2.25, 2.0], [2.5, 2.5, 3.0], LossCheck(False, 1, 0.25), "does not train the same: the losses of step 1"),
        ([1.0, nan], [1.0, nan], LossCheck(False, 1, inf), "does not train the same"),
        ([1.0, -inf], [1.0, -inf], LossCheck(False, 1, inf), "does not train the same"),
        ([1.0, 2.0], [1.0], LossCheck(True, 0, 0.0), "trains the same"),
        ([0.0], [1e-4], LossCheck(True, 0, 1e-4), "trains the same"),
        ([], [1.0], LossCheck(None), "no losses to compare"),
    ],
)
def test_losses_are_compared_step_by_step_as_far_as_both_go(first, second, found, words):
    assert check_losses(first, second, 1e-4) == found
    assert str(found).startswith(words)


def losing(make, *given):
    """Trials by (seconds, first losses), the first the baseline."""
    return [
        make.trial(
            number,
            make.measurement(step, first_losses=losses),
            origin=Origin.SEARCH if number else Origin.BASELINE,
        )
        for number, (step, losses) in enumerate(given)
    ]


def test_what_cannot_be_compared_is_neither_equal_nor_different(campaign, runs, make):
    one, other = losing(make, (1.0, (2.0,)), (0.5, ())), losing(make, (1.0, ()), (0.5, (2.0,)))
    for measured in (one, other, runs(None, 0.5)):
        entry = rank(campaign(), measured)[0]
        assert (entry.trains_as_baseline, entry.trains_otherwise) == (None, False)
        assert recommend(campaign(), measured).choice.trial.number == 1


def test_another_global_batch_trains_otherwise_by_intent_and_is_not_compared(campaign, make):
    measured = losing(make, (1.0, (2.0,)), (0.5, (9.0,)))
    outcome = measured[1].outcome
    larger = replace(outcome, measurement=replace(outcome.measurement, tokens_per_step=10**6))
    measured[1] = replace(measured[1], attempts=(replace(measured[1].last, outcome=larger),))
    assert rank(campaign(), measured)[0].trains_as_baseline is None
    assert recommend(campaign(), measured).choice.trial.number == 1


def test_a_faster_setting_that_does_not_train_the_same_is_not_recommended_and_it_is_said(campaign, make):
    measured = losing(make, (1.0, (2.0, 1.5)), (0.5, (2.0, 1.0)), (0.8, (2.0, 1.50001)))
    differ = "does not train the same: the losses of step 1 differ by 0.5"
    assert [entry.trains_as_baseline for entry in rank(campaign(), measured)] == [differ, True, True]
    found = recommend(campaign(), measured)
    assert (found.choice.trial.number, found.better) == (2, True)
    assert found.reason.startswith("+25.0 %")
    assert found.reason.endswith(f"; {measured[1].plan.key} ranks above it, but {differ}")


def test_when_all_that_is_faster_trains_otherwise_the_baseline_stays_and_slower_ones_go_unmentioned(campaign, make):
    found = recommend(campaign(), losing(make, (1.0, (2.0,)), (0.5, (3.0,)), (0.6, (4.0,)), (2.0, (5.0,))))
    assert (found.choice.trial.number, found.better) == (0, False)
    assert found.reason.startswith("no setting was measured faster than the baseline; ")
    assert "(1 more likewise)" in found.reason
