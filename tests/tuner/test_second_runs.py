"""Second runs in turns: their order, who leaves, when they end, and how often they err."""

from __future__ import annotations

import runpy
from dataclasses import replace
from itertools import product
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from meshtune.runners.measuring import two_sided_quantile
from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.scatter import Scatter, bounds, reach
from meshtune.tuner.campaign.second_runs import ERROR, next_turn, paired_gain, planned_runs, run_variance
from meshtune.tuner.campaign.spec import Budget
from meshtune.tuner.campaign.trial import Origin


@pytest.fixture
def spec(lab):
    return lambda **over: replace(lab.spec(baseline={"tp": 1}), **over)


@pytest.fixture
def on(spec):
    """The same of a cluster of such devices."""
    device = spec().cluster.device
    return lambda kind, **over: spec(cluster=replace(spec().cluster, device=replace(device, kind=kind)), **over)


def play(spec, make, trials, speed):
    """The second runs of a campaign: (round, number of the first trial) in the order of their planning. speed: of a
    first trial's number in a round, a Verdict for a failure."""
    trials = list(trials)
    first = {trial.plan: trial.number for trial in reversed(trials)}
    order = []
    while (turn := next_turn(spec, trials)) is not None:
        plan = turn.missing[0]
        given = speed(first[plan], turn.round)
        ended = given if isinstance(given, Verdict) else make.measurement(1 / given)
        trials.append(make.trial(len(trials), ended, origin=Origin.CONFIRMATION, plan=plan, round=turn.round))
        order.append((turn.round, first[plan]))
    return order


def test_the_best_the_baseline_and_the_others_run_in_turns_and_back(spec, make, runs):
    # All alike, but for a noise that leaves nothing clear.
    noise = {(0, 1): 1.0, (1, 1): 1.15, (2, 1): 1.1, (0, 2): 1.1, (1, 2): 1.0, (2, 2): 1.2}
    order = play(spec(confirm=2, confirm_rounds=2), make, runs(1.0, 0.9, 0.95), lambda *at: noise[at])
    assert order == [(1, 1), (1, 0), (1, 2), (2, 2), (2, 0), (2, 1)]


def test_one_round_decides_on_gpus(on, make, runs):
    order = play(on(DeviceKind.CUDA, confirm=1), make, runs(1.0, 0.98), lambda plan, _: 1 + 0.021 * (plan == 1))
    assert order == [(1, 1), (1, 0)]


def test_a_cluster_that_is_not_as_its_devices_let_expect_is_believed(on, make, runs):
    """A baseline that is 30 % slower than in its first run is no gain of another plan."""
    for slow in (1, 2):
        order = play(
            on(DeviceKind.CUDA, confirm=1),
            make,
            runs(1.0, 1.0 - 1e-6),
            lambda plan, round, slow=slow: 0.7 if plan == 0 and round <= slow else 1.0,
        )
        assert max(round for round, _ in order) > slow


def test_a_plan_leaves_that_hardly_can_be_worth_it_and_one_that_is_surely_slower_than_another(on, make, runs):
    for speeds in ((1.0, 1.012, 0.9), (1.0, 1.018, 1.002)):
        order = play(
            on(DeviceKind.CUDA, confirm=2),
            make,
            runs(1.0, 1 / speeds[1], 1 / speeds[2] * 0.99),
            lambda plan, round, speeds=speeds: speeds[plan] * (1 + 0.004 * (-1) ** (plan + round)),
        )
        assert not [turn for turn, plan in order if plan == 2 and turn > 2]
        assert max(turn for turn, _ in order) < 12


def test_plans_that_no_run_tells_apart_end_when_the_rounds_that_are_left_would_not_either(spec, make, runs):
    random = np.random.default_rng(1)
    order = play(spec(confirm=1, confirm_rounds=4), make, runs(1.0, 0.9), lambda *_: exp(random.normal(0, 0.1)))
    assert len(order) <= 8


