"""Steps of a job: warm-up, giving up a slower plan, the number of steps, and slow ranks."""

from __future__ import annotations

import random
from math import log
from pathlib import Path
from statistics import median

import pytest

from meshtune.runners.base import JobSpec
from meshtune.runners.measuring import (
    WINDOW,
    at_mean_tokens,
    is_settled,
    is_surely_slower,
    mean_interval,
    step_counts,
    warmup_length,
    window_of,
)
from meshtune.runners.step_breakdown import find_straggler
from meshtune.runners.trainer.job import Measuring, TrainerJob, render_job
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.presets import described, model_presets

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


def throttled(step_s: float, drop_s: float, slower: float, steps: int) -> list[float]:
    """Steps of an accelerator whose clock falls after `drop_s`, evenly over half of that time again."""
    times: list[float] = []
    while len(times) < steps:
        fallen = min(max(sum(times) - drop_s, 0.0) / (drop_s / 2), 1.0)
        times.append(step_s * (1 + (slower - 1) * fallen))
    return times


def test_a_window_of_seconds_sees_a_clock_that_falls_later_than_six_steps_take():
    times = noisy(random.Random(1), throttled(0.1, 1.0, 1.2, 80), spread=0.005)
    of_steps = warmup_length(times, most=20, window=WINDOW, tolerance=TOLERANCE)
    of_seconds = warmup_length(times, most=20, window=WINDOW, tolerance=TOLERANCE, seconds=3.0)
    assert of_steps == 0
    assert of_seconds is not None
    assert sum(times[:of_seconds]) >= 0.5
    settled = median(times[40:])
    timed = [median(window_of(times[start:], WINDOW, s)) for start, s in ((of_steps, 0.0), (of_seconds, 3.0))]
    assert timed[0] < 0.9 * settled
    assert timed[1] == pytest.approx(settled, rel=TOLERANCE)


def test_a_window_of_seconds_is_never_shorter_than_one_of_steps():
    assert window_of([1.0] * 9, WINDOW, 3.0) == [1.0] * 6
    assert window_of([0.5] * 9, WINDOW, 4.0) == [0.5] * 8
    assert window_of([0.5] * 7, WINDOW, 4.0) == []


def test_a_warm_up_of_long_steps_ends_when_it_has_taken_the_least_seconds():
    ramp = [2.0 - 0.1 * step for step in range(20)]
    assert warmup_length(ramp, most=MOST, window=WINDOW, tolerance=TOLERANCE) == MOST
    assert warmup_length(ramp, most=MOST, window=WINDOW, tolerance=TOLERANCE, seconds=3.0) == 2


def test_steady_noise_seldom_looks_like_a_drift_over_seconds():
    generator = random.Random(3)
    runs = [noisy(generator, [0.1] * 60) for _ in range(300)]
    dropped = [warmup_length(run, most=MOST, window=WINDOW, tolerance=TOLERANCE, seconds=3.0) for run in runs]
    assert sum(length > 0 for length in dropped) < 0.1 * len(runs)


@pytest.mark.parametrize(
    ("step_s", "measuring", "steps"),
    [
        (0.1, {}, 6),  # alike steps are tight as soon as there is an interval
        (0.125, {"min_seconds": 3.0}, 24),
        (0.0625, {"min_seconds": 3.0}, 48),  # more than max_steps
        (1.0, {"min_seconds": 3.0}, 6),
        (0.125, {"min_seconds": 3.0, "max_seconds": 2.0}, 16),
        (0.125, {"min_seconds": 3.0, "min_steps": 28}, 28),
    ],
)
def test_as_many_steps_are_timed_as_the_strongest_bound_asks_for(step_s, measuring, steps):
    wanted = Measuring(**measuring)
    assert next(n for n in range(1, 100) if wanted.enough([step_s] * n)) == steps


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


def counts(**measuring):
    shapes = described(model_presets()["gpt-micro"])
    text = render_job(TrainerJob(name="j", model=ModelSpec(**shapes), plan=Plan(), measuring=Measuring(**measuring)))
    return step_counts(_spec({"job.json": text}))


def _spec(files):
    return JobSpec(
        name="j", command=("true",), directory=Path(), nodes=1, devices_per_node=1, time_limit_s=1.0, files=files
    )


def test_the_fewest_steps_are_those_without_warmup():
    assert counts(min_steps=10, max_steps=30, profile_steps=5).least(1.0) == 2 + 10 + 5


