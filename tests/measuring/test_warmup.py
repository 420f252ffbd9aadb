"""Warm-up is found in series of step times whose truth is known."""

from __future__ import annotations

import random

from meshtune.runners.measuring import WINDOW, is_settled, warmup_length

TOLERANCE = 0.03
MOST = 10


def noisy(generator: random.Random, levels: list[float], spread: float = 0.05) -> list[float]:
    """Skewed noise on the levels, as step times have it: mostly small, now and then a hiccup."""
    return [
        level * (1 + generator.expovariate(1 / spread)) * (1.5 if generator.random() < 0.03 else 1.0)
        for level in levels
    ]


def length(times: list[float]) -> int | None:
    return warmup_length(times, most=MOST, window=WINDOW, tolerance=TOLERANCE)


def test_a_series_that_is_stable_from_the_start_loses_nothing():
    assert length([1.0] * 20) == 0
    assert length([1.0, 1.01, 0.99, 1.02, 1.0, 1.01]) == 0


def test_a_first_step_spike_is_dropped_alone():
    assert length([1.8] + [1.0] * 12) == 1
    assert length([4.0, 1.8] + [1.0] * 12) == 2
    assert length([1.8, 1.8] + [1.0] * 12) == 2


def test_a_slow_ramp_is_dropped_whole():
    ramp = [1.0 + 0.05 * (8 - step) for step in range(8)]
    assert length(ramp + [1.0] * 12) >= 7
    assert length([1.0] * 3 + [1.3] * 12) >= 2  # a device that slows down as it heats up


def test_a_series_that_never_settles_is_capped():
    assert length([2.0**-step for step in range(30)]) == MOST
    assert not is_settled([2.0**-step for step in range(10, 16)], TOLERANCE)


def test_nothing_is_said_before_a_window_is_complete_and_an_answer_is_final():
    generator = random.Random(2)
    times = noisy(generator, [3.0, 2.0, 1.5] + [1.0] * 20)
    answers = [length(times[:n]) for n in range(len(times) + 1)]
    assert answers[:WINDOW] == [None] * WINDOW
    said = [answer for answer in answers if answer is not None]
    assert set(said) == {said[-1]}


def test_without_a_warm_up_everything_counts():
    assert warmup_length([9.0, 1.0], most=0, window=WINDOW, tolerance=TOLERANCE) == 0
