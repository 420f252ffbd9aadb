"""The physics search over knobs: what it learns on one layout it uses on others, and what it never tries again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.prediction.predict import training_of
from meshtune.tuner.search.base import Observation, Task, propose, task_of
from meshtune.tuner.search.physics.catalogue import Catalogue
from meshtune.tuner.search.physics.history import read_trials
from meshtune.tuner.search.physics.knob_effects import KnobEffects, part_shares, shared_values
from meshtune.tuner.search.physics.prior import rows_of
from meshtune.tuner.search.physics.search import PhysicsSearch
from meshtune.tuner.search.physics.weighing import Hypotheses, PhysicsOptions, believe, moments
from meshtune.tuner.specs.read import read_spec

pytestmark = pytest.mark.slow

SPEC: dict[str, Any] = {
    "model": "gpt-22b",
    "cluster": {"preset": "frontier", "nodes": 4},
    "global_batch_size": 64,
    "workload": "simulated",
    "runner": "simulated",
    "space": {"micro_batch_size": [1, 2], "recompute": ["none", "full"], "zero_stage": [0, 1]},
    "knobs": {
        "fused": {"values": [False, True], "env": "FUSED"},
        "channels": {"values": [2, 4, 8, 16, 32], "env": "CHANNELS", "default": 4},
        "overlap": {"values": ["off", "ring", "bulk"], "env": "OVERLAP", "when": "tp > 1"},
        "idle": {"values": ["a", "b", "c"], "env": "IDLE"},
        "cache": {"values": [False, True], "env": "CACHE", "memory": "more"},
    },
}
Cost = Callable[[Plan], float]


@pytest.fixture(scope="module")
def task() -> Task:
    spec, space = read_spec(SPEC, None)
    return task_of(spec, space, training_of(spec))


class World:
    """Hidden costs: the physics' time and memory times factors of the knobs."""

    def __init__(self, task: Task, time: Cost, memory: Cost = lambda plan: 1.0, noise: float = 0.01) -> None:
        self.task, self._time, self._memory, self._noise = task, time, memory, noise
        rows = rows_of(task.training, task.space.columns)
        self._step_s, self._peak = np.exp(rows.log_step + rows.log_tokens), np.exp(rows.log_peak)

    def step_s(self, plan: Plan) -> float:
        return float(self._step_s[self.task.space.index_of(plan)] * self._time(plan))

    def fits(self, plan: Plan) -> bool:
        peak = self._peak[self.task.space.index_of(plan)] * self._memory(plan)
        return bool(peak <= self.task.training.cluster.device.memory_bytes)

    def observe(self, plan: Plan, run: int = 0) -> Observation:
        if not self.fits(plan):
            return Observation(plan=plan, verdict=Verdict.OOM)
        step = self.step_s(plan) * float(np.exp(self._noise * np.random.default_rng(run).standard_normal()))
        return Observation(plan=plan, verdict=Verdict.OK, score=1 / step, step_time_s=step)

    def played(self, trials: int, search: PhysicsSearch | None = None) -> list[Observation]:
        search, seen = search or PhysicsSearch(0), list[Observation]()
        for run in range(trials):
            plans = search.ask(self.task, seen, 1).plans
            assert not self.task.space.explain(plans[0])
            seen.append(self.observe(plans[0], run))
        return seen

    def best_s(self) -> float:
        listing = self.task.space.listing(10**6)
        assert listing is not None
        plans = [self.task.space.plan(int(at), codes.tolist()) for at, codes in zip(*listing, strict=True)]
        return min(self.step_s(plan) for plan in plans if self.fits(plan))


def helps(plan: Plan) -> float:
    """The best: fused, 16 channels, bulk, whatever else."""
    fused = 0.9 if plan.knobs["fused"] else 1.0
    channels = 1.0 - 0.08 * np.exp(-(np.log2(float(plan.knobs["channels"]) / 16) ** 2) / 2)
    overlap = {"off": 1.0, "ring": 0.97, "bulk": 0.92}.get(str(plan.knobs.get("overlap", "off")), 1.0)
    return float(fused * channels * overlap)


def test_good_knobs_are_found_among_thousands_of_plans_in_a_few_trials(task: Task) -> None:
    world = World(task, helps)
    found = [one.step_time_s for one in world.played(16) if one.step_time_s is not None]
    assert task.space.plans > 3_000
    assert min(found) <= 1.05 * world.best_s()


