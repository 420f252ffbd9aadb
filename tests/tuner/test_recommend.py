"""Ranking, gains with their intervals, and the promise: nothing is recommended that was not surely measured better."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.runners.measuring.step_breakdown import Profile
from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.results.export import NothingToExport, choose, ranked_document, recommendation_document
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.recommendation import recommend


@pytest.fixture
def campaign(lab, make):
    return lambda **over: make.campaign(lab.spec(**{"baseline": {"tp": 1}, **over}), CampaignState.COMPLETED)


@pytest.fixture
def trials(make):
    """Trials by their steps' seconds, the first the baseline; a pair gives the spread too, None a crash."""

    def build(*steps, baseline=True, **more):
        built = []
        for number, given in enumerate(steps):
            step, spread = given if isinstance(given, tuple) else (given, 0.001)
            outcome = Verdict.CRASHED if step is None else make.measurement(step, spread=spread, **more)
            origin = Origin.BASELINE if baseline and number == 0 else Origin.SEARCH
            built.append(make.trial(number, outcome, origin=origin))
        return built

    return build


def numbers(ranking):
    return [entry.trial.number for entry in ranking]


def test_the_fastest_ranks_first_and_what_failed_not_at_all(campaign, trials):
    ranking = rank(campaign(), trials(1.0, 2.0, None, 0.5))
    assert numbers(ranking) == [3, 0, 1]
    assert [entry.rank for entry in ranking] == [1, 2, 3]


def test_equal_trials_rank_in_the_order_of_their_numbers(campaign, trials):
    assert numbers(rank(campaign(), list(reversed(trials(1.0, 1.0, 1.0))))) == [0, 1, 2]


def test_the_numbers_of_a_ranked_trial(campaign, trials):
    entry = rank(campaign(), trials((2.0, 0.1), peak_memory_bytes=(5, 9, 7)))[0]
    assert entry.objective.value == pytest.approx(1024 / 4 / 2.0)
    assert (entry.objective.low, entry.objective.high) == pytest.approx((1024 / 4 / 2.2, 1024 / 4 / 1.8))
    assert entry.tokens_per_s.value == pytest.approx(512)
    assert entry.memory_bytes == 9


def test_a_trial_without_memory_numbers_has_none(campaign, trials):
    assert rank(campaign(), trials(1.0))[0].memory_bytes is None


@pytest.mark.parametrize(
    ("objective", "flops", "best", "value"),
    [
        ("tokens_per_s_per_device", None, 1, 256 / 0.5),
        ("step_time", None, 1, 0.5),
        ("tflops_per_device", 2e12, 1, 256 / 0.5 * 2),
        ("mfu", 1e9, 1, 100 * 256 / 0.5 * 1e9 / 1e15),
        ("cost", None, 1, 1e9 / (256 / 0.5) / 3600),
    ],
)
def test_every_objective_ranks_by_its_own_measure_in_its_own_unit(campaign, trials, objective, flops, best, value):
    cluster = {"preset": "local-cpu", "device": {"peak_flops": {"float32": 1e15}}}
    ranking = rank(
        campaign(objective=objective, cluster=cluster), trials((1.0, 0.1), (0.5, 0.1), model_flops_per_token=flops)
    )
    assert ranking[0].trial.number == best
    objective_ = ranking[0].objective
    assert objective_.value == pytest.approx(value)
    assert objective_.low < objective_.value < objective_.high


def test_flops_that_the_job_does_not_report_follow_from_the_models_shapes(campaign, trials):
    found = campaign(objective="tflops_per_device")
    entry = rank(found, trials(1.0))[0]
    assert entry.objective.value == pytest.approx(256 * found.spec.model.flops_per_token / 1e12)


def test_a_gain_is_the_ratio_of_speeds_with_the_widest_ends(campaign, trials):
    gain = rank(campaign(), trials((1.0, 0.1), (0.5, 0.1)))[0].gain
    assert gain.value == pytest.approx(1.0)
    assert gain.low == pytest.approx((0.9 / 0.55) - 1)
    assert gain.high == pytest.approx((1.1 / 0.45) - 1)


def test_the_baseline_gains_exactly_nothing_over_itself(campaign, trials):
    gain = rank(campaign(), trials((1.0, 0.3)))[0].gain
    assert (gain.value, gain.low, gain.high) == (0, 0, 0)


