"""Objectives, rankings, gains with their intervals, second runs, recommendations, and the front of speed and memory."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf, log, nan, sqrt

import numpy as np
import pytest
from scipy import stats

from meshtune.runners.documents import plain
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.runners.step_breakdown import Profile
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.eligibility import TrainingCheck, check_losses
from meshtune.tuner.campaign.objective import Objective, Yardstick, yardstick_of
from meshtune.tuner.campaign.scatter import Scatter, reach
from meshtune.tuner.campaign.trial import Origin, TrialState, time_by_part
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.results.export import NothingToExport, choose
from meshtune.tuner.results.ranking import NO_LOSSES, rank
from meshtune.tuner.results.recommendation import choice_among_first, front_of, recommend
from meshtune.tuner.results.views import best_view, ranked_views
from meshtune.tuner.results.winners import winners_of
from meshtune.tuner.search.base import history
from meshtune.tuner.specs.document import InvalidSpec

SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 200))]


@pytest.fixture
def yardstick(lab):
    model = lab.spec().model
    return lambda objective, **more: Yardstick(objective=objective, model=model, **more)


@pytest.mark.parametrize(
    ("objective", "known", "unit", "value"),
    [
        (Objective.TOKENS_PER_S_PER_DEVICE, {}, "tokens/s/device", 128.0),
        (Objective.STEP_TIME, {}, "s", 2.0),
        (Objective.TFLOPS_PER_DEVICE, {}, "TFLOP/s", 128e9 / 1e12),
        (Objective.MFU, {"peak_flops": 1e12}, "%", 12.8),
        (Objective.COST, {}, "device-hours/1e9 tokens", 1e9 / 128 / 3600),
        (Objective.COST, {"device_hour_price": 2.5}, "cost/1e9 tokens", 2.5 * 1e9 / 128 / 3600),
    ],
)
def test_an_objective_has_its_value_in_its_unit(make, yardstick, objective, known, unit, value):
    found, measured = yardstick(objective, **known), make.measurement(2.0, model_flops_per_token=1e9)
    assert found.unit == unit
    assert found.of(measured, 2.0) == pytest.approx(value)


def test_a_specs_yardstick_knows_its_clusters_peak_and_price(lab):
    cluster = {"preset": "local-cpu", "device": {"peak_flops": {"float32": 1e12}}, "device_hour_price": 0.04}
    found = yardstick_of(lab.spec(objective="cost", cluster=cluster))
    assert (found.objective, found.peak_flops, found.device_hour_price) == (Objective.COST, 1e12, 0.04)
    assert yardstick_of(lab.spec()).device_hour_price is None


@pytest.fixture
def campaign(lab, make):
    return lambda **over: make.campaign(lab.spec(**{"baseline": {"tp": 1}, **over}))


def ranked_document(campaign, entry):
    return plain(ranked_views(campaign, [entry])[0])


def best_document(campaign, trials, top):
    return plain(best_view(campaign, rank(campaign, trials), top))


def numbers(ranking):
    return [entry.trial.number for entry in ranking]


def test_the_fastest_ranks_first_equal_ones_by_number_and_what_failed_not_at_all(campaign, runs):
    ranking = rank(campaign(), list(reversed(runs(1.0, 2.0, None, 0.5, 1.0))))
    assert numbers(ranking) == [3, 0, 4, 1]
    assert [entry.rank for entry in ranking] == [1, 2, 3, 4]


def test_the_numbers_of_a_ranked_trial(campaign, runs):
    entry = rank(campaign(), runs((2.0, 0.1), peak_memory_bytes=(5, 9, 7)))[0]
    assert entry.objective.value == pytest.approx(1024 / 4 / 2.0)
    times = entry.measurement.step_times_s
    ends = stats.t.interval(0.95, len(times) - 1, 2.0, stats.sem(times))
    assert (entry.objective.low, entry.objective.high) == pytest.approx((256 / ends[1], 256 / ends[0]), rel=4e-3)
    assert entry.tokens_per_s.value == pytest.approx(512)
    assert entry.peak_memory_bytes == 9
    assert rank(campaign(), runs(1.0))[0].peak_memory_bytes is None


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
    first, second = rank(campaign(), runs((1.0, 0.1), (0.5, 0.1)))
    own, other = first.measurement.step_time_interval_s, second.measurement.step_time_interval_s
    ends = (1.0, other.low / own.high - 1, other.high / own.low - 1)
    assert (first.gain.value, first.gain.low, first.gain.high) == pytest.approx(ends)
    assert second.gain == Estimate(0, 0, 0)


# Like with like


@pytest.mark.parametrize(
    ("steps", "again", "number", "gain"),
    [
        ((1.0, 2.0), {0: [2.536, 2.536]}, 1, -0.5),  # +26.8 % against the baseline's second runs
        ((1.2, 1.0), {0: [0.421, 0.421]}, 1, 0.2),  # -57.9 %
        ((1.0, 0.9, 0.8), {0: [3.06, 3.06], 2: [2.4, 2.4]}, 1, 1 / 0.9 - 1),  # +240 %, and the first of all
        ((1.0, 0.9), {0: [Verdict.LOST, 3.0], 1: [2.0, Verdict.LOST]}, 1, 1 / 0.9 - 1),  # in no round together
    ],
)
def test_what_never_ran_again_beside_the_baseline_has_the_gain_of_first_runs_and_says_so(
    campaign, runs, steps, again, number, gain
):
    entry = next(one for one in rank(campaign(), runs(*steps, again=again)) if one.trial.number == number)
    assert (entry.gain.value, entry.gain_rounds) == (pytest.approx(gain), 0)
    assert entry.gain_text.startswith(f"{100 * gain:+.1f} %")
    assert entry.gain_text.endswith("first run, not confirmed)")
    assert ranked_document(campaign(), entry)["gain_rounds"] == 0


def test_confirmed_settings_rank_first_whatever_a_single_run_showed(campaign, runs):
    """All runs of the second period are three times as slow."""
    again = {0: [3.06, 3.06], 2: [2.4, 2.4], 3: [1.5, Verdict.OOM]}
    ranking = rank(campaign(), runs(1.0, 0.9, 0.8, 0.5, 1.1, again=again))
    assert numbers(ranking) == [2, 0, 3, 1, 4]
    assert [entry.gain_rounds for entry in ranking] == [2, 2, 1, 0, 0]
    assert (ranking[0].gain.value, ranking[0].objective.value) == pytest.approx((3.06 / 2.4 - 1, 256 / 2.4))
    assert "not confirmed" not in ranking[0].gain_text
    found = recommend(campaign(), runs(1.0, 0.9, 0.8, 0.5, 1.1, again=again))
    assert (found.choice.trial.number, found.better) == (2, True)


def test_a_plan_that_left_before_a_slow_period_does_not_win_by_that(campaign, runs):
    slow = [1.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    again = {0: slow, 1: [0.8 * by for by in slow], 2: [0.9, 0.9]}
    ranking = rank(campaign(), runs(1.0, 0.85, 0.84, again=again))
    assert numbers(ranking) == [1, 2, 0]
    assert [entry.gain.value for entry in ranking] == pytest.approx([0.25, 1 / 0.9 - 1, 0])
    assert ranking[1].objective.value > ranking[0].objective.value
    assert winners_of(campaign().spec, ranking).fastest_confirmed.trial.number == 1


def test_plans_that_no_round_links_are_told_apart_by_their_first_runs(campaign, runs):
    """A second run that somebody asked for, alone in a fast period."""
    again = {0: [1.0, 1.0], 1: [0.8, 0.8], 2: [Verdict.LOST, Verdict.LOST, 0.3]}
    assert numbers(rank(campaign(), runs(1.0, 0.8, 0.9, again=again))) == [1, 2, 0]


def test_what_is_faster_is_said_by_gains_and_not_by_speeds_of_different_periods(campaign, runs):
    """By their means the plan is twice as fast as the baseline, whose rounds went on into a slow period."""
    found = recommend(campaign(), runs(1.0, 0.9, again={0: [1.0, 1.0, 4.0, 4.0], 1: [1.1, 1.1]}))
    assert (found.choice.trial.number, found.better) == (0, False)
    assert "no plan that has a second run is faster than the baseline" in found.reason
    found = recommend(campaign(), runs(1.0, 0.9))
    assert "+11.1 % (" in found.reason
    assert "first run, not confirmed) faster: it takes runs beside the baseline's to know" in found.reason


# Second runs


def test_a_plan_that_was_measured_again_is_one_entry_with_the_speed_of_its_second_run(campaign, runs):
    ranking = rank(campaign(), runs(1.0, 0.5, 0.6, again={0: 1.2, 1: 0.8}))
    assert numbers(ranking) == [1, 0, 2]
    entry = ranking[0]
    assert entry.measurement.step_time_s == pytest.approx(0.8)
    assert entry.objective.value == pytest.approx(256 / 0.8)
    assert (entry.trial.number, entry.measured_by.number, entry.confirmation.trial.number) == (1, 4, 4)
    assert entry.first_run.value == pytest.approx(256 / 0.5)
    assert entry.confirmation.change == pytest.approx(0.5 / 0.8 - 1)
    assert (entry.gain.value, entry.gain_rounds) == (pytest.approx(1.2 / 0.8 - 1), 1)


@pytest.mark.parametrize("objective", ["step_time", "cost", "tokens_per_s_per_device"])
def test_steps_of_unlike_tokens_compare_by_tokens_per_second(lab, campaign, make, objective):
    """As of reinforcement learning, whose rows have other lengths in each run."""

    def trial(number: int, step_s: float, tokens: int, **more):
        measured = replace(make.measurement(step_s), tokens_per_step=tokens)
        return make.trial(number, measured, **{"plan": Plan(dp=4, grad_accum_steps=2, zero_stage=number % 3), **more})

    # The second plan has the shorter step, and makes fewer tokens in a second.
    trials = [trial(0, 1.0, 1000, origin=Origin.BASELINE), trial(1, 0.9, 600), trial(2, 1.2, 2000)]
    found = campaign(objective=objective)
    ranking = rank(found, trials)
    assert numbers(ranking) == [2, 0, 1]
    yardstick = yardstick_of(found.spec)
    best = [1.0, 1.0, 1.2] if objective == "step_time" else [yardstick.of(trials[at].measurement) for at in (0, 0, 2)]
    assert yardstick.best_so_far(one.measurement for one in trials) == pytest.approx(best)
    seen = history(found.spec, trials)
    assert sorted(range(3), key=lambda at: seen[at].score) == [1, 0, 2]
    assert [one.step_time_s for one in seen] == pytest.approx([1.0, 1.5, 0.6])  # of 1000 tokens each

    again = {"origin": Origin.CONFIRMATION, "plan": trials[2].plan}
    seconds = [trial(3, 1.0, 1000, round=1, **again), trial(4, 4.0, 16000, round=2, **again)]
    entry = next(one for one in rank(found, [*trials, *seconds]) if one.trial.number == 2)
    assert entry.tokens_per_s.value == pytest.approx(2000)  # the geometric mean of 1000 and 4000
    assert entry.measurement.tokens_per_step / entry.step_time_s == pytest.approx(2000)
    assert entry.confirmation.change == pytest.approx(2000 / (2000 / 1.2) - 1)


def test_of_steps_that_generate_their_rows_no_utilization_is_told(lab, campaign, runs):
    rollout = {"rollout": {"prompt_tokens": 64, "answer_tokens": 64}}
    trained, generating = (rank(campaign(**more), runs(1.0))[0] for more in ({}, {"training": rollout}))
    assert trained.tflops_per_device is not None
    assert (generating.tflops_per_device, generating.mfu) == (None, None)
    with pytest.raises(InvalidSpec, match="tflops_per_device needs steps that generate no rows"):
        lab.spec(objective="tflops_per_device", training=rollout)


def test_one_repeat_of_one_setting_has_an_interval_by_what_such_devices_do(campaign, runs):
    found = campaign(confirm=1)
    once, two = rank(found, runs(1.0, 0.5, again={1: 0.6})), rank(found, runs(1.0, 0.5, again={0: 1.0, 1: 0.6}))
    assert once[0].gain_text.endswith("; first run, not confirmed)")
    assert once[0].gain.low < 1.0 == pytest.approx(once[0].gain.value)
    assert two[0].gain_text.startswith("+66.7 % (")
    assert ranked_document(found, once[0])["interval_known"] is True


def test_the_fastest_once_is_told_by_first_runs_against_the_baselines_first(campaign, runs):
    trials = runs(1.0, 0.5, 0.6, None, again={0: [1.25, 1.25], 1: [0.8, 0.8], 2: [Verdict.OOM]})
    document = best_document(campaign(), trials, 3)
    once, confirmed = document["fastest_once"], document["fastest_confirmed"]
    assert (once["trial"], once["objective"]["value"]) == (1, pytest.approx(256 / 0.5))
    assert (once["step_time_s"], once["gain_over_baseline"]["value"]) == (0.5, pytest.approx(1.0))
    assert once["measured_again"]["runs"] == 2
    assert (confirmed["trial"], confirmed["objective"]["value"]) == (1, pytest.approx(256 / 0.8))
    assert confirmed["first_run"] == once["objective"]
    assert confirmed["gain_over_baseline"]["value"] == pytest.approx(1.25 / 0.8 - 1)
    # One that ran once and failed when it was to be measured again can be the fastest once, and is never confirmed.
    failed = best_document(campaign(), runs(1.0, 0.9, 0.5, again={0: [1.0], 1: [0.9], 2: [Verdict.OOM]}), 3)
    assert (failed["fastest_once"]["trial"], failed["fastest_confirmed"]["trial"]) == (2, 1)
    nothing = best_document(campaign(), runs(None), 3)
    assert (nothing["fastest_once"], nothing["fastest_confirmed"]) == (None, None)


@pytest.mark.parametrize("ended", [TrialState.PLANNED, TrialState.SUBMITTED, TrialState.RUNNING])
def test_a_second_run_that_has_not_ended_changes_nothing(campaign, runs, ended):
    assert rank(campaign(), runs(1.0, 0.5, again={1: ended})) == rank(campaign(), runs(1.0, 0.5))


def test_every_interval_covers_what_differs_between_runs_once_that_is_known(campaign, runs):
    once, again = runs(1.0, 0.5, 0.6), runs(1.0, 0.5, 0.6, again={1: 0.52, 2: 0.59})
    squares = (log(0.5 / 0.52) ** 2 + log(0.6 / 0.59) ** 2) / 2
    scatter = rank(campaign(), again)[0].ground.variance.runs
    assert (scatter.degrees, scatter.squares) == (2, pytest.approx(squares))
    for entry in rank(campaign(), again):
        width = log(entry.objective.high / entry.objective.value)
        assert width == pytest.approx(reach(scatter, 0.05))
        assert log(entry.tokens_per_s.value / entry.tokens_per_s.low) == pytest.approx(width)
        if entry.trial.origin is not Origin.BASELINE:
            assert log((1 + entry.gain.value) / (1 + entry.gain.low)) == pytest.approx(width * sqrt(2))
    assert all(entry.objective.high < 1.002 * entry.objective.value for entry in rank(campaign(), once))
    assert rank(campaign(), once)[0].ground.variance is None


def test_the_memory_left_is_that_of_the_fuller_run(campaign, make):
    plan, device = make.trial(1).plan, campaign().spec.cluster.device.memory_bytes
    small, large, unknown = (make.measurement(1.0, peak_held_bytes=held) for held in ((3000, 1000), (2000, 5000), ()))
    for first, second in ((small, large), (large, small), (unknown, large)):
        again = make.trial(2, second, origin=Origin.CONFIRMATION, plan=plan)
        (entry,) = rank(campaign(), [make.trial(1, first), again])
        assert entry.headroom_bytes == device - 5000


def test_rounds_are_compared_pair_by_pair_so_that_a_drift_of_the_cluster_changes_nothing(campaign, runs):
    # Everything is 30 % slower in round 2, and half as fast in round 3.
    drift, error = (1.0, 1.3, 2.0), (0.99, 1.0, 1.01)
    again = {0: [1.0 * by for by in drift], 1: [0.8 * by * e for by, e in zip(drift, error, strict=True)]}
    ranking = rank(campaign(), runs(1.0, 0.7, again=again))
    entry = ranking[0]
    assert (entry.trial.number, entry.confirmation.runs) == (1, 3)
    assert entry.gain.value == pytest.approx(1 / 0.8 - 1, rel=1e-3)
    # First runs are a round too. The residuals of two plans are half of their differences.
    logs = np.log([0.7 / 0.8, *error])
    scatter = Scatter(DeviceKind.CPU, 3, float(((logs - logs.mean()) ** 2).sum() / 2))
    width = reach(scatter, 0.05) * sqrt(2 / 3)
    assert log((1 + entry.gain.high) / (1 + entry.gain.value)) == pytest.approx(width, rel=1e-3)
    # A speed by itself has the drift in its interval.
    assert entry.objective.value == pytest.approx(256 / 0.8 / (1.3 * 2.0 * 0.99 * 1.01) ** (1 / 3))
    assert entry.objective.high > 1.3 * entry.objective.value


def test_a_plan_that_left_after_two_rounds_is_compared_by_these(campaign, runs):
    ranking = rank(campaign(), runs(1.0, 0.8, 0.9, again={0: [1.0, 1.0, 2.0], 1: [0.8, 0.81, 1.6], 2: [1.1, 1.12]}))
    gains = {entry.trial.number: entry.gain.value for entry in ranking}
    assert gains[2] == pytest.approx(1 / sqrt(1.1 * 1.12) - 1)
    assert gains[1] == pytest.approx((2.0 / (0.8 * 0.81 * 1.6)) ** (1 / 3) - 1)


def test_a_plan_that_fails_in_a_later_round_is_not_recommended(campaign, runs):
    measured = runs(1.0, 0.5, 0.6, again={0: [1.0, 1.0], 1: [0.5, Verdict.OOM], 2: [0.6, 0.6]})
    failed = rank(campaign(), measured)[2]
    assert (failed.trial.number, failed.failed_again, failed.confirmed, failed.confirmation.runs) == (1, True, False, 1)
    assert recommend(campaign(), measured).choice.trial.number == 2


# Whether it is the same training


@pytest.mark.parametrize(
    ("first", "second", "found", "words"),
    [
        ([2.5, 2.25], [2.5, 2.25 + 2**-16], TrainingCheck(True, 1, 2**-16), "trains the same: the losses of step 1"),
        (
            [2.5, 2.25, 2.0],
            [2.5, 2.5, 3.0],
            TrainingCheck(False, 1, 0.25),
            "does not train the same: the losses of step 1",
        ),
        ([1.0, nan], [1.0, nan], TrainingCheck(False, 1, inf), "does not train the same"),
        ([1.0, -inf], [1.0, -inf], TrainingCheck(False, 1, inf), "does not train the same"),
        ([1.0, 2.0], [1.0], TrainingCheck(True, 0, 0.0), "trains the same"),
        ([0.0], [1e-4], TrainingCheck(True, 0, 1e-4), "trains the same"),
        ([], [1.0], TrainingCheck(None), "no losses to compare"),
    ],
)
def test_losses_are_compared_step_by_step_as_far_as_both_go(first, second, found, words):
    assert check_losses(first, second, 1e-4) == found
    assert str(found).startswith(words)


@pytest.fixture
def losing(runs):
    """By (seconds, first losses), the first the baseline."""
    return lambda *given: runs(*((step, {"first_losses": losses}) for step, losses in given))


def test_what_cannot_be_compared_is_neither_equal_nor_different(campaign, make, runs, losing):
    for measured in (make.thrice(losing((1.0, ()), (0.5, (2.0,)))), runs(None, 0.5)):
        entry = rank(campaign(), measured)[0]
        assert (entry.trains_as_baseline, entry.trains_otherwise) == (None, False)
        assert recommend(campaign(), measured).choice.trial.number == 1


def test_a_winner_that_tells_no_losses_beside_a_baseline_that_does_is_marked(campaign, make, losing):
    measured = make.thrice(losing((1.0, (2.0,)), (0.5, ())))
    entry, baseline = rank(campaign(), measured)
    assert (entry.trains_as_baseline, baseline.trains_as_baseline) == (NO_LOSSES, True)
    found = recommend(campaign(), measured)
    assert (found.choice.trial.number, found.better) == (1, True)
    assert NO_LOSSES in found.reason


def test_another_global_batch_trains_otherwise_by_intent_and_is_not_compared(campaign, make, losing):
    measured = losing((1.0, (2.0,)), (0.5, (9.0,)))
    outcome = measured[1].outcome
    larger = replace(outcome, measurement=replace(outcome.measurement, tokens_per_step=10**6))
    measured[1] = replace(measured[1], attempts=(replace(measured[1].last, outcome=larger),))
    assert rank(campaign(), measured)[0].trains_as_baseline is None
    assert recommend(campaign(), make.thrice(measured)).choice.trial.number == 1


def test_a_faster_setting_that_does_not_train_the_same_is_not_recommended_and_it_is_said(campaign, make, losing):
    measured = make.thrice(losing((1.0, (2.0, 1.5)), (0.5, (2.0, 1.0)), (0.8, (2.0, 1.50001))))
    differ = "does not train the same: the losses of step 1 differ by 0.5 from the baseline's"
    assert [entry.trains_as_baseline for entry in rank(campaign(), measured)] == [True, True, differ]
    found = recommend(campaign(), measured)
    assert (found.choice.trial.number, found.better) == (2, True)
    assert found.reason.startswith("+25.0 %")
    assert found.reason.endswith(f"; {measured[1].plan.key} had a faster first run, but {differ}")


def test_when_all_that_is_faster_trains_otherwise_the_baseline_stays_and_slower_ones_go_unmentioned(campaign, losing):
    found = recommend(campaign(), losing((1.0, (2.0,)), (0.5, (3.0,)), (0.6, (4.0,)), (2.0, (5.0,))))
    assert (found.choice.trial.number, found.better) == (0, False)
    assert found.reason.startswith("no plan that may be recommended was measured faster than the baseline; ")
    assert "(1 more likewise)" in found.reason


def test_a_single_run_that_trains_otherwise_keeps_its_plan_from_being_recommended(campaign, make, losing):
    measured = make.thrice(losing((1.0, (2.0,)), (0.5, (2.0,)), (0.8, (2.0,))))
    (other,) = losing((0.5, (3.0,)))
    for number in (1, 4, 7):  # the first run, and both second ones
        trials = list(measured)
        trials[number] = replace(measured[number], attempts=other.attempts)
        found = recommend(campaign(), trials)
        assert (found.choice.trial.number, found.better) == (2, True)
        assert "3 measured, 2 comparable: 1 do not train the same" in found.reason
        (none,) = [entry for entry in rank(campaign(), trials) if not entry.usable]
        assert "the losses of step 0 differ by 1 from the baseline's" in none.trains_as_baseline


GIB = 2**30
CLUSTER = {"preset": "local-cpu", "device": {"memory_bytes": 64 * GIB, "peak_flops": {"float32": 1e12}}}


KEEP = "keep the baseline; the fastest other plan, "
ANEW = "would tell whether that is real (a new campaign, with confirm_rounds: 3)"
TURNS = "it takes runs beside the baseline's to know"


@pytest.mark.parametrize(
    ("steps", "again", "choice", "words"),
    [
        ((1.0, 0.8), {0: [1.0, 1.0], 1: [0.8, 0.8]}, 1, "+25.0 % faster than the base"),
        ((1.0, 0.8), {0: [1.0, 1.1], 1: [0.8, 1.0]}, 0, f"not beyond the noise; 1 more round {ANEW}"),
        # A sure gain before a larger one within the noise.
        ((1.0, 0.7, 0.8), {0: [1.0] * 6, 1: [0.65, 0.95], 2: [0.8] * 6}, 2, "+25.0 % ("),
        ((1.0, 0.9999), {0: [1.0, 1.0], 1: [0.9999, 0.9999]}, 0, "less than stop.tolerance, 2.0 %, however many"),
        ((1.0, 0.5), {0: [1.0], 1: [0.5]}, 1, "+100.0 % ("),
        ((1.0, 0.5), {1: [0.5, 0.5]}, 0, TURNS),
        ((1.0, 0.5), {}, 0, TURNS),
        ((1.0, 1.5), {}, 0, "no plan was measured faster than the baseline"),
        ((None, 0.8), {}, 1, "the fastest plan measured; the baseline itself has no measurement"),
        ((None, None), {}, None, "no plan was measured"),
        ((), {}, None, "no plan was measured"),
    ],
)
def test_only_what_was_measured_surely_better_is_called_better(campaign, runs, steps, again, choice, words):
    found = recommend(campaign(), runs(*steps, again=again))
    assert (found.choice and found.choice.trial.number) == choice
    assert found.better is words.startswith("+")
    assert words in found.reason
    assert found.reason.startswith(KEEP) is (choice == 0 and "no plan" not in words)


def stepping(trial, *times):
    """The same trial, whose steps took so long."""
    outcome = Outcome(verdict=Verdict.OK, measurement=replace(trial.measurement, step_times_s=times))
    return replace(trial, attempts=(replace(trial.last, outcome=outcome),))


def test_the_mean_decides_what_a_training_takes_and_the_median_must_not_contradict(campaign, make, runs):
    baseline, other = runs(1.0, 1.0)
    stalls = stepping(other, *(0.1,) * 7, 35.3)  # ten times as fast, but for one step in eight
    found = recommend(campaign(), make.thrice([baseline, stalls]))
    assert (found.choice.trial.number, found.better) == (0, False)
    assert rank(campaign(), [baseline, stalls])[1].step_time_s == pytest.approx(4.5)
    # The baseline's own stalls make another plan faster by the mean alone.
    found = recommend(campaign(), make.thrice([stepping(baseline, *(0.9,) * 7, 9.0), other]))
    assert (found.choice.trial.number, found.better) == (0, False)
    assert "by the mean of its steps, and not by their median" in found.reason


def test_without_a_baseline_the_fastest_is_named_without_a_gain(campaign, runs):
    found = recommend(campaign(baseline=None), runs(1.0, 0.8, baseline=False))
    assert (found.choice.trial.number, found.better, found.choice.gain) == (1, False, None)
    assert "names no baseline" in found.reason


@pytest.mark.parametrize("objective", ["step_time", "cost"])
def test_step_time_and_cost_are_better_when_smaller(campaign, make, runs, objective):
    found = recommend(campaign(objective=objective), make.thrice(runs(1.0, 2.0, 0.5)))
    assert (found.choice.trial.number, found.better) == (2, True)


# Second runs


BASE = {0: [1.0, 1.0]}
ONCE = "had a faster first run, but has no second run"


@pytest.mark.parametrize(
    ("steps", "again", "choice", "better", "words"),
    [
        ((1.0, 0.5, 0.51), {**BASE, 1: [0.53] * 2, 2: [0.52] * 2}, 2, True, "second run: -1.9 % against its first run"),
        ((1.0, 0.52, 0.505, 0.506), {**BASE, 1: [0.53] * 2}, 1, True, f"; {{2}} {ONCE} (1 more likewise)"),
        ((1.0, 0.9, 0.95), {**BASE, 1: [1.01] * 2}, 0, False, f"; {{2}} {ONCE}"),
        ((1.0, 1.5), {0: Verdict.OOM, 1: 1.5}, 1, False, "; the baseline itself ended oom in its second run"),
        (
            (1.0, 0.5),
            {0: Verdict.OOM, 1: Verdict.CRASHED},
            None,
            False,
            "no plan that was measured can be used; {1}",
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
    found = recommend(campaign(), runs(1.0, 0.9, again={0: [1.0, 0.99], 1: [0.98, 0.99]}))
    assert (found.choice.trial.number, found.better) == (0, False)
    assert "not beyond the noise, and less than stop.tolerance" in found.reason


@pytest.mark.parametrize("verdict", [Verdict.OOM, Verdict.CRASHED, Verdict.TIMED_OUT])
def test_what_fails_the_second_time_is_never_recommended_and_it_is_said(campaign, runs, verdict):
    measured = runs(1.0, 0.5, 0.6, again={**BASE, 1: verdict, 2: [0.6, 0.6]})
    found = recommend(campaign(), measured)
    assert (found.choice.trial.number, found.better) == (2, True)
    assert found.reason.endswith(
        f"; {measured[1].plan.key} had a faster first run, but ended {verdict} in its second run"
    )
    last = rank(campaign(), measured)[2]
    assert (last.trial.number, last.failed_again, last.usable, last.confirmed) == (1, True, False, False)
    assert last.objective.value == pytest.approx(256 / 0.5)


@pytest.mark.parametrize("verdict", [Verdict.LOST, Verdict.CANCELLED])
def test_what_the_infrastructure_did_to_the_second_run_says_nothing_of_the_setting(campaign, runs, verdict):
    found = recommend(campaign(), runs(1.0, 0.5, again={0: [1.0] * 3, 1: [verdict, 0.5, 0.5]}))
    assert (found.choice.trial.number, found.better, found.choice.failed_again) == (1, True, False)
    assert "ended" not in found.reason


# The front of speed and memory left over


@pytest.mark.parametrize("seed", SEEDS)
def test_a_choice_from_the_first_few_is_the_choice_from_all(campaign, make, runs, seed):
    """Plans that train otherwise, noise beyond the differences, second runs, and no baseline among them."""
    rng = random.Random(seed)
    steps = [None if rng.random() < 0.1 else (rng.uniform(0.5, 1.1), rng.choice([0.001, 0.3])) for _ in range(12)]
    known = [number for number, given in enumerate(steps) if given is not None]
    ends = [(rng.uniform(0.5, 1.1), 0.001), Verdict.OOM, Verdict.LOST, TrialState.RUNNING]
    again = {number: rng.choice(ends) for number in rng.sample(known, rng.choice([0, 0, 2]))}
    trials = runs(*steps, baseline=rng.random() < 0.8, again=again)
    trials = [
        replace_losses(trial, rng.choice([(2.0, 1.0), (2.0, 1.5)])) if trial.measurement else trial for trial in trials
    ]
    found = campaign()
    first = sorted((trials[number].measurement.step_time_s, number) for number in known)[:4]
    numbers = [number for _, number in first]
    repeated = {trial.plan for trial in trials if trial.origin is Origin.CONFIRMATION}
    few = [
        trial
        for trial in trials
        if trial.number in numbers or trial.plan in repeated or trial.origin is Origin.BASELINE
    ]
    choice, whole = choice_among_first(found.spec, rank(found, few), numbers), recommend(found, trials).choice
    if choice is not None:
        assert (choice.trial, choice.confirmation, choice.gain) == (whole.trial, whole.confirmation, whole.gain)


def replace_losses(trial, losses):
    outcome = replace(trial.outcome, measurement=replace(trial.measurement, first_losses=losses))
    return replace(trial, attempts=(replace(trial.last, outcome=outcome),))


@pytest.fixture
def pareto(campaign):
    return lambda **over: campaign(**{"cluster": CLUSTER, "pareto": True, **over})


@pytest.fixture
def held(runs):
    """By (seconds of a step, GiB at the fullest rank or None), the first the baseline."""

    def build(*given):
        sizes = [() if peak is None else (GIB, peak * GIB) for _, peak in given]
        return runs(*((step, {"peak_held_bytes": size}) for (step, _), size in zip(given, sizes, strict=True)))

    return build


@pytest.mark.parametrize("objective", Objective)
def test_the_front_is_what_nothing_beats_in_both_speed_and_memory_the_fastest_first(pareto, held, objective):
    measured = held((1.0, 20), (0.5, 40), (0.6, 45), (0.7, 30), (2.0, 10), (3.0, 10), (0.4, None))
    assert numbers(front_of(rank(pareto(objective=objective), measured))) == [1, 3, 0, 4]


def test_what_is_never_recommended_is_not_on_the_front(pareto, held, make):
    measured = held((1.0, 20), (0.5, 10), (0.6, 15))
    measured.append(make.trial(3, Verdict.OOM, origin=Origin.CONFIRMATION, plan=measured[1].plan))
    assert numbers(front_of(rank(pareto(), measured))) == [2]


def test_the_fastest_of_the_front_is_recommended_with_what_the_others_give_up_and_gain(pareto, make, held):
    measured = make.thrice(held((1.0, 20), (0.46, 48), (0.5, 36), (0.6, 60)))
    found = recommend(pareto(), measured)
    assert (found.choice.trial.number, found.better) == (1, True)
    key, baseline = measured[2].plan.key, measured[0].plan.key
    assert "faster than the baseline" in found.reason
    assert found.reason.endswith(
        f"; or {key}: -8.0 % in speed, 12 GiB more headroom; or {baseline}: -54.0 % in speed, 28 GiB more headroom"
    )
    assert "headroom" not in recommend(pareto(pareto=False), measured).reason


def test_a_faster_plan_whose_memory_is_unknown_is_not_recommended(pareto, make, held):
    measured = make.thrice(held((1.0, 20), (0.4, None), (0.5, 36)))
    assert recommend(pareto(), measured).choice.trial.number == 2
    assert recommend(pareto(pareto=False), measured).choice.trial.number == 1


# Documents


def test_documents_say_what_the_values_say(campaign, make, runs):
    found, measured = campaign(), make.thrice(runs(1.0, 0.5))
    ranking = rank(found, measured)
    document = ranked_document(found, ranking[0])
    assert Plan(**document["plan"]) == measured[1].plan
    assert document["gain_over_baseline"]["value"] == pytest.approx(1.0)
    assert document["objective"]["name"] == "tokens_per_s_per_device"
    assert best_document(found, measured, 1)["recommendation"]["setting"] == document
    assert best_document(found, (), 1)["recommendation"]["setting"] is None
    assert ranked_document(found, rank(found, measured[1:2])[0])["gain_over_baseline"] is None


def test_documents_show_both_runs(campaign, runs):
    found, measured = campaign(), runs(1.0, 0.5, 0.6, again={1: 0.55, 2: Verdict.OOM})
    once, failed, twice = (ranked_document(found, entry) for entry in reversed(rank(found, measured)))
    assert once["measured_again"] is None
    first = pytest.approx(256 / 0.6)
    assert failed["measured_again"] == {"trial": 4, "runs": 0, "verdict": "oom", "first": first, "change": None}
    change = pytest.approx(0.5 / 0.55 - 1)
    again = {"trial": 3, "runs": 1, "verdict": "ok", "first": pytest.approx(256 / 0.5), "change": change}
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


def test_the_time_of_a_step_is_told_by_part_as_means_over_the_ranks_the_unknown_parts_last():
    parts = ({"data": 0.4, "compute": 0.4, "tp": 0.2}, {"compute": 0.8, "optimizer": 0.2})
    profile = Profile(step_time_s=1.0, parts_s=parts, waiting_s=({},) * 2, own_times_s=((1.0,),) * 2, stages=(0, 0))
    found = time_by_part(profile)
    assert [part.part for part in found] == ["compute", "tp", "optimizer", "data"]
    assert {part.part: part.share for part in found} == pytest.approx(
        {"compute": 0.6, "tp": 0.1, "optimizer": 0.1, "data": 0.2}
    )
