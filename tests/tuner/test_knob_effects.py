"""Effects of knobs by pairs of measured plans and by the physics; the parts of a step by which a plan wins."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import toy

from meshtune.runners.outcome import Verdict
from meshtune.runners.step_breakdown import Profile
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import UNCALIBRATED
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.prediction.predict import Basis, foresee, training_of
from meshtune.tuner.results.analysis.knob_effects import (
    Change,
    Evidence,
    measured_effects,
    predicted_effects,
    reverse,
)
from meshtune.tuner.results.analysis.why_faster import explain_winners
from meshtune.tuner.results.ranking import rank
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


@pytest.fixture(scope="module")
def grouped():
    """8 devices, on which groups shard and experts are cut apart, with the training that predicts them."""
    experts = {"experts": 8, "top_k": 2}
    spec, space = read_spec(SPEC | {"model": toy.SPEC["model"] | experts, "space": {"zero_stage": [0, 1]}}, None)
    able = replace(space.context.capabilities, zero_stages=frozenset({0, 1, 2}), zero_groups=frozenset({1, 2}))
    able = replace(able, expert_folding=True, choice_of_sequence_parallel=True)
    bounds = Bounds(tp=(1, 2, 4), pp=(1,), zero_stage=(0, 1, 2), zero_group=(0, 2, 4), etp=(0, 1, 2), ep=(2,))
    bounds = replace(bounds, micro_batch_size=(1,), sequence_parallel=(True, False))
    return Space(bounds, replace(space.context, capabilities=able)), training_of(spec)


@pytest.mark.parametrize(
    ("first", "second", "effect"),
    [
        # Without ZeRO there are no groups, and with it they need not change.
        ({"zero_stage": 1, "zero_group": 4}, {}, "zero_stage 1 -> 0 with zero_group 4 -> 0"),
        ({"zero_stage": 1, "zero_group": 4}, {"zero_stage": 2}, None),
        ({"zero_stage": 1, "zero_group": 4}, {"zero_stage": 1}, "zero_group 4 -> 0"),
        # Of 4 ranks, 4 are all.
        ({"zero_stage": 1, "zero_group": 4}, {"zero_stage": 1, "tp": 2}, "tp 1 -> 2 with zero_group 4 -> 0"),
        ({"zero_stage": 1, "zero_group": 2}, {"zero_stage": 1, "tp": 2}, None),
        ({"tp": 2, "etp": 1}, {"tp": 1}, "tp 2 -> 1 with etp 1 -> 0"),
        ({"tp": 2, "etp": 1}, {"tp": 4}, None),
        ({"tp": 2, "etp": 1}, {"tp": 2, "sequence_parallel": False}, "sequence_parallel true -> false with etp 1 -> 0"),
    ],
)
def test_groups_and_the_degree_of_experts_follow_a_value_without_them_and_one_degree_has_two_words(
    grouped, first, second, effect
):
    space, training = grouped
    slow, fast = (space.complete(ep=2, **axes) for axes in (first, second))
    assert not space.explain(slow) + space.explain(fast)
    measured = measured_effects(space, {slow: 1.0, fast: 1.5})
    assert words(measured) == ([f"{effect}: +50 % (measured, 1 pair)"] if effect else [])
    ways = {moves for one in predicted_effects(space, training, UNCALIBRATED, slow, {}) for moves in both_ways(one)}
    assert not effect or measured[0].moves in ways


def both_ways(effect):
    return effect.moves, reverse(effect.moves)


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


def test_the_split_of_a_pipeline_follows_its_stages_and_both_ends_go_together():
    """10 layers: 5 and 5 on two stages, and 2, 3, 3, 2 or 3, 3, 3, 1 on four."""
    ends = {"first_stage_less_layers": [0, 1], "last_stage_less_layers": [0, 1, 2]}
    _, space = read_spec(
        SPEC | {"model": {"preset": "gpt-micro", "layers": 10}, "space": {"pp": [1, 2, 4], **ends}}, None
    )
    two, four, late = (
        space.complete(**axes)
        for axes in (
            {"pp": 2},
            {"pp": 4, "first_stage_less_layers": 1, "last_stage_less_layers": 1},
            {"pp": 4, "last_stage_less_layers": 2},
        )
    )
    assert words(measured_effects(space, {two: 100.0, four: 120.0})) == [
        "pp 2 -> 4 with first_stage_less_layers 0 -> 1 with last_stage_less_layers 0 -> 1: +20 % (measured, 1 pair)"
    ]
    assert words(measured_effects(space, {late: 100.0, four: 120.0})) == [
        "last_stage_less_layers 2 -> 1 with first_stage_less_layers 0 -> 1: +20 % (measured, 1 pair)"
    ]


WINNERS_SPEC = toy.SPEC | {
    "model": "gpt-micro",
    "cluster": toy.CLUSTER | {"nodes": 1},
    "global_batch_size": 8,
    "space": {"tp": [1, 2, 4], "pp": [1], "zero_stage": [0, 1]},
    "baseline": {"tp": 4, "pp": 1},
}
PLANS = [Plan(tp=4, grad_accum_steps=8), Plan(tp=2, dp=2, grad_accum_steps=4), Plan(dp=4, grad_accum_steps=2)]


def profile(**parts_s):
    return Profile(
        step_time_s=sum(parts_s.values()),
        parts_s=(parts_s, parts_s),
        waiting_s=({}, {}),
        own_times_s=((1.0,), (1.0,)),
        stages=(0, 0),
    )


@pytest.fixture
def winners(make):
    """The winners of trials that took so long, with their parts; the first is the baseline unless told otherwise."""

    spec = read_spec(WINNERS_SPEC, None)[0]

    def build(*measured, baseline=True, basis=None):
        trials = [
            make.trial(
                number,
                make.measurement(step_s, profile=None if parts is None else profile(**parts)),
                origin=Origin.BASELINE if baseline and number == 0 else Origin.SEARCH,
                plan=PLANS[number],
            )
            for number, (step_s, parts) in enumerate(measured)
        ]
        ranking = rank(make.campaign(spec, CampaignState.COMPLETED), trials)
        return explain_winners(training_of(spec), ranking, basis)

    return build


def test_the_part_that_shrank_most_comes_first_in_seconds(winners):
    first, second = winners(
        (10.0, {"compute": 6.0, "tp": 3.0, "bubble": 1.0}),
        (8.0, {"compute": 5.5, "tp": 1.0, "bubble": 1.5}),
        basis=Basis(),
    )
    assert first.words == (
        "+25.0 % (+24.8 to +25.2 %; first run, not confirmed) against the baseline (trial 0): "
        "2.0 s less tensor-parallel communication, 500.0 ms less computation, "
        "500.0 ms more pipeline bubble (measured)"
    )
    assert [part.share for part in first.parts] == pytest.approx([5.5 / 8, 1 / 8, 1.5 / 8])
    assert first.savings_s == pytest.approx({"tp": 2.0, "compute": 0.5, "bubble": -0.5})
    assert (first.rank, first.trial, first.plan_key, first.evidence) == (1, 1, PLANS[1].key, Evidence.MEASURED)
    assert second.words == "nothing slower was measured to compare it with"


def test_without_a_baseline_each_is_compared_with_the_next(winners):
    found = winners((9.0, None), (8.0, None), baseline=False)
    assert [(one.trial, one.rival_trial) for one in found] == [(1, 0), (0, None)]
    assert found[0].words.startswith(
        "+12.5 % (+12.3 to +12.7 %; first run, not confirmed) against the next best (trial 0); where"
    )
    assert found[1].words == "nothing slower was measured to compare it with"


def test_a_confirmed_baseline_is_not_explained_by_a_faster_plan_that_ran_once(make):
    spec = read_spec(WINNERS_SPEC, None)[0]
    known = [
        make.trial(number, make.measurement(step_s), plan=plan, origin=Origin.SEARCH if number else Origin.BASELINE)
        for number, (plan, step_s) in enumerate(zip(PLANS, (10.0, 8.0, 9.0), strict=True))
    ]
    again = [*known, *(trial for trial in make.thrice(known)[len(known) :] if trial.plan != PLANS[2])]
    found = explain_winners(training_of(spec), rank(make.campaign(spec), again), None)
    assert [(one.trial, one.rival_trial) for one in found] == [(1, 0), (0, None), (2, 0)]


def test_a_plan_without_a_profile_is_explained_by_the_physics_and_says_so(winners):
    found = winners((10.0, {"compute": 10.0}), (8.0, None), basis=Basis())
    assert found[0].evidence is Evidence.PREDICTED
    assert found[0].words.endswith("(predicted)")
    assert "tensor-parallel communication" in found[0].words
    assert sum(part.share for part in found[0].parts) == pytest.approx(1.0)


def test_steps_of_another_batch_are_scaled_to_the_winners(make):
    spec = read_spec(WINNERS_SPEC, None)[0]
    plans = [PLANS[0], replace(PLANS[1], grad_accum_steps=8)]
    assert plans[1].global_batch_size == 2 * plans[0].global_batch_size
    trials = []
    for number, (plan, compute_s, tokens) in enumerate(zip(plans, (10.0, 16.0), (1024, 2048), strict=True)):
        measured = replace(make.measurement(compute_s, profile=profile(compute=compute_s)), tokens_per_step=tokens)
        origin = Origin.SEARCH if number else Origin.BASELINE
        trials.append(make.trial(number, measured, plan=plan, origin=origin))
    ranking = rank(make.campaign(spec, CampaignState.COMPLETED), trials)
    found = explain_winners(training_of(spec), ranking, None)[0]
    assert found.words.endswith(
        "first run, not confirmed) against the baseline (trial 0): 4.0 s less computation (measured)"
    )