def test_an_effect_that_was_measured_on_one_layout_is_expected_on_another(task: Task) -> None:
    space = task.space
    world = World(task, helps, noise=0.0)
    layouts = [at for at in range(len(space)) if space[at].tp == 2 and world.fits(space[at])][:2]
    pair = [space[layouts[0]], replace(space[layouts[0]], knobs={**space[layouts[0]].knobs, "fused": True})]
    seen = [world.observe(plan) for plan in pair]
    assert all(one.verdict is Verdict.OK for one in seen)
    catalogue = Catalogue(task, rows_of)
    belief = believe(read_trials(task, seen, catalogue), PhysicsOptions(), Hypotheses())
    other = space[layouts[1]]
    rows = catalogue.rows([other, replace(other, knobs={**other.knobs, "fused": True})])
    plain, fused = moments(belief.speeds.at(rows))[0].tolist()
    assert -0.105 < fused - plain < -0.03  # of log(0.9) = -0.105


def test_nothing_is_expected_of_a_knob_before_it_was_tried_unless_it_was_declared(task: Task) -> None:
    catalogue, space = Catalogue(task, rows_of), task.space
    plan = space[0]
    rows = catalogue.rows([plan, *(replace(plan, knobs={**plan.knobs, name: True}) for name in ("fused", "cache"))])
    assert rows.log_step[0] == rows.log_step[1] == rows.log_step[2]
    assert rows.log_peak[0] == rows.log_peak[1] < rows.log_peak[2]


def test_an_inactive_knob_and_a_default_change_nothing(task: Task) -> None:
    effects = KnobEffects.of(task.space.knobs)
    rows, columns = rows_of(task.training, task.space.columns), task.space.columns
    shares = part_shares(task.training, columns, task.calibration.constants)
    attached = effects.attach(rows, task.space.default_codes, shares)
    assert not np.any(attached.knobs)
    assert not np.any(attached.changed)
    assert np.array_equal(attached.log_step, rows.log_step)


def test_numbers_near_each_other_are_alike_and_words_are_not(task: Task) -> None:
    effects = {one.knob.name: one for one in KnobEffects.of(task.space.knobs).effects}
    channels = effects["channels"].features @ effects["channels"].features.T
    assert channels[4, 5] > 0.8 * np.sqrt(channels[4, 4] * channels[5, 5])  # 16 and 32
    assert channels[1, 5] < 0.2  # 2 and 32, on both sides of the default 4
    idle = effects["idle"].features @ effects["idle"].features.T
    assert idle[2, 3] == pytest.approx(0.5 * idle[2, 2])


def test_a_knob_that_does_nothing_is_left_alone(task: Task) -> None:
    world = World(task, helps)
    seen = world.played(30)
    late = [one.plan.knobs["idle"] for one in seen[15:]]
    assert len(late) == 15
    best = min((one for one in seen if one.step_time_s), key=lambda one: one.step_time_s or 0.0)
    assert best.plan.knobs["fused"] is True


def test_values_that_run_out_of_memory_are_soon_avoided(task: Task) -> None:
    world = World(task, helps, memory=lambda plan: 4.0 if plan.knobs["cache"] else 1.0)
    seen = world.played(20)
    failed = [at for at, one in enumerate(seen) if one.plan.knobs["cache"]]
    assert len(failed) <= 4


@pytest.mark.parametrize(("accept", "others"), [([], range(1, 5)), (["numerics"], range(6, 17))])
def test_plans_that_can_never_be_recommended_take_one_trial_in_five(accept: list[str], others: range) -> None:
    fp8 = {"values": ["off", "mxfp8"], "env": "FP8", "numerics": "changes"}
    spec, space = read_spec({**SPEC, "accept": accept, "knobs": {**SPEC["knobs"], "fp8": fp8}}, None)
    task = task_of(spec, space, training_of(spec))
    world = World(task, lambda plan: helps(plan) * (0.7 if plan.knobs["fp8"] == "mxfp8" else 1.0))
    seen = world.played(16)
    changed = [one for one in seen if one.plan.knobs["fp8"] == "mxfp8"]
    assert len(changed) in others
    assert all(task.is_of_use(one.plan) for one in seen if one not in changed)


def test_a_crash_makes_plans_with_the_same_values_suspect() -> None:
    changed = np.array([[1, 0], [1, 2], [0, 0]])
    tried = np.array([[1, 2], [0, 0]])
    assert shared_values(changed, tried).tolist() == [[0.5, 1.0], [1.0, 1.0], [0.0, 1.0]]


def test_no_plan_is_proposed_twice_in_a_batch_or_after_it(task: Task) -> None:
    spec, _ = read_spec(SPEC, None)
    search, seen = PhysicsSearch(3), list[Observation]()
    for _ in range(4):
        plans = search.ask(task, seen, 5).plans
        assert len(set(plans)) == 5
        assert not set(plans) & {one.plan for one in seen}
        seen += [Observation(plan=plan) for plan in plans]
    assert propose(search, task, spec, [], 3).plans


def test_the_same_history_gives_the_same_plans(task: Task) -> None:
    seen = World(task, helps).played(6)
    assert PhysicsSearch(1).ask(task, seen, 3) == PhysicsSearch(1).ask(task, seen, 3)