def test_a_plan_that_fails_leaves(spec, make, runs):
    order = play(
        spec(confirm=2),
        make,
        runs(1.0, 0.8, 0.9),
        lambda plan, round: Verdict.OOM if plan == 1 else 1.0 + 0.25 * (plan == 2),
    )
    assert order[:5] == [(1, 1), (1, 0), (1, 2), (2, 2), (2, 0)]
    assert (2, 1) not in order


def test_a_plan_whose_run_was_lost_stays(on, make, runs):
    for lost, verdict in product((0, 1), (Verdict.LOST, Verdict.CANCELLED)):
        order = play(
            on(DeviceKind.CUDA, confirm=1),
            make,
            runs(1.0, 0.8),
            lambda *at, lost=(lost, 1), verdict=verdict: verdict if at == lost else 1.0 + 0.25 * (at[0] == 1),
        )
        assert order == [(1, 1), (1, 0), (2, 0), (2, 1)]


def test_nothing_runs_again_where_only_the_baseline_would(spec, make, runs):
    assert play(spec(confirm=1), make, runs(1.0, 1.2), lambda *_: 1.0) == []
    assert play(spec(confirm=0), make, runs(1.0, 0.8), lambda *_: 1.0) == []


def test_without_a_baseline_two_rounds_tell_how_far_runs_scatter(spec, make, runs):
    order = play(spec(confirm=2, baseline=None), make, runs(1.0, 0.8, baseline=False), lambda *_: 1.0)
    assert order == [(1, 1), (1, 0), (2, 0), (2, 1)]


def test_a_plan_that_trains_otherwise_is_not_measured_again(spec, make):
    trials = [
        make.trial(number, make.measurement(step, first_losses=(loss,)), origin=origin, plan=Plan(dp=4, tp=1 + number))
        for number, (step, loss, origin) in enumerate([(1.0, 2.0, Origin.BASELINE), (0.8, 9.0, Origin.SEARCH)])
    ]
    assert play(spec(confirm=1), make, trials, lambda *_: 1.0) == []


@pytest.mark.parametrize(
    ("confirm", "rounds", "counts"),
    [(3, 6, (3, 24)), (1, 6, (0, 12)), (3, 1, (3, 4)), (0, 6, (0, 0)), (99, 2, (10, 22))],
)
def test_the_number_of_second_runs_is_bounded(spec, confirm, rounds, counts):
    assert planned_runs(spec(confirm=confirm, confirm_rounds=rounds, budget=Budget(trials=10)), 99) == (10, counts)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 10, 57])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.99, 0.999])
def test_students_quantiles(degrees, level):
    assert two_sided_quantile(level, degrees) == pytest.approx(stats.t.ppf((1 + level) / 2, degrees))


def test_many_runs_tell_the_scatter_whatever_was_expected_of_the_devices():
    for kind in DeviceKind:
        scatter = Scatter(kind, 2000, 2000 * 0.03**2)
        assert scatter.typical == pytest.approx(0.03, rel=0.1)
        assert reach(scatter, 0.05) == pytest.approx(0.03 * stats.norm.isf(0.05), rel=0.05)


def test_the_kind_of_device_decides_with_the_runs_and_the_runs_alone_against_it():
    tail = ERROR / 14
    assert reach(Scatter(DeviceKind.CUDA, 2, 2 * 0.001**2), tail) < log(1.02) / sqrt(2)
    assert reach(Scatter(DeviceKind.CPU, 2, 2 * 0.1**2), tail) < 0.5 * 0.1 * stats.t.isf(tail, 2)
    for degrees, scatter in product((3, 4, 8), (0.05, 0.15)):
        against = Scatter(DeviceKind.CUDA, degrees, degrees * scatter**2)
        assert reach(against, tail) == pytest.approx(scatter * stats.t.isf(tail, degrees), rel=0.05)


