"""What is said to surely run out of memory needs at least the memory of what did, by every training code's formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshtune.runners.outcome import Verdict
from meshtune.runners.schedulers.ground_truth import hidden_constants
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.estimate import log_peak
from meshtune.search_spaces.physics.framework_profiles import (
    FSDP,
    MEGATRON_DEEPSPEED,
    NANOTRON,
    TRAINER_BFLOAT16,
    FrameworkProfile,
)
from meshtune.search_spaces.physics.recipes import with_recipe
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan, Recompute, Schedule
from meshtune.search_spaces.recipe import PLAIN, Adapter, Recipe
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.base import Observation, Task
from meshtune.tuner.search.physics.feasibility import surely_out_of_memory
from meshtune.tuner.search.physics.search import PhysicsSearch

pytestmark = pytest.mark.slow

WITNESSES = 400
SLACK = 0.01
WITNESS = Plan(pp=2, dp=4, micro_batch_size=2, grad_accum_steps=8, zero_stage=1, recompute=Recompute.SELECTIVE)


@pytest.fixture(scope="module")
def wide(make: Callable[[int, int | None, Bounds], Space]) -> Space:
    """Every kind of plan on 8 devices: pipelines of all schedules with every stage of ZeRO."""
    setting = make(1, 32, Bounds()).context
    able = replace(
        setting.capabilities,
        schedules=frozenset(Schedule),
        zero_stages_with_pp=frozenset({0, 1, 2, 3}),
        zero_groups=frozenset({1, 2, 3}),
        choice_of_sequence_parallel=True,
        recompute_intervals=True,
    )
    bounds = Bounds(
        recompute=tuple(Recompute),
        schedule=tuple(Schedule),
        vpp=(1, 2, 4),
        cp=(1, 2),
        zero_group=(0, 2, 4),
        sequence_parallel=(True, False),
        recompute_interval=(1, 2),
    )
    return Space(bounds, replace(setting, capabilities=able))


def doomed_by(witness: Plan, plan: Plan) -> bool:
    return bool(surely_out_of_memory(columns_of([plan]), [witness])[0])


@pytest.mark.parametrize(
    ("framework", "recipe"),
    [
        *((framework, PLAIN) for framework in (MEGATRON_DEEPSPEED, TRAINER_BFLOAT16, NANOTRON, FSDP)),
        # The wide base is under autocast with ZeRO 0 alone.
        (FSDP, Recipe(adapter=Adapter(rank=64), base_bits=32)),
        (TRAINER_BFLOAT16, Recipe(adapter=Adapter())),
        (FSDP, Recipe(frozen_layers=8, frozen_embedding=True)),
    ],
    ids=lambda value: getattr(value, "name", None) or getattr(value, "words", ""),
)
def test_a_doomed_plan_is_estimated_to_need_at_least_the_memory_of_its_witness(
    framework: FrameworkProfile, recipe: Recipe, wide: Space
) -> None:
    training = Training(wide.context.model, wide.context.cluster, with_recipe(framework, recipe), recipe)
    peaks = [log_peak(training, wide.columns, constants) for constants in (DEFAULTS, hidden_constants(1))]
    pairs = 0
    for witness in np.random.default_rng(0).choice(len(wide), WITNESSES, replace=False).tolist():
        doomed = np.flatnonzero(surely_out_of_memory(wide.columns, [wide[witness]]))
        pairs += len(doomed)
        for peak in peaks:
            needs = peak[doomed] - peak[witness]
            lacking = int(np.argmin(needs))
            told = f"{wide[int(doomed[lacking])].key} needs less than {wide[witness].key}: {needs[lacking]:+.3f}"
            assert needs[lacking] >= np.log1p(-SLACK), told
    assert pairs > 4 * WITNESSES


@pytest.mark.parametrize(
    "change",
    [
        {"micro_batch_size": 4, "grad_accum_steps": 4},
        {"micro_batch_size": 16, "grad_accum_steps": 1},
        {"zero_stage": 0},
        {"zero_group": 2},
        {"recompute": Recompute.NONE},
        {"micro_batch_size": 8, "grad_accum_steps": 2, "zero_stage": 0, "recompute": Recompute.NONE},
    ],
    ids=str,
)
def test_a_plan_that_keeps_more_is_doomed(change: dict[str, Any]) -> None:
    assert doomed_by(WITNESS, replace(WITNESS, **change))
    assert not doomed_by(replace(WITNESS, **change), WITNESS)


@pytest.mark.parametrize(
    "change",
    [
        {"micro_batch_size": 1, "grad_accum_steps": 16},
        {"zero_stage": 2},
        {"recompute": Recompute.FULL},
        {"micro_batch_size": 4, "grad_accum_steps": 8},  # another global batch
        {"micro_batch_size": 4, "grad_accum_steps": 4, "recompute": Recompute.FULL},
        {"tp": 2, "dp": 2, "micro_batch_size": 4},
        {"pp": 4, "dp": 2, "micro_batch_size": 4},
        {"schedule": Schedule.GPIPE},
        {"sequence_parallel": False},
        {"vpp": 2, "schedule": Schedule.INTERLEAVED},
    ],
    ids=str,
)
def test_a_plan_that_may_keep_less_is_not_doomed(change: dict[str, Any]) -> None:
    assert not doomed_by(WITNESS, replace(WITNESS, **change))


def test_groups_of_fewer_ranks_bear_no_witness_against_larger_ones() -> None:
    witness = replace(WITNESS, zero_group=2)
    assert doomed_by(witness, replace(WITNESS, zero_stage=0))
    assert not doomed_by(witness, WITNESS)


@pytest.mark.parametrize("stage", [2, 3])
def test_stages_with_buffers_of_their_own_bear_no_witness_against_lower_ones(stage: int) -> None:
    witness = replace(WITNESS, zero_stage=stage)
    assert doomed_by(witness, replace(witness, recompute=Recompute.NONE))
    assert not any(doomed_by(witness, replace(witness, zero_stage=lower)) for lower in range(stage))


def test_a_plan_that_crashed_dooms_none(space: Space, task: Callable[..., Task]) -> None:
    # What is doomed is proposed last and with no expectation.
    witness = min(space, key=lambda plan: (plan.micro_batch_size, -plan.zero_stage, plan.tp * plan.pp))
    doomed = surely_out_of_memory(space.columns, [witness])
    assert np.count_nonzero(doomed) > 3

    def weighed(verdict: Verdict) -> int:
        choices = PhysicsSearch(0).ask(task(space), [Observation(plan=witness, verdict=verdict)], len(space)).choices
        assert len(choices) == len(space) - 1
        return sum(choice.expectation is not None for choice in choices)

    assert weighed(Verdict.CRASHED) == len(space) - 1
    assert weighed(Verdict.OOM) == len(space) - np.count_nonzero(doomed)