def test_a_small_space_is_proposed_to_its_end() -> None:
    few = {"tp": [1], "pp": [1], "micro_batch_size": [1], "zero_stage": [1], "recompute": ["full"]}
    knobs = {"a": {"values": [1, 2], "env": "A"}, "b": {"values": ["x", "y"], "env": "B", "when": "a == 2"}}
    spec, space = read_spec({**SPEC, "model": "gpt-micro", "space": few, "knobs": knobs}, None)
    task = task_of(spec, space, training_of(spec))
    assert space.plans == 3
    proposal = PhysicsSearch(0).ask(task, [], 10)
    assert len(set(proposal.plans)) == 3
    assert PhysicsSearch(0).ask(task, [Observation(plan=plan) for plan in proposal.plans], 1).plans == []


def test_ten_million_plans_are_searched_without_being_enumerated(task: Task) -> None:
    knobs = {**SPEC["knobs"], **{f"k{at}": {"values": [1, 2, 3, 4], "env": f"K{at}"} for at in range(6)}}
    spec, space = read_spec({**SPEC, "knobs": knobs}, None)
    assert space.plans > 10**7
    large = task_of(spec, space, training_of(spec))
    assert large.space.listing(10**6) is None
    world = World(large, helps)
    assert len({one.plan for one in world.played(8)}) == 8


@pytest.mark.parametrize(("objective", "whole_job"), [("step_time", True), ("tokens_per_s_per_device", False)])
def test_sizes_compare_by_the_objective(objective: str, whole_job: bool) -> None:
    spec, space = read_spec({**SPEC, "objective": objective, "knobs": {"nodes": {"values": [1, 2, 4]}}}, None)
    task = task_of(spec, space, training_of(spec))
    assert task.per_device is not whole_job
    world = World(task, lambda plan: 1.0, noise=0.0)
    search, seen = PhysicsSearch(0), list[Observation]()
    for _ in range(12):
        plan = search.ask(task, seen, 1).plans[0]
        one = world.observe(plan)
        step = one.step_time_s
        score = None if step is None else 1 / step / (1 if whole_job else plan.world_size)
        seen.append(replace(one, score=score))
    best = max((one for one in seen if one.score is not None), key=lambda one: one.score or 0.0).plan
    plans = [plan for plan in space if world.fits(plan)]
    worth = {plan: world.step_s(plan) * (1 if whole_job else plan.world_size) for plan in plans}
    assert worth[best] <= 1.05 * min(worth.values())


def test_codes_of_a_plan_with_unknown_knobs_are_none(task: Task) -> None:
    space: Space = task.space
    plan = replace(space[0], knobs={"fused": True, "unknown": 1, "channels": 7})
    codes = dict(zip(space.knobs.names, space.knobs.known_codes([plan])[0].tolist(), strict=True))
    assert codes == {"fused": 2, "channels": 0, "overlap": 0, "idle": 0, "cache": 0}


def test_the_physics_of_each_plan_is_that_of_the_code_that_its_knobs_make():
    """Threads make no other code; and where values exclude each other, the spec's own counts."""
    spec, space = read_spec(
        {
            "model": "gpt-1.4b",
            "cluster": {"preset": "dgx-h100", "nodes": 1},
            "global_batch_size": 64,
            "workload": {"kind": "torch", "dtype": "bfloat16"},
            "space": {"tp": [1, 2], "micro_batch_size": [2, 4], "recompute": ["none"]},
            "knobs": {
                "compile": {"values": [False, True], "option": "compile", "compute": "less"},
                "async_tp": {"values": [False, True], "option": "async_tp"},
                "threads": {"values": [1, 2], "option": "threads"},
            },
        },
        None,
    )
    task = task_of(spec, space, training_of(spec))
    known = Catalogue(task, rows_of)
    plain = space[0]

    def expected(**knobs: bool | int) -> tuple[float, float]:
        plan = replace(plain, knobs={**plain.knobs, **knobs})
        rows, own = known.rows([plan]), rows_of(training_of(spec, plan), columns_of([plan]))
        assert rows.log_step[0] == pytest.approx(own.log_step[0])
        assert rows.log_stalled[0] - own.log_stalled[0] == pytest.approx(0, abs=0.05)
        assert rows.log_peak[0] == pytest.approx(own.log_peak[0])
        return float(rows.log_step[0]), float(rows.log_peak[0])

    assert plain.knobs["compile"] is True
    assert expected(compile=False)[0] > expected()[0] + 0.02
    assert expected(threads=2) == expected()
    at = {knob.name: number for number, knob in enumerate(space.knobs)}
    assert set(task.others.knobs) == {at["compile"], at["async_tp"]}
    places = [task.others.knobs.index(at[name]) for name in ("compile", "async_tp")]
    assert task.others.trained is not None
    assert task.others.trained((1, 2) if places == [0, 1] else (2, 1)) == task.training
    # Nothing is expected of what a knob declares beside the physics.
    listed = known.at(
        np.array([0, 0]), space.knobs.codes_of([plain, replace(plain, knobs={**plain.knobs, "compile": False})])
    )
    assert listed.log_step[1] - listed.log_step[0] == pytest.approx(expected(compile=False)[0] - expected()[0])