@pytest.mark.parametrize("looks", [1, 5, 12])
def test_the_error_is_spent_evenly_over_the_looks(looks):
    z = np.array(bounds(0.05, looks))
    sums = np.cumsum(np.random.default_rng(4).normal(size=(200_000, looks)), axis=1) / np.sqrt(np.arange(1, looks + 1))
    first = np.argmax(sums >= z, axis=1)[np.any(sums >= z, axis=1)]
    assert np.bincount(first, minlength=looks) / len(sums) == pytest.approx(0.05 / looks, rel=0.1)


def long(*values):
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.fixture(scope="module")
def simulation():
    """benchmarks/second_runs.py, for fewer campaigns."""
    return runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/second_runs.py"))


def test_what_is_better_is_recommended_nine_times_of_ten(simulation):
    ends = simulation["simulate"](20, 1, simulation["World"](scatter=0.05, gain=0.1))
    assert sum(end.better and end.truth > 0 for end in ends) >= 0.9 * len(ends)
    assert sum(end.runs for end in ends) <= 2 * 16.1 * len(ends), "twice as many as before"


@pytest.mark.parametrize("confirm", [1, 3])
def test_on_gpus_a_gain_of_2_percent_is_decided_with_one_second_run(simulation, confirm):
    world = simulation["World"](kind=DeviceKind.CUDA, scatter=0.001, gain=0.023, confirm=confirm)
    ends = simulation["simulate"](10, 7, world)
    assert sum(end.better and end.rounds == 1 for end in ends) >= 0.9 * len(ends)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DeviceKind.CUDA, DeviceKind.CPU])
@pytest.mark.parametrize("scatter", [long(0.001), long(0.01), 0.05, long(0.15)])
@pytest.mark.parametrize(("confirm", "rounds"), [long(1, 14), long(3, 2), (3, 14), long(8, 12)])
def test_of_equal_plans_one_is_recommended_in_at_most_5_percent_of_campaigns(
    simulation, confirm, rounds, scatter, kind
):
    """However many candidates and looks there are, and whatever was expected of the devices."""
    world = simulation["World"](kind=kind, scatter=scatter, confirm=confirm, rounds=rounds)
    # And a standard error of 200 draws.
    assert simulation["named_of_equal"](200, 3, world) <= 0.05 + sqrt(0.05 * 0.95 / 200)


@pytest.mark.slow
@pytest.mark.parametrize("gain", [long(0.0), 0.1])
@pytest.mark.parametrize(("kind", "scatter"), [("cuda", 0.001), long("cuda", 0.01), ("cpu", 0.05), long("cpu", 0.15)])
def test_90_percent_intervals_cover_85_to_95_percent(simulation, kind, scatter, gain):
    ends = simulation["simulate"](300, 3, simulation["World"](kind=DeviceKind(kind), scatter=scatter, gain=gain))
    covered = [end.covered for end in ends if end.covered is not None]
    # Within two standard errors of 300 draws.
    assert np.mean(covered) == pytest.approx(0.9, abs=0.05 + 2 * sqrt(0.1 * 0.9 / 300))


@pytest.mark.parametrize("scatter", [0.15, 0.25])
def test_a_gain_as_of_the_demo_is_recommended_in_few_rounds(simulation, scatter):
    ends = simulation["simulate"](10, 7, simulation["World"](scatter=scatter, gain=2.0))
    assert sum(end.better and end.truth > 0 for end in ends) >= 10
    assert np.mean([end.rounds for end in ends]) <= 4


def again(make, trials, plan, round, step_s):
    """One more second run of this plan."""
    return [
        *trials,
        make.trial(len(trials), make.measurement(step_s), origin=Origin.CONFIRMATION, plan=plan, round=round),
    ]


def test_after_an_extension_a_new_one_of_the_best_runs_beside_the_others_in_rounds_of_their_own(spec, make, runs):
    few = spec(confirm=2, confirm_rounds=2)
    trials = list(runs(1.0, 0.8, 0.9))
    for round in (1, 2):
        for number in (1, 0, 2):
            trials = again(make, trials, trials[number].plan, round, 1.0 + 0.1 * round + 0.05 * number)
    assert next_turn(few, trials) is None
    slow, fast = runs(1.0, 1.0, 1.0, 0.95, 0.5)[3:]
    trials.append(make.trial(9, make.measurement(0.95), plan=slow.plan))
    assert next_turn(few, trials) is None, "it is not among the best, so nothing is repeated"
    trials.append(make.trial(10, make.measurement(0.5), plan=fast.plan))
    turn = next_turn(few, trials)
    assert (turn.round, turn.last, turn.missing) == (3, 4, (fast.plan, trials[0].plan, trials[1].plan))


