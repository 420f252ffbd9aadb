"""Simulated steps of reinforcement learning: their plans cost what the phases make them cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from knob_landscapes import LANDSCAPES, ROLLOUTS
from knob_rollouts import RolloutWorld
from knobs import NEAR

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.search.physics.search import PhysicsSearch

pytestmark = pytest.mark.slow

COLOCATED, LONG, SEPARATED = (one.name for one in ROLLOUTS)


@pytest.fixture(scope="module")
def colocated() -> RolloutWorld:
    return RolloutWorld(LANDSCAPES[COLOCATED], 0)


def changed(plan: Plan, **knobs: Any) -> Plan:
    return replace(plan, knobs={**plan.knobs, **knobs})


@pytest.mark.parametrize("name", [COLOCATED, LONG, SEPARATED])
def test_a_person_starts_with_a_plan_that_fits(name: str) -> None:
    for seed in range(3):
        world = RolloutWorld(LANDSCAPES[name], seed)
        assert not world.task.space.explain(world.baseline)
        assert world.observe(world.baseline).verdict is Verdict.OK


def test_the_best_plan_is_the_fastest_that_fits() -> None:
    world = RolloutWorld(LANDSCAPES[SEPARATED], 1)
    assert not world.is_near(world.baseline, NEAR)
    assert world.is_near(world.best.plan, 0.0)
    around = [
        changed(world.best.plan, **{knob.name: value}) for knob in world.task.space.knobs for value in knob.values
    ]
    costs = [world.cost(plan) for plan in around if not world.task.space.explain(plan)]
    assert world.best.step_s == min(step_s for step_s, peak_bytes in costs if peak_bytes <= world.memory_bytes)


def test_the_fullest_phase_decides(colocated: RolloutWorld) -> None:
    """A large share needs room beside it, which an offload makes; micro-batches fill the update, not the engine."""
    full = changed(colocated.baseline, gpu_memory_utilization=0.9)
    assert colocated.cost(full)[1] > colocated.memory_bytes
    offloaded = changed(full, param_offload=True, optimizer_offload=True)
    assert colocated.cost(offloaded)[1] <= colocated.memory_bytes
    assert colocated.cost(offloaded)[1] == colocated.cost(changed(offloaded, log_prob_micro_batch_size_per_gpu=8))[1]
    asleep = replace(changed(colocated.baseline, gpu_memory_utilization=0.6), micro_batch_size=4, grad_accum_steps=32)
    awake = changed(asleep, free_cache_engine=False)
    assert colocated.cost(asleep)[1] <= colocated.memory_bytes < colocated.cost(awake)[1]


def test_an_engine_without_room_for_a_row_does_not_start() -> None:
    world = RolloutWorld(LANDSCAPES[LONG], 0)
    small = changed(world.baseline, gpu_memory_utilization=0.3, tensor_model_parallel_size=2)
    assert world.observe(small).verdict is Verdict.OOM
    assert world.observe(changed(small, tensor_model_parallel_size=4)).verdict is Verdict.OK


def test_an_engine_that_preempts_is_slow_and_runs(colocated: RolloutWorld) -> None:
    """More rows in flight are faster as long as their keys and values have room, and slower beyond."""
    rows = (128, 256, 512, 1024)
    roomy = changed(colocated.baseline, gpu_memory_utilization=0.8, optimizer_offload=True, param_offload=True)
    seconds = [colocated.cost(changed(roomy, max_num_seqs=many))[0] for many in rows]
    assert seconds == sorted(seconds, reverse=True)
    tight = changed(colocated.baseline, gpu_memory_utilization=0.3, tensor_model_parallel_size=1)
    crowded = [colocated.cost(changed(tight, max_num_seqs=many))[0] for many in rows]
    assert crowded[0] < crowded[-1]
    assert crowded[-1] > colocated.cost(changed(tight, max_num_seqs=1024, gpu_memory_utilization=0.6))[0]
    assert all(colocated.cost(changed(tight, max_num_seqs=many))[1] <= colocated.memory_bytes for many in rows)


def test_the_physics_of_a_rollout_leads_to_better_plans_at_once(colocated: RolloutWorld) -> None:
    search, seen = PhysicsSearch(0), [colocated.observe(colocated.baseline)]
    for _ in range(4):
        seen.append(colocated.observe(search.ask(colocated.task, seen, 1).plans[0]))
    first, *others = [one.step_time_s for one in seen if one.step_time_s is not None]
    assert min(others) < 0.8 * first