def of_recipe(knobs: dict[str, Any], **training: Any) -> tuple[Task, Catalogue]:
    """A task on eight devices whose knobs set fields of the recipe."""
    spec, space = read_spec(
        {
            "model": {"preset": "qwen2.5-7b", "seq_len": 4096},
            "cluster": {"preset": "dgx-h100", "nodes": 1},
            "global_batch_size": 64,
            "training": training,
            "workload": {"kind": "simulated", "framework": "fsdp"},
            "runner": "simulated",
            "space": {"tp": [1], "pp": [1], "micro_batch_size": [1, 2], "zero_stage": [3], "recompute": ["full"]},
            "knobs": knobs,
        },
        None,
    )
    task = task_of(spec, space, training_of(spec))
    return task, Catalogue(task, rows_of)


RECIPE_KNOBS: dict[str, Any] = {
    "loss": {"values": [False, True], "env": "LOSS", "sets": "fused_loss", "memory": "more"},
    "adam": {"values": ["adamw", "lion", "adamw_8bit"], "env": "ADAM", "sets": "optimizer"},
    "bits": {"values": [16, 4], "env": "BITS", "sets": "base_bits", "when": "loss"},
    "idle": {"values": [1, 2], "env": "IDLE"},
}


@pytest.mark.parametrize(
    ("chosen", "recipe"),
    [
        ({"loss": False, "adam": "lion"}, {"optimizer": "lion"}),
        (
            {"loss": True, "adam": "adamw_8bit", "bits": 16},
            {"fused_loss": True, "optimizer": "adamw_8bit", "base_bits": 16},
        ),
        # Without an adapter weights of 4 bits are refused, and the recipe is the spec's.
        ({"loss": True, "adam": "lion", "bits": 4}, {}),
    ],
)
def test_the_physics_of_each_plan_is_that_of_the_recipe_that_its_knobs_make(
    chosen: dict[str, Any], recipe: dict[str, Any]
) -> None:
    """An inactive knob leaves the recipe's own; what is declared beside the physics does not count."""
    task, known = of_recipe(RECIPE_KNOBS)
    own, _ = of_recipe({}, **recipe)
    assert [task.space.knobs[at].name for at in task.others.knobs] == ["loss", "adam", "bits"]
    plan = replace(task.space[1], knobs={**chosen, "idle": 2})
    assert not task.space.explain(plan)
    rows, expected = known.rows([plan]), rows_of(own.training, columns_of([plan]))
    assert rows.log_step[0] == pytest.approx(expected.log_step[0])
    assert rows.log_peak[0] == pytest.approx(expected.log_peak[0])


ROLLOUT = {"prompt_tokens": 1024, "answer_tokens": 3072, "tp": 2}
SHARE = {"share": {"values": [0.1, 0.3, 0.5, 0.7, 0.95], "env": "SHARE", "default": 0.5, "sets": "rollout.share"}}


def test_a_share_of_the_engine_may_be_too_small_and_too_large() -> None:
    """Both are out of memory. One says little of the other, and nothing of the plans between."""
    task, known = of_recipe(SHARE, rollout=ROLLOUT)
    plans = {value: replace(task.space[0], knobs={"share": value}) for value in SHARE["share"]["values"]}

    def runs(*failed: float) -> dict[float, float]:
        seen = [Observation(plan=plans[value], verdict=Verdict.OOM) for value in failed]
        belief = believe(read_trials(task, seen, known), PhysicsOptions(), Hypotheses())
        return dict(zip(plans, belief.memory(known.rows([*plans.values()])).runs.tolist(), strict=True))

    before = runs()
    assert max(before[0.1], before[0.95]) < 0.5 < 0.8 < min(before[0.3], before[0.5])
    assert runs(0.1)[0.1] < 0.6 * before[0.1]
    assert runs(0.1)[0.95] > 0.8 * before[0.95]
    assert runs(0.95)[0.1] > 0.8 * before[0.1]
    assert runs(0.1, 0.95)[0.5] > 0.9 * before[0.5]


def test_nothing_is_expected_of_a_field_of_a_rollout_that_a_recipe_has_not() -> None:
    task, known = of_recipe(SHARE)
    assert task.others.knobs == ()
    rows = known.rows([replace(task.space[0], knobs={"share": value}) for value in (0.3, 0.7)])
    assert rows.log_peak[0] == rows.log_peak[1]