def test_a_window_of_steps_is_timed_before_warmup_is_known_to_be_over():
    assert counts(min_steps=1, max_steps=30, profile_steps=0).least(1.0) == 2 + 6
    assert counts(min_steps=1, max_steps=3, profile_steps=0).least(1.0) == 2 + 3


def test_the_most_steps_depend_on_how_long_one_takes():
    found = counts(max_warmup_steps=10, min_steps=6, max_steps=30, max_seconds=60, profile_steps=5)
    assert found.most(0.001) == 2 + 10 + 30 + 5
    assert found.most(6.0) == 2 + 10 + 10 + 5
    assert found.most(1000.0) == 2 + 10 + 6 + 5


def test_the_least_seconds_make_short_steps_many_and_a_long_warm_up_short():
    found = counts(max_warmup_steps=10, min_steps=6, max_steps=30, min_seconds=3, profile_steps=5)
    assert found.least(0.01) == 2 + 300 + 5
    assert found.most(0.01) == 2 + 10 + 300 + 5
    assert found.least(1.5) == 2 + 6 + 5
    assert found.most(1.5) == 2 + 2 + 30 + 5
    assert counts(min_seconds=3, max_seconds=1, profile_steps=0).least(0.01) == 2 + 100


def test_a_job_that_does_not_say_has_no_counts():
    assert step_counts(_spec({})) is None
    assert step_counts(_spec({"job.json": "{}"})) is None


def times(generator: random.Random, level: float, steps: int = 5) -> list[float]:
    return [level * (1 + generator.expovariate(1 / 0.1)) for _ in range(steps)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_slow_rank_is_named_with_its_ratio(ranks):
    generator = random.Random(ranks)
    for slow in range(ranks):
        own = [times(generator, 2.0 if rank == slow else 1.0) for rank in range(ranks)]
        found = find_straggler(own, [0] * ranks)
        assert found is not None
        assert found.rank == slow
        assert 1.6 < found.ratio < 2.4
        assert str(found).startswith(f"rank {slow} takes ")


@pytest.mark.parametrize("ranks", [2, 8])
def test_equal_ranks_with_skewed_noise_are_hardly_ever_blamed(ranks):
    generator = random.Random(7)
    blamed = sum(
        find_straggler([times(generator, 1.0) for _ in range(ranks)], [0] * ranks) is not None for _ in range(1000)
    )
    assert blamed < 10


def test_one_hiccup_names_nobody():
    assert find_straggler([[1.0, 1.0, 9.0, 1.0, 1.0], [1.0] * 5], [0, 0]) is None


def test_a_stage_with_more_work_is_no_straggler_but_a_slow_rank_in_it_is():
    stages = [0, 0, 1, 1]
    assert find_straggler([[1.0] * 3, [1.0] * 3, [2.0] * 3, [2.0] * 3], stages) is None
    found = find_straggler([[1.0] * 3, [1.0] * 3, [2.0] * 3, [3.0] * 3], stages)
    assert found is not None
    assert (found.rank, found.ratio) == (3, 1.5)


@pytest.mark.parametrize("fixed", [0.0, 0.3])
def test_the_interval_of_steps_at_their_mean_tokens_is_that_of_tokens_per_second(fixed):
    """Of steps whose lengths scatter by 20 % and their pace by 1 %, with a share of time that no token takes."""
    generator, covered, narrower = random.Random(5), 0, 0
    for _ in range(400):
        tokens = [generator.lognormvariate(-0.02, 0.2) for _ in range(6)]  # 1 on average
        times_s = [(fixed + (1 - fixed) * count) * generator.gauss(1.0, 0.01) for count in tokens]
        interval, printed = mean_interval(at_mean_tokens(times_s, tokens)[0]), mean_interval(times_s)
        true_s = sum(tokens) / len(tokens)  # at one token a second, which is what all steps make together
        covered += interval.low <= true_s <= interval.high
        narrower += interval.high - interval.low < printed.high - printed.low
    assert 0.92 <= covered / 400 <= 0.98
    assert narrower == 400


def test_what_generates_nothing_is_part_of_the_step_before():
    """Two updates of each generation, of 200 and of 100 tokens."""
    times, mean = at_mean_tokens([3.0, 1.0, 1.5, 0.5], [200, 0, 100, 0])
    assert (times, mean) == (pytest.approx([3.0, 3.0]), 150.0)


def test_times_that_tokens_do_not_explain_stay():
    # A step cannot take less than no time.
    assert at_mean_tokens([1.0, 1.0, 1.0], [400, 1, 1]) == ([1.0, 1.0, 1.0], 134.0)