# The recommendation


def test_what_was_measured_surely_better_is_recommended(campaign, trials):
    found = recommend(campaign(), trials(1.0, 0.8))
    assert (found.choice.trial.number, found.better) == (1, True)
    assert found.reason.startswith("+25.0 % (+24.8 to +25.3 %) faster than the baseline")


def test_within_the_noise_the_baseline_stays(campaign, trials):
    found = recommend(campaign(), trials((1.0, 0.1), (0.95, 0.1)))
    assert (found.choice.trial.number, found.better) == (0, False)
    assert "keep the baseline" in found.reason
    assert "not beyond the noise" in found.reason


def test_a_sure_gain_is_taken_before_a_larger_one_within_the_noise(campaign, trials):
    steps = (1.0, (0.79, 0.4), (0.8, 0.001))
    assert numbers(rank(campaign(), trials(*steps)))[0] == 1
    found = recommend(campaign(), trials(*steps))
    assert (found.choice.trial.number, found.better) == (2, True)


def test_when_nothing_is_faster_the_baseline_stays(campaign, trials):
    found = recommend(campaign(), trials(1.0, 1.5))
    assert (found.choice.trial.number, found.better) == (0, False)
    assert found.reason == "no setting was measured faster than the baseline"


@pytest.mark.parametrize("gap", [0.0, 0.01, 0.05, 0.2])
@pytest.mark.parametrize("spread", [0.001, 0.03, 0.3])
def test_nothing_is_called_better_unless_the_intervals_are_apart(campaign, trials, gap, spread):
    found = recommend(campaign(), trials((1.0, spread), (1.0 - gap, spread)))
    apart = (1.0 - gap) * (1 + spread) < 1.0 - spread
    assert found.better is apart
    assert found.choice.trial.number == int(apart)


def test_a_failed_baseline_is_said_and_nothing_is_called_better(campaign, trials):
    found = recommend(campaign(), trials(None, 0.8))
    assert (found.choice.trial.number, found.better) == (1, False)
    assert "the baseline itself has no measurement" in found.reason
    assert found.choice.gain is None


def test_without_a_baseline_the_fastest_is_named_without_a_gain(campaign, trials):
    found = recommend(campaign(baseline=None), trials(1.0, 0.8, baseline=False))
    assert (found.choice.trial.number, found.better) == (1, False)
    assert "names no baseline" in found.reason


def test_with_nothing_measured_nothing_is_recommended(campaign, trials):
    for measured in ((), trials(None, None)):
        found = recommend(campaign(), measured)
        assert (found.choice, found.better, found.reason) == (None, False, "no setting was measured")


@pytest.mark.parametrize("objective", ["step_time", "cost"])
def test_step_time_and_cost_are_better_when_smaller(campaign, trials, objective):
    found = recommend(campaign(objective=objective), trials(1.0, 2.0, 0.5))
    assert (found.choice.trial.number, found.better) == (2, True)


# Whether it is the same training


@pytest.fixture
def losing(make):
    """Trials by (seconds, first losses), the first the baseline."""

    def build(*given, **more):
        return [
            make.trial(
                number,
                make.measurement(step, first_losses=losses, **more),
                origin=Origin.SEARCH if number else Origin.BASELINE,
            )
            for number, (step, losses) in enumerate(given)
        ]

    return build


def test_a_faster_setting_that_does_not_train_the_same_is_not_recommended_and_it_is_said(campaign, losing):
    measured = losing((1.0, (2.0, 1.5)), (0.5, (2.0, 1.0)), (0.8, (2.0, 1.50001)))
    assert [entry.trains_as_baseline for entry in rank(campaign(), measured)] == [
        "does not train the same: the losses of step 1 differ by 0.5",
        True,
        True,
    ]
    found = recommend(campaign(), measured)
    assert (found.choice.trial.number, found.better) == (2, True)
    assert found.reason.startswith("+25.0 %")
    assert found.reason.endswith(
        f"; {measured[1].plan.key} ranks above it, but does not train the same: the losses of step 1 differ by 0.5"
    )


def test_when_all_that_is_faster_trains_otherwise_the_baseline_stays(campaign, losing):
    found = recommend(campaign(), losing((1.0, (2.0,)), (0.5, (3.0,)), (0.6, (4.0,))))
    assert (found.choice.trial.number, found.better) == (0, False)
    assert found.reason.startswith("no setting was measured faster than the baseline; ")
    assert "(1 more likewise)" in found.reason