def test_a_round_that_first_runs_came_after_is_not_completed_at_another_time(spec, make, runs):
    few = spec(confirm=2, confirm_rounds=2)
    best, base, other = (runs(1.0, 0.8, 0.9)[number].plan for number in (1, 0, 2))
    # A budget ended the first round when the baseline ran; it was raised, and the search went on.
    trials = again(make, list(runs(1.0, 0.8, 0.9)), best, 1, 0.8)
    trials.append(make.trial(4, Verdict.CANCELLED, origin=Origin.CONFIRMATION, plan=base, round=1))
    assert next_turn(few, trials).missing == (other,)
    slow = make.trial(5, make.measurement(2.0), plan=Plan(dp=4, micro_batch_size=4))
    turn = next_turn(few, [*trials, slow])
    assert (turn.round, turn.last, turn.missing) == (2, 3, (best, base, other))


def test_a_plan_that_failed_in_a_second_run_is_in_no_later_series(spec, make, runs):
    few = spec(confirm=2, confirm_rounds=1)
    trials = list(runs(1.0, 0.8, 0.9))
    trials.append(make.trial(3, Verdict.OOM, origin=Origin.CONFIRMATION, plan=trials[1].plan, round=1))
    for number in (0, 2):
        trials = again(make, trials, trials[number].plan, 1, 1.0)
    new = make.trial(6, make.measurement(0.7), plan=Plan(dp=4, micro_batch_size=4))
    assert next_turn(few, [*trials, new]).missing == (new.plan, trials[0].plan)


def test_a_second_run_that_somebody_asked_for_asks_for_no_others_and_ends_no_round(spec, make, runs):
    few = spec(confirm=1, confirm_rounds=2)
    trials = list(runs(1.0, 0.8, 0.9))
    for round in (1, 2):
        for number in (1, 0):
            trials = again(make, trials, trials[number].plan, round, 1.0 - 0.2 * number + 0.01 * round)
    assert next_turn(few, trials) is None
    assert next_turn(few, again(make, trials, trials[2].plan, 3, 0.9)) is None


def test_runs_alone_in_their_rounds_tell_nothing_of_pairs(spec, runs):
    one, other, third = (trial.plan for trial in runs(1.0, 0.8, 0.9))
    pairs = {(one, 1): 0.0, (one, 2): 0.2, (other, 1): 0.5, (other, 2): 0.6}
    alone = {(third, 3): 1.0, (third, 4): 9.0, (one, 5): 4.0}
    first = {one: 0.0, other: 0.5, third: 1.0}
    told = run_variance(first, pairs, one, spec()).paired
    more = run_variance(first, {**pairs, **alone}, one, spec()).paired
    assert (told.degrees, more.degrees) == (2, 2)
    assert more.squares == pytest.approx(told.squares)


def test_what_one_round_decided_stays_when_another_plan_is_measured_again(on, runs):
    """`rerun` of another plan and the baseline makes a second round, in which this one was not."""
    base, best, other = (trial.plan for trial in runs(1.0, 0.7, 0.75))
    first = {base: 0.0, best: 0.36, other: 0.29}
    cells = {(base, 1): 0.02, (best, 1): 0.34, (other, 1): 0.27}
    for more in ({}, {(other, 2): 0.28}, {(other, 2): 0.28, (base, 2): 0.01}):
        known = {**cells, **more}
        gain = paired_gain(best, base, known, run_variance(first, known, base, on(DeviceKind.CUDA)))
        assert (gain.rounds, gain.sure > 0) == (1, True), more
