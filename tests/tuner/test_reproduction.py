"""Intervals over runs hold what they promise, when chance alone made one setting look better than its equals."""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
import pytest

from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.results.ranking import variance_of


def test_without_a_second_run_nothing_is_known_of_reproduction():
    assert variance_of([]) is None


def test_one_runs_deviation_is_that_of_the_pairs_over_the_root_of_two():
    assert variance_of([exp(0.02) - 1, exp(-0.04) - 1]).log_sd == pytest.approx(sqrt((0.02**2 + 0.04**2) / 2 / 2))


@pytest.mark.parametrize(("pairs", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (10, 3.182)])
def test_the_interval_is_students_with_as_many_degrees_of_freedom_as_pairs_up_to_three(pairs, quantile):
    known = variance_of((exp(0.02) - 1,) * pairs)
    for runs in (1, 2):
        found = known.around(Estimate(100.0, 99.9, 100.1), runs=runs)
        width = quantile * 0.02 / sqrt(2) * sqrt(runs)
        assert (log(found.high / 100), log(100 / found.low)) == pytest.approx((width, width))


def test_an_interval_never_becomes_narrower_than_that_of_the_run_itself():
    assert variance_of((0.0, 0.0)).around(Estimate(100.0, 90.0, 120.0), runs=1) == Estimate(100.0, 90.0, 120.0)


def test_it_says_how_many_settings_and_by_how_much_they_differ():
    assert str(variance_of((-0.012, 0.004, -0.03))).startswith("3 settings measured again: -3.0 to +0.4 % against")
    assert str(variance_of((-0.012,))).startswith("1 setting measured again: -1.2 % against")


@pytest.mark.parametrize("pairs", [1, 3, 5, 10])
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
        known = variance_of(tuple(np.exp(second - first[top]) - 1))
        winner = int(np.argmax(second))
        speed = known.around(Estimate(exp(second[winner]), exp(second[winner]), exp(second[winner])), runs=1)
        covered += speed.low <= exp(true[top[winner]]) <= speed.high
        # Plan 0 is the baseline, measured once.
        ratio = exp(second[winner] - first[0])
        gain = known.around(Estimate(ratio, ratio, ratio), runs=2)
        better += gain.low > 1 and true[top[winner]] <= true[0]
    assert covered / campaigns > 0.94
    assert better / campaigns < 0.04
