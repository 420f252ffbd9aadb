"""The interval covers the true median as often as it says, for skewed samples too, and small numbers are exact; of many
samples it is the normal approximation. The interval of the mean is Student's."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from scipy import stats

from meshtune.runners.measuring import (
    CONFIDENCE,
    MAX_EXACT,
    MIN_SAMPLES,
    Interval,
    evidence_of_slower,
    is_tight,
    mean_interval,
    median_interval,
)

TRIALS = 20_000
# name -> (draw, true median)
DISTRIBUTIONS = {
    "lognormal": (lambda random, shape: random.lognormal(0.0, 1.0, shape), 1.0),
    "exponential": (lambda random, shape: random.exponential(1.0, shape), np.log(2.0)),
    "steps with hiccups": (
        # nine in ten steps take about 1 s, the tenth up to 20: what garbage collection and stragglers do
        lambda random, shape: (
            random.uniform(0.9, 1.1, shape) + (random.random(shape) < 0.1) * random.pareto(1.5, shape)
        ),
        None,
    ),
}


@pytest.mark.parametrize("n", [*range(5, 13), 17, 25, 32, 40])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_interval_covers_the_median_as_often_as_it_says(name, n):
    draw, true = DISTRIBUTIONS[name]
    random = np.random.default_rng([n, *name.encode()])
    if true is None:
        true = float(np.median(draw(random, 4_000_000)))
    samples = draw(random, (TRIALS, n))
    said = median_interval(samples[0].tolist())
    ordered = np.sort(samples, axis=1)
    low = int(np.flatnonzero(ordered[0] == said.low)[0])
    high = int(np.flatnonzero(ordered[0] == said.high)[0])
    assert low == n - 1 - high
    covered = np.mean((ordered[:, low] <= true) & (true <= ordered[:, high]))
    error = 4 * np.sqrt(said.coverage * (1 - said.coverage) / TRIALS)
    assert covered == pytest.approx(said.coverage, abs=error)
    if n >= MIN_SAMPLES:
        assert covered >= CONFIDENCE - error
        # The next narrower one would not do.
        inner = np.mean((ordered[:, low + 1] <= true) & (true <= ordered[:, high - 1]))
        assert inner < CONFIDENCE + error


@pytest.mark.parametrize(
    ("n", "low", "high", "coverage"),
    [
        (1, 1, 1, 0.0),
        (2, 1, 2, 0.5),
        (3, 1, 3, 0.75),
        (5, 1, 5, 0.9375),
        (6, 1, 6, 0.96875),
        (8, 1, 8, 1 - 2 / 256),
        (9, 2, 8, 1 - 2 * (1 + 9) / 512),  # the table of David and Nagaraja starts so
        (20, 6, 15, 1 - 2 * (1 + 20 + 190 + 1140 + 4845 + 15504) / 2**20),
    ],
)
def test_small_numbers_are_exact(n, low, high, coverage):
    assert median_interval(list(range(n, 0, -1))) == Interval(low, high, pytest.approx(coverage, abs=1e-15))


@pytest.mark.parametrize(
    ("samples", "precision", "tight"),
    [
        ([1.0] * 5, 0.5, False),  # too few, however equal
        ([1.0] * 6, 0.001, True),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.1], 0.09, False),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.1], 0.11, True),
        ([0.9, 1.0, 1.0, 1.0, 1.0, 1.0], 0.09, False),  # the lower side counts as much
        ([50.0, 99.0, 100.0, 100.0, 100.0, 100.0, 100.0, 101.0, 500.0], 0.01, True),  # an outlier on either side
        ([50.0, 99.0, 100.0, 100.0, 100.0, 100.0, 100.0, 101.0, 500.0], 0.0099, False),
        ([], 1.0, False),
    ],
)
def test_an_interval_is_tight_when_both_ends_are_near_the_median(samples, precision, tight):
    assert is_tight(samples, precision) is tight


def test_of_many_samples_the_ranks_are_those_of_the_normal_approximation():
    for n in (MAX_EXACT, MAX_EXACT + 1, 10_000):
        found = median_interval(range(n))
        ranks = stats.binom.ppf(0.025, n, 0.5)
        assert (found.low, found.low + found.high) == (pytest.approx(ranks, abs=2), n - 1)
        assert found.coverage == pytest.approx(CONFIDENCE, abs=0.008)
        assert found.coverage >= CONFIDENCE - 1e-6


@pytest.mark.parametrize(
    "samples", [[1.0, 1.1], [0.5] * 7 + [9.0], list(np.random.default_rng(1).lognormal(size=3000))]
)
def test_the_interval_of_the_mean_is_students_and_ends_above_zero(samples):
    found = mean_interval(samples)
    low, high = stats.t.interval(0.95, len(samples) - 1, np.mean(samples), stats.sem(samples))
    assert found.high == pytest.approx(high, rel=1e-3)
    assert max(low, 0.0) < found.low < np.mean(samples)


def test_the_interval_of_one_sample_covers_nothing():
    assert mean_interval([2.0]) == Interval(2.0, 2.0, 0.0)
    with pytest.raises(ValueError, match="empty"):
        mean_interval([])


@pytest.mark.parametrize(("slower", "steps"), [(0, 6), (6, 6), (40, 61), (1000, 1000), (560, 1001), (1560, 3000)])
def test_the_evidence_is_that_of_whole_numbers_at_any_length(slower, steps):
    ways = sum(comb(steps + 1, i) for i in range(slower + 1))
    exact = ways * 10**9 // ((steps + 1) * comb(steps, slower)) / 1e9
    assert evidence_of_slower(slower, steps) == pytest.approx(exact, rel=1e-6, abs=2e-9)
