"""A slower plan is given up soon, an equal one almost never, though the question is asked after every step."""

from __future__ import annotations

import random
from math import log

from meshtune.runners.measuring import WINDOW, is_surely_slower, warmup_length

MOST_STEPS = 60
RUNS = 1500
MEDIAN_OF_NOISE = 0.1 * log(2)


def step_time(generator: random.Random, level: float) -> float:
    """Of median `level`, exactly, and skewed, with hiccups on the slow side."""
    excess = generator.expovariate(1 / 0.1)
    return level * (1 + excess - MEDIAN_OF_NOISE) * (3.0 if excess > 0.4 else 1.0)


def pruned_after(generator: random.Random, level: float, *, warmup: int = 0) -> int | None:
    """The number of steps after which a run of that level is given up against an incumbent of 1.0."""
    times = [step_time(generator, level) * (2.0 if step < warmup else 1.0) for step in range(MOST_STEPS)]
    for taken in range(1, MOST_STEPS + 1):
        start = warmup_length(times[:taken], most=10, window=WINDOW, tolerance=0.03)
        if start is not None and is_surely_slower(times[start:taken], 1.0):
            return taken
    return None


def rate(level: float, seed: int, *, warmup: int = 0) -> float:
    generator = random.Random(seed)
    return sum(pruned_after(generator, level, warmup=warmup) is not None for _ in range(RUNS)) / RUNS


def test_an_equally_fast_plan_is_given_up_in_less_than_one_run_in_twenty():
    assert rate(1.0, seed=0) < 0.05
    assert rate(1.0, seed=1, warmup=3) < 0.05


def test_a_faster_plan_is_hardly_ever_given_up():
    assert rate(0.97, seed=2) < 0.01


def test_a_plan_that_is_twice_as_slow_is_given_up_as_soon_as_can_be():
    generator = random.Random(4)
    taken = [pruned_after(generator, 2.0) for _ in range(200)]
    assert all(steps is not None for steps in taken)
    assert sorted(taken)[100] <= 10


def test_no_run_is_given_up_before_an_interval_exists():
    assert not is_surely_slower([100.0] * 5, 1.0)
    assert not is_surely_slower([100.0] * 7, 1.0)
    assert is_surely_slower([100.0] * 8, 1.0)