def test_a_slower_setting_that_trains_otherwise_is_not_worth_a_word(campaign, losing):
    found = recommend(campaign(), losing((1.0, (2.0,)), (0.5, (2.0,)), (2.0, (4.0,))))
    assert found.choice.trial.number == 1
    assert "train" not in found.reason


@pytest.mark.parametrize(
    ("dtype", "same"), [("float32", False), ("bfloat16", True), ("float16", True)], ids=lambda value: str(value)
)
def test_the_tolerance_is_that_of_the_number_format(campaign, losing, monkeypatch, dtype, same):
    monkeypatch.setattr("tests.tuner.conftest.FakeWorkload.dtype", dtype)
    entry = rank(campaign(), losing((1.0, (2.0,)), (0.5, (2.01,))))[0]
    assert (entry.trains_as_baseline is True, entry.trains_otherwise) == (same, not same)


def test_what_cannot_be_compared_is_neither_equal_nor_different(campaign, losing, trials, make):
    for measured in (losing((1.0, (2.0,)), (0.5, ())), losing((1.0, ()), (0.5, (2.0,))), trials(None, 0.5)):
        entry = rank(campaign(), measured)[0]
        assert (entry.trains_as_baseline, entry.trains_otherwise) == (None, False)
        assert recommend(campaign(), measured).choice.trial.number == 1


def test_another_global_batch_trains_otherwise_by_intent_and_is_not_compared(campaign, losing):
    measured = losing((1.0, (2.0,)), (0.5, (9.0,)))
    outcome = measured[1].outcome
    larger = replace(outcome, measurement=replace(outcome.measurement, tokens_per_step=10**6))
    measured[1] = replace(measured[1], attempts=(replace(measured[1].last, outcome=larger),))
    assert rank(campaign(), measured)[0].trains_as_baseline is None
    assert recommend(campaign(), measured).choice.trial.number == 1


def test_a_baseline_that_diverged_still_trains_as_itself(campaign, losing):
    ranking = rank(campaign(), losing((1.0, (float("nan"),)), (0.5, (2.0,))))
    assert [entry.trains_otherwise for entry in ranking] == [True, False]


# What programs get


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


def test_mfu_follows_the_peak_of_the_clusters_description(campaign, trials):
    cluster = {"preset": "local-cpu", "device": {"peak_flops": {"float32": 1e15}}}
    found = campaign(cluster=cluster, objective="mfu")
    entry = rank(found, trials(1.0))[0]
    assert 100 * entry.mfu == pytest.approx(entry.objective.value)


def test_settings_are_chosen_by_word_or_number(campaign, trials):
    measured = trials((1.0, 0.1), (0.95, 0.1), 2.0, None)

    def chosen(selector):
        return choose(campaign(), measured, selector).trial.number

    assert [chosen(selector) for selector in ("best", "worst", "recommended", "1", "2")] == [1, 2, 0, 1, 2]


@pytest.mark.parametrize("selector", ["3", "99", "-1", "fastest", ""])
def test_a_trial_that_was_not_measured_cannot_be_chosen(campaign, trials, selector):
    with pytest.raises(NothingToExport, match="measured: 1, 0"):
        choose(campaign(), trials(1.0, 0.5, None, None), selector)


def test_a_campaign_without_measurements_has_nothing_to_choose(campaign, trials):
    with pytest.raises(NothingToExport, match="no measured trial yet"):
        choose(campaign(), trials(None), "best")


def test_documents_say_what_the_values_say(campaign, trials):
    found, measured = campaign(), trials(1.0, 0.5)
    ranking = rank(found, measured)
    document = ranked_document(found, ranking[0])
    assert Plan(**document["plan"]) == measured[1].plan
    assert document["gain_over_baseline"]["value"] == pytest.approx(1.0)
    assert document["objective"]["name"] == "tokens_per_s_per_device"
    assert recommendation_document(found, recommend(found, measured))["setting"] == document
    assert recommendation_document(found, recommend(found, ()))["setting"] is None
    without = replace(ranking[0], gain=None, memory_bytes=None)
    assert ranked_document(found, without)["gain_over_baseline"] is None
