"""The simulated landscapes with knobs: their truth, and the best plan in it."""

from __future__ import annotations

from dataclasses import replace

import knob_landscapes
import numpy as np
import pytest
from knob_landscapes import HELD_OUT, IDLE, LANDSCAPES, Landscape, task_of
from knob_worlds import World

from meshtune.runners.outcome import Verdict


def world(name: str, seed: int = 0) -> World:
    return World.of(LANDSCAPES[name], seed)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["fsdp", "plain", "wrong declarations", "tensor", *HELD_OUT])
def test_the_best_plan_is_the_best_of_all(name: str, seed: int) -> None:
    of_seed = world(name, seed)
    space = of_seed.task.space
    listing = space.listing(400_000)
    assert listing is not None
    step_s, peak_bytes = of_seed.costs(*listing)
    fits = peak_bytes <= of_seed.memory_bytes
    assert of_seed.best.step_s == pytest.approx(step_s[fits].min())
    assert of_seed.best.plan in space
    assert of_seed.cost(of_seed.best.plan)[0] == pytest.approx(of_seed.best.step_s)


def test_memory_decides_which_plan_is_the_best() -> None:
    """With all memory of the world the best plan would be another one."""
    faster = 0
    for seed in range(4):
        of_seed = world("tensor", seed)
        listing = of_seed.task.space.listing(100_000)
        assert listing is not None
        step_s, _ = of_seed.costs(*listing)
        faster += step_s.min() < 0.999 * of_seed.best.step_s
    assert faster > 0


def test_the_landscapes_have_from_thousands_to_ten_millions_of_plans() -> None:
    plans = {name: task_of(name).space.plans for name in LANDSCAPES}
    assert min(plans.values()) < 3e3
    assert max(plans.values()) > 1e7
    assert len({round(np.log10(many)) for many in plans.values()}) >= 5


@pytest.mark.parametrize("name", LANDSCAPES)
def test_the_baseline_runs_and_is_not_near_the_best(name: str) -> None:
    of_seed = world(name)
    seen = of_seed.observe(of_seed.baseline)
    assert seen.verdict is Verdict.OK
    assert not of_seed.is_near(of_seed.baseline, 0.05)
    assert of_seed.is_near(of_seed.best.plan, 0.0) or of_seed.is_near(of_seed.best.plan, 1e-9)
    space = of_seed.task.space
    assert of_seed.baseline == space[space.index_of(of_seed.baseline)]


def test_knobs_that_do_nothing_change_no_cost() -> None:
    plain, idle, many = IDLE
    without, having = world(plain, 3), world(idle, 3)
    assert len(having.task.space.knobs) == len(without.task.space.knobs) + many
    assert having.best.step_s == pytest.approx(without.best.step_s)
    assert having.cost(having.baseline) == pytest.approx(without.cost(without.baseline))
    other = replace(having.best.plan, knobs={**having.best.plan.knobs, "idle_0": True, "idle_1": 4})
    assert having.cost(other) == pytest.approx(having.cost(having.best.plan))


def test_an_inactive_knob_costs_nothing_and_seeds_differ() -> None:
    first, second = world("fsdp", 0), world("fsdp", 1)
    assert first.best.step_s != second.best.step_s
    zero_2 = next(plan for plan in first.task.space if plan.zero_stage == 2)
    assert "prefetch" not in zero_2.knobs
    assert first.cost(zero_2)[0] == pytest.approx(first.layouts.step_s[first.task.space.index_of(zero_2)])


def test_a_trial_measures_the_truth_with_noise_the_same_each_time() -> None:
    of_seed = world("plain")
    plan = of_seed.best.plan
    seen = of_seed.observe(plan)
    assert seen == of_seed.observe(plan)
    assert seen.step_time_s == pytest.approx(of_seed.best.step_s, rel=0.08)
    assert seen.step_time_s != of_seed.best.step_s


def test_a_pair_helps_only_together_or_not_together() -> None:
    large: Landscape = LANDSCAPES["large"]
    of_seed = World.of(large, 0)
    together = next(one for one in of_seed.effects if one.knobs == ("overlap_grad", "overlap_param"))
    assert together.time.min() == together.time[1, 1] < 0 <= together.time[1, 0]
    clash = next(one for one in of_seed.effects if one.knobs == ("attention", "launch_queues"))
    alone = min(clash.time[:, 0].min(), clash.time[0].min())
    both = np.unravel_index(np.argmax(np.outer(clash.time[:, 0] < 0, clash.time[0] < 0)), clash.time.shape)
    assert alone < 0
    assert alone < clash.time[both]


def test_declarations_of_one_landscape_are_wrong() -> None:
    knobs = task_of("wrong declarations").space.knobs
    parts = knob_landscapes.LANDSCAPES["wrong declarations"].parts
    wrong = [knob.name for knob in knobs if knob.declared("memory") and parts[knob.name].role == "smaller"]
    assert wrong == ["offload"]
