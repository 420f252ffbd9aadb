"""What a knob is worth: pairs of measured plans give exact numbers, and predictions are those of the physics."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import toy

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import UNCALIBRATED
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.prediction.predict import foresee, training_of
from meshtune.tuner.results.analysis.knob_effects import (
    Change,
    Evidence,
    measured_effects,
    predicted_effects,
)
from meshtune.tuner.specs.read import read_spec

SPEC = toy.SPEC | {
    "space": {
        "tp": [1, 2, 4],
        "pp": [1, 2],
        "micro_batch_size": [1, 2],
        "zero_stage": [0, 1],
        "recompute": ["none", "full"],
        "vpp": [1, 2, 4],
        "schedule": ["1f1b", "interleaved"],
    }
}


@pytest.fixture(scope="module")
def spec():
    return read_spec(SPEC, None)[0]


@pytest.fixture(scope="module")
def space():
    return read_spec(SPEC, None)[1]


def words(effects):
    return [effect.words for effect in effects]


# Measured


def test_pairs_give_the_exact_ratio_of_every_two_values(space):
    worth = {1: 1.0, 2: 1.5, 4: 1.2}
    measured = {
        space.complete(tp=tp, micro_batch_size=size): 100 * worth[tp] * size for tp, size in product(worth, (1, 2))
    }
    found = measured_effects(space, measured)
    assert words(found) == [
        "micro_batch_size 1 -> 2: +100 % (measured, 3 pairs, +100 to +100 %)",
        "tp 1 -> 2: +50 % (measured, 2 pairs, +50 to +50 %)",
        "tp 4 -> 2: +25 % (measured, 2 pairs, +25 to +25 %)",
        "tp 1 -> 4: +20 % (measured, 2 pairs, +20 to +20 %)",
    ]


def test_of_several_pairs_the_median_counts_and_the_range_is_told(space):
    gains = {(0, 1): 1.1, (0, 2): 0.9, (1, 1): 1.2}
    measured: dict[Plan, float] = {}
    for (zero, size), gain in gains.items():
        measured[space.complete(zero_stage=zero, micro_batch_size=size, recompute="full")] = 50.0
        measured[space.complete(zero_stage=zero, micro_batch_size=size, recompute="none")] = 50.0 * gain
    (effect,) = [one for one in measured_effects(space, measured) if one.knob == "recompute"]
    assert (effect.moves, effect.pairs) == ((Change("recompute", "full", "none"),), 3)
    assert (effect.gain.value, effect.gain.low, effect.gain.high) == pytest.approx((0.1, -0.1, 0.2))
    assert effect.words == "recompute full -> none: +10 % (measured, 3 pairs, -10 to +20 %)"


def test_plans_that_differ_in_two_knobs_are_no_pair(space):
    measured = {space.complete(tp=1, zero_stage=1): 100.0, space.complete(tp=2, zero_stage=0): 120.0}
    assert measured_effects(space, measured) == []


def test_an_interleaving_schedule_comes_with_the_chunks_that_it_needs(space):
    plain = space.complete(pp=2)
    two, four = (space.complete(pp=2, schedule="interleaved", vpp=chunks) for chunks in (2, 4))
    assert words(measured_effects(space, {plain: 1.0, two: 1.3, four: 1.2})) == [
        "schedule 1f1b -> interleaved with vpp 1 -> 2: +30 % (measured, 1 pair)",
        "schedule 1f1b -> interleaved with vpp 1 -> 4: +20 % (measured, 1 pair)",
        "vpp 4 -> 2: +8.3 % (measured, 1 pair)",
    ]


# Predicted


def ratio(spec, plan, best):
    speeds = [foresee(training_of(spec), columns_of([one]), UNCALIBRATED).of(0, one).speed for one in (plan, best)]
    return speeds[0].tokens_per_s.value / speeds[1].tokens_per_s.value


def test_around_the_best_plan_the_physics_says_what_every_other_value_brings(spec, space):
    best = space.complete(tp=2, pp=2, recompute="full")
    found = predicted_effects(space, training_of(spec), UNCALIBRATED, best, {})
    assert {effect.evidence for effect in found} == {Evidence.PREDICTED}
    assert [effect.gain.value for effect in found] == sorted((e.gain.value for e in found), reverse=True)
    assert all(effect.gain.value >= 0 and effect.gain.low < effect.gain.value < effect.gain.high for effect in found)
    (recompute,) = [effect for effect in found if effect.knob == "recompute"]
    beside = replace(best, recompute="none")
    assert recompute.moves == (Change("recompute", "full", "none"),)
    assert recompute.gain.value == pytest.approx(ratio(spec, beside, best) - 1)
    assert recompute.p_fits == pytest.approx(
        foresee(training_of(spec), columns_of([beside]), UNCALIBRATED).of(0, beside).p_fits
    )
    assert "predicted" in recompute.words
    assert "P(fits) of the faster plan " in recompute.words


def test_the_faster_plan_is_told_to_have_failed_where_it_did(spec, space):
    best = space.complete(tp=2, pp=2, recompute="full")
    failed = {replace(best, recompute="none"): Verdict.OOM}
    (found,) = [
        effect
        for effect in predicted_effects(space, training_of(spec), UNCALIBRATED, best, failed)
        if effect.knob == "recompute"
    ]
    assert found.ended is Verdict.OOM
    assert found.words.endswith("the faster plan was tried: oom)")


def test_only_legal_changes_are_predicted_and_a_schedule_brings_its_chunks(spec, space):
    best = space.complete(pp=2)
    changes = {
        (one.knob, *sorted((str(one.before), str(one.after))))
        for one in predicted_effects(space, training_of(spec), UNCALIBRATED, best, {})
    }
    assert ("schedule", "1f1b", "interleaved") in changes
    assert not any(knob == "vpp" for knob, *_ in changes)
    flat = predicted_effects(space, training_of(spec), UNCALIBRATED, space.complete(pp=1), {})
    assert not any(effect.knob in ("schedule", "vpp") for effect in flat)
