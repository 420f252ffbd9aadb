"""Uneven pipelines: which splits a space offers, how chunks are cut, and what memory and time make of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from meshtune.runners.trainer.parallel.pipeline import stages_of
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import EVEN_ALONE, columns_of
from meshtune.search_spaces.layer_shapes import Shape
from meshtune.search_spaces.model import ModelSpec, layer_kinds
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.estimate import estimate
from meshtune.search_spaces.physics.framework_profiles import (
    MEGATRON_CORE,
    MEGATRON_DEEPSPEED,
    TRAINER_BFLOAT16,
)
from meshtune.search_spaces.physics.memory import MemoryPart, kept_in_flight, memory_parts, stage_parts
from meshtune.search_spaces.physics.timing import TimePart, time_parts
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan, Schedule
from meshtune.search_spaces.plan_names import in_full
from meshtune.search_spaces.presets import cluster_presets, described, model_presets
from meshtune.search_spaces.routing import Routing
from meshtune.search_spaces.space import Bounds, Space
from meshtune.search_spaces.stages import (
    EVEN,
    head_layers,
    kinds_held,
    layers_of_chunk,
    plain_split,
    split_of,
    splits_offered,
)


def model(name: str) -> ModelSpec:
    return ModelSpec(**described(model_presets()[name]))


def cluster(name: str, nodes: int = 1) -> ClusterSpec:
    given = described(cluster_presets()[name])
    return TypeAdapter(ClusterSpec).validate_python(given | {"nodes": nodes})


BLOOM, LLAMA = model("bloom-176b"), model("llama3-405b")
DEEP = replace(LLAMA, layers=61)
# A head of 2.1 layers' time.
WORDY = ModelSpec(name="wordy", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, seq_len=8192)


def sizes(plan: Plan, layers: int) -> list[int]:
    return [len(layers_of_chunk(plan, layers, chunk)) for chunk in range(plan.pp * plan.vpp)]


def ends(first: int, last: int) -> dict[str, int]:
    return {"first_stage_less_layers": first, "last_stage_less_layers": last}


@pytest.mark.parametrize(
    ("model", "pp", "vpp", "able", "offered"),
    [
        # 6 layers a stage: with the head of 1.3 layers' time on top of 4, not of 5.
        (BLOOM, 12, 1, None, [(0, 2)]),
        (BLOOM, 12, 1, frozenset({(0, 0), (1, 1)}), [(1, 1)]),
        (BLOOM, 12, 1, EVEN_ALONE, [EVEN]),
        (LLAMA, 16, 1, None, [(1, 1)]),
        (LLAMA, 14, 1, None, [EVEN]),
        (DEEP, 16, 1, None, [(1, 2)]),
        (WORDY, 4, 1, None, [EVEN, (1, 3)]),
        (WORDY, 2, 1, None, [EVEN, (0, 2)]),
        (WORDY, 1, 1, None, [EVEN]),
        (WORDY, 32, 1, None, [EVEN]),
        # Nothing comes out.
        (replace(WORDY, layers=17), 8, 1, None, [EVEN]),
        (replace(WORDY, layers=7), 4, 8, None, [EVEN]),
    ],
)
def test_the_even_split_and_the_fastest_one_are_offered(model, pp, vpp, able, offered):
    assert splits_offered(model, pp, vpp, able) == offered


@pytest.mark.parametrize("layers", [22, 30, 61, 126])
@pytest.mark.parametrize(("pp", "vpp"), [(2, 1), (3, 1), (4, 1), (8, 1), (2, 2), (4, 2), (4, 4)])
def test_no_split_at_all_has_a_faster_slowest_rank(layers, pp, vpp):
    model, chunks = replace(WORDY, layers=layers), pp * vpp
    head = head_layers(model)

    def slowest(split: tuple[int, int]) -> float:
        plan = Plan(pp=pp, vpp=vpp, **ends(*split))
        held = [sum(sizes(plan, layers)[rank::pp]) for rank in range(pp)]
        return max([*held[:-1], held[-1] + head])

    most = min(8, layers // chunks)
    every = [
        (first, last)
        for first in range(2 * most + 1)
        for last in range(2 * most + 1)
        if (layers + first + last) % chunks == 0 and (layers + first + last) // chunks > max(first, last)
    ]
    fastest = min(map(slowest, every), default=slowest(EVEN))
    assert slowest(splits_offered(model, pp, vpp, None)[-1]) == pytest.approx(fastest, abs=1e-6)


def test_chunks_hold_every_layer_once_in_order():
    for plan, expected in (
        (Plan(pp=12, **ends(1, 1)), [5, *[6] * 10, 5]),
        (Plan(pp=4, vpp=2, **ends(2, 3)), [7, *[9] * 6, 6]),
        (Plan(pp=4, vpp=2, **ends(-1, 2)), [3, *[2] * 6, 0]),
        (Plan(pp=3, **ends(1, -2)), [3, 4, 6]),
        (Plan(pp=4), [17, 18, 17, 18]),
    ):
        held = [layers_of_chunk(plan, sum(expected), chunk) for chunk in range(len(expected))]
        assert [len(part) for part in held] == expected
        assert [layer for part in held for layer in part] == list(range(sum(expected)))


@pytest.mark.parametrize(
    ("held", "split"),
    [([5, 6, 6, 5], (1, 1)), ([4, 4], EVEN), ([4, 6], (2, 0)), ([8], EVEN), ([6, 5, 5], (-1, 0)), ([0, 2, 2], None)],
)
def test_a_split_is_read_from_the_layers_of_the_chunks(held, split):
    assert split_of(held) == split
    assert split_of([*held, 1, 3, 0]) is None


def test_a_split_with_an_end_without_layers_is_one_where_that_is_said():
    assert split_of([3, 2, 2, 0]) is None
    assert split_of([3, 2, 2, 0], empty_ends=True) == (-1, 2)
    assert split_of([0, 0, 0], empty_ends=True) is None


def test_of_two_ways_to_say_a_split_one_is_a_plan_s():
    assert [plain_split((1, 1), chunks) for chunks in (1, 2, 3)] == [EVEN, EVEN, (1, 1)]
    assert plain_split((1, 3), 2) == (0, 2)


def test_a_space_without_bounds_has_each_pipeline_s_own_splits(make_setting):
    space = Space(Bounds(vpp=(1, 2), schedule=tuple(Schedule)), make_setting(layers=30, nodes=2, batch=64, vocab=65536))
    found = {(plan.pp, plan.vpp, plan.first_stage_less_layers, plan.last_stage_less_layers) for plan in space}
    assert {pp for pp, *_ in found} == {1, 2, 4, 8, 16}
    for pp, vpp, first, last in found:
        assert (first, last) in splits_offered(space.context.model, pp, vpp, None)
    assert [space.index_of(plan) for plan in space] == list(range(len(space)))
    other = next(plan for plan in space if plan.pp == 4 and plan.vpp == 1)
    other = replace(other, **ends(2, 0)) if other.last_stage_less_layers else replace(other, **ends(0, 2))
    (told,) = space.explain(other)
    assert other not in space
    assert told.constraint == "bounds"
    assert space.explain(other, ignore_bounds=True) == []


def test_bounds_list_splits_as_any_other_axis(make_setting):
    bounds = Bounds(pp=(4,), first_stage_less_layers=(0, 1, 2), last_stage_less_layers=(0, 1, 2))
    space = Space(bounds, make_setting(layers=30))
    assert {(p.first_stage_less_layers, p.last_stage_less_layers) for p in space} == {(0, 2), (1, 1), (2, 0)}
    assert space.combinations == 9 * Space(Bounds(pp=(4,), last_stage_less_layers=(0,)), space.context).combinations
    with pytest.raises(
        InvalidValue, match=r"^last_stage_less_layers: must be between -1000000 and 1000000, not -1000001$"
    ):
        Bounds(last_stage_less_layers=(-1000001,))


def test_a_trainer_of_equal_stages_gets_no_others(make_setting):
    setting = make_setting(layers=30)
    able = replace(setting.capabilities, stage_splits=EVEN_ALONE)
    space = Space(Bounds(), replace(setting, capabilities=able))
    assert {plan.pp for plan in space} == {1, 2}
    assert space.dimensions["first_stage_less_layers"] == space.dimensions["last_stage_less_layers"] == (0,)


@pytest.mark.parametrize(
    ("plan", "stage", "held"),
    [
        # pp - stage micro-batches of a rank's own layers.
        ({"pp": 4, **ends(1, 1)}, 0, 4 * 7),
        ({"pp": 4, **ends(1, 1)}, 1, 3 * 8),
        ({"pp": 4, **ends(1, 1)}, 3, 1 * 7),
        # 5 chunks in flight on the first of two ranks: 3 of the first chunk; on the last 3, none of the last chunk.
        ({"pp": 2, "vpp": 2, "schedule": "interleaved", **ends(1, 1)}, 0, 5 * 8 - 3),
        ({"pp": 2, "vpp": 2, "schedule": "interleaved", **ends(1, 1)}, 1, 3 * 8),
        # The first chunk holds more: after two backward passes, of the last chunk, 4 of it are in flight and 1 of that.
        ({"pp": 2, "vpp": 2, "schedule": "interleaved", **ends(-3, 1)}, 0, 4 * 11 + 8),
        # 4 in flight: all of the first chunk, or 3 and 1 of the last, both on the first rank.
        ({"pp": 2, "vpp": 2, "schedule": "zbv", **ends(2, 4)}, 0, 4 * 8 - 4 * 2),
        ({"pp": 2, "vpp": 2, "schedule": "zbv", **ends(4, 2)}, 0, 4 * 8 - 3 * 4 - 1 * 2),
        ({"pp": 2, "vpp": 2, "schedule": "zbv", **ends(2, 4)}, 1, 4 * 8),
    ],
)
def test_activations_are_those_of_the_chunks_in_flight(plan, stage, held):
    plan = Plan(grad_accum_steps=8, **plan)
    chunks = plan.pp * plan.vpp
    every = sizes(plan, 8 * chunks - plan.first_stage_less_layers - plan.last_stage_less_layers)
    own = [every[chunk] for chunk in stages_of(plan, stage)]
    layers = (np.array([float(part)]) for part in (sum(own), own[0], own[-1]))
    assert kept_in_flight(columns_of([plan]), np.array([stage]), *layers).tolist() == [held]


def test_weights_of_a_rank_are_those_of_its_layers():
    training = Training(BLOOM, cluster("jean-zay-a100", 48), MEGATRON_DEEPSPEED)
    plan = Plan(tp=4, pp=12, dp=8, micro_batch_size=2, grad_accum_steps=128, **ends(1, 1))
    parts = [stage_parts(training, columns_of([plan]), DEFAULTS, np.array([stage])) for stage in (0, 5, 11)]
    first, between, last = (float(part["weights"][0]) for part in parts)
    # The embedding is 1.46 layers of weights.
    assert between < first
    assert between < last
    assert first / between == pytest.approx((5 + BLOOM.vocab * BLOOM.hidden / BLOOM.layer_parameters) / 6, rel=0.01)


def test_the_slowest_stage_decides_the_time():
    training = Training(WORDY, cluster("dgx-h100"), TRAINER_BFLOAT16)

    def compute(**split: int) -> float:
        plan = Plan(pp=4, dp=2, grad_accum_steps=16, **split)
        return float(time_parts(training, columns_of([plan]), DEFAULTS)[TimePart.COMPUTE][0])

    layer = (compute(**ends(4, 0)) - compute()) / 1  # 9 layers and the head, not 8
    head = compute() - 8 * layer
    assert compute(**ends(1, 3)) == pytest.approx(max(9 * layer, 6 * layer + head))
    assert compute(**ends(0, 4)) == pytest.approx(max(9 * layer, 5 * layer + head))
    assert compute(**ends(1, 3)) < compute()


@pytest.mark.parametrize(
    ("model", "machine", "framework", "plan"),
    [
        # BLOOM-176B (Le Scao et al. 2022, table 3; bigscience's tr11-176B-ml.slurm) on 48 nodes of 8.
        (
            BLOOM,
            cluster("jean-zay-a100", 48),
            MEGATRON_DEEPSPEED,
            {"tp": 4, "pp": 12, "micro_batch_size": 2, "zero_stage": 1, "recompute": "full"},
        ),
        # Llama 3 405B (Dubey et al. 2024, table 4) on 16,384 GPUs.
        (
            LLAMA,
            cluster("dgx-h100", 2048),
            MEGATRON_CORE["bfloat16"],
            {"tp": 8, "pp": 16, "micro_batch_size": 1, "zero_stage": 1},
        ),
    ],
    ids=["bloom", "llama"],
)
def test_the_published_settings_are_legal_and_estimated(model, machine, framework, plan, make_setting):
    space = Space(Bounds(), replace(make_setting(), model=model, cluster=machine, global_batch_size=2048))
    (told,) = space.explain(space.complete(**plan), ignore_bounds=True)
    assert told.constraint == "pp-layers"
    published = space.complete(**plan, **ends(1, 1))
    assert space.explain(published, ignore_bounds=True) == []
    expected = estimate(Training(model, machine, framework), columns_of([published]))
    # Published: 150 of 312 TFLOP/s (table 5), and 400 of 989.
    peak = machine.device.peak_flops[framework.dtype]
    assert 0.2 < expected.model_flops_per_device[0] / peak < 0.6


# Mixtures after three dense layers, in every second layer behind two, and with windows but in every third.
DEEPSEEK = replace(WORDY, layers=61, experts=16, top_k=2, ffn=2048, dense_ffn=18432, dense_layers=3, mtp_layers=1)
MIXED = (DEEPSEEK, replace(DEEPSEEK, dense_layers=2, moe_every=2, window=1024, full_attention_every=3), WORDY)


@st.composite
def split_plans(draw: st.DrawFn) -> tuple[ModelSpec, Plan]:
    """A model whose layers come out in the plan's chunks, ends with more or none included."""
    schedule = draw(st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZBV]))
    pp = draw(st.integers(1 if schedule is Schedule.ONE_F_ONE_B else 2, 9))
    vpp = {Schedule.ONE_F_ONE_B: 1, Schedule.ZBV: 2}.get(schedule, draw(st.integers(2, 4)))
    each, few = draw(st.integers(3, 6)), st.integers(-4, 3)  # chunks of 0 to 10 layers
    first, last = (draw(few), draw(few)) if pp * vpp > 1 else (0, 0)
    layers = each * pp * vpp - first - last
    assume(layers > 5)
    model = replace(draw(st.sampled_from(MIXED)), layers=layers)
    return model, Plan(pp=pp, vpp=vpp, schedule=schedule, grad_accum_steps=16, **ends(first, last))


@given(split_plans())
def test_each_stage_holds_its_layers_of_each_kind(drawn):
    model, plan = drawn
    kinds = [kind for _, kind in layer_kinds(model)]
    columns = columns_of([plan] * plan.pp)
    held = kinds_held(model, columns, np.arange(plan.pp))
    assert held.rank.sum(axis=1).tolist() == [count for count, _ in layer_kinds(model)]
    for stage in range(plan.pp):
        by_chunk = [
            [[kind_by_hand(model, layer) for layer in layers_of_chunk(plan, model.layers, chunk)] for chunk in own]
            for own in (stages_of(plan, stage), stages_of(plan, stage)[:1], stages_of(plan, stage)[-1:])
        ]
        for part, chunks in zip(held, by_chunk, strict=True):
            assert part[:, stage].tolist() == [sum(chunk.count(kind) for chunk in chunks) for kind in kinds]


def kind_by_hand(model: ModelSpec, layer: int) -> ModelSpec:
    """layer: from 0."""
    behind, every = layer + 1 - model.dense_layers, model.full_attention_every
    expert = model.experts > 0 and behind > 0 and behind % model.moe_every == 0
    whole = model.window == 0 or (every > 0 and (layer + 1) % every == 0)
    (kind,) = (each for _, each in layer_kinds(model) if (each.experts > 0, each.window == 0) == (expert, whole))
    return kind


def test_memory_of_the_ends_of_a_model_with_dense_first_layers_by_hand():
    """9 layers in stages of 3 dense ones, and of 2 with experts each; in 16 bits, with tp 1."""
    model = replace(DEEPSEEK, layers=9, mtp_layers=0, seq_len=2048)
    framework = replace(MEGATRON_DEEPSPEED, fused_attention=True, routing=Routing.EVEN)
    framework = replace(framework, step_bytes=0, kept=replace(framework.kept, dropout=False))
    training = Training(model, cluster("dgx-h100"), framework)
    plan = Plan(pp=4, dp=2, ep=2, grad_accum_steps=8, **ends(-1, 0))
    bare = replace(DEFAULTS, memory_offset_bytes=1e-9, activation_factor=1.0)
    first, last = (stage_parts(training, columns_of([plan]), bare, np.array([stage])) for stage in (0, 3))
    h, kv, words = model.hidden, model.kv_width, framework.padded_vocab(model, 1) * model.hidden
    attention, norms = 2 * h * h + 2 * h * kv, 2 * h
    dense = attention + norms + 3 * h * 18432
    mixed = attention + norms + h * 16 + 8 * 3 * h * 2048
    assert first["weights"] == pytest.approx(2 * (3 * dense + words))
    assert last["weights"] == pytest.approx(2 * (2 * mixed + words + h))
    # Of 4 micro-batches in flight; then the backward pass of a layer.
    kept = 2048 * (2 * (6 * h + 2 * kv + 4 * 18432) + 4 * model.heads)
    assert first["activations"] == pytest.approx(4 * 3 * kept + 2048 * 2 * (2 * 18432 + 2 * h))
    # Two copies of each token, as they are sent, read and answered, with 2048 wide blocks; routing in float32.
    routing = 2 * 16 * 4 + 16 * 2 + 2 * 6 * 8
    kept = 2048 * (2 * (6 * h + 2 * kv) + 4 * model.heads + 2 * (4 * 2 * h + 2 * 4 * 2048) + routing)
    backward = 2 * kept + 2048 * 2 * (2 * 2 * 2048 + 2 * h)
    at_loss = 2 * kept + last["logits"] + 2 * 2 * 2048 * h
    assert last["activations"] + last["logits"] == pytest.approx(np.maximum(backward, at_loss))


def test_the_fullest_stage_may_be_the_first_behind_the_dense_layers():
    """Stages of one layer, of which three are dense and small beside the experts."""
    model = replace(DEEPSEEK, layers=16, dense_ffn=2048, mtp_layers=0, vocab=1024)
    training = Training(model, cluster("dgx-h100", 2), MEGATRON_DEEPSPEED)
    columns = columns_of([Plan(pp=16, grad_accum_steps=16, recompute="full")])
    sums = [
        sum(float(part[0]) for part in stage_parts(training, columns, DEFAULTS, np.array([stage])).values())
        for stage in range(16)
    ]
    assert np.argmax(sums) == 3
    fullest = sum(float(part[0]) for part in memory_parts(training, columns, DEFAULTS).values())
    assert fullest == pytest.approx(sums[3] * DEFAULTS.memory_factor)


def test_only_a_program_that_can_gets_ends_without_layers(make_setting):
    setting = make_setting(layers=6)
    plan = Plan(pp=4, dp=2, grad_accum_steps=16, **ends(0, 2))
    (told,) = Space(Bounds(), setting).explain(plan, ignore_bounds=True)
    assert told.constraint == "pp-layers"
    assert "are 2 for each, which leaves one of them none" in told.message
    able = replace(setting, capabilities=replace(setting.capabilities, empty_ends=True))
    assert Space(Bounds(), able).explain(plan, ignore_bounds=True) == []
    for first, last in ((0, 3), (-1, 3), (-8, -2)):
        legal = Space(Bounds(), replace(able, model=replace(setting.model, layers=8 - first - last)))
        assert bool(legal.explain(replace(plan, **ends(first, last)), ignore_bounds=True)) == (last == 3)


def test_layers_for_further_tokens_may_have_the_chunk_before_the_last_for_themselves(make_setting):
    """Megatron's `Et*3|(tt|)*29,m|L`: 16 ranks of two chunks, of which rank 14 has the further layer, 15 the loss."""
    plan = Plan(pp=16, vpp=2, schedule="interleaved", grad_accum_steps=32, **ends(-1, 4))
    assert sizes(plan, 61) == [3, *[2] * 29, 0, 0]
    assert split_of(sizes(plan, 61), empty_ends=True, loss_alone=True) == (-1, 4)
    assert split_of([3, 2, 2, 0], empty_ends=True, loss_alone=True) is None
    able = replace(make_setting().capabilities, empty_ends=True, shapes=frozenset({Shape.MTP}))
    able = make_setting(layers=61, mtp_layers=1, nodes=2, able=able)
    assert Space(Bounds(), able).explain(plan, ignore_bounds=True) == []
    for wrong, setting in (
        (replace(plan, **ends(-1, 36)), able),  # three chunks without layers
        (plan, replace(able, model=replace(able.model, mtp_layers=0))),
        (plan, replace(able, capabilities=replace(able.capabilities, empty_ends=False))),
    ):
        assert "pp-layers" in {one.constraint for one in Space(Bounds(), setting).explain(wrong, ignore_bounds=True)}


def test_a_split_leaves_room_for_layers_for_further_tokens():
    """A head of 1.8 layers' work: two of them, and the further layer with its projection, take 4.7."""
    further = replace(WORDY, mtp_layers=1)
    assert head_layers(further) == pytest.approx(1 + 2 * head_layers(WORDY), rel=0.05)
    assert [splits_offered(model, 4, 1, None)[-1] for model in (WORDY, further)] == [(1, 3), (0, 4)]
    training = Training(further, cluster("dgx-h100"), MEGATRON_CORE["bfloat16"])
    plans = [Plan(pp=4, dp=2, grad_accum_steps=64, zero_stage=1, **ends(*split)) for split in ((0, 4), (1, 3), (0, 0))]
    assert np.argsort(estimate(training, columns_of(plans)).time.step_s).tolist() == [0, 1, 2]


def test_memory_of_a_further_layer_is_its_own_rank_s():
    training = Training(DEEPSEEK, cluster("dgx-h100", 2), MEGATRON_CORE["bfloat16"])
    plan = Plan(pp=16, vpp=2, schedule="interleaved", grad_accum_steps=32, **ends(-1, 4))

    def weights(plan: Plan, stage: int) -> float:
        columns = columns_of([plan])
        return float(stage_parts(training, columns, DEFAULTS, np.array([stage]))[MemoryPart.WEIGHTS][0]) / 2

    layer = DEEPSEEK.attention_parameters + DEEPSEEK.experts * DEEPSEEK.feed_forward_parameters
    layer += DEEPSEEK.layer_norm_parameters + DEEPSEEK.hidden * DEEPSEEK.experts
    table, norm = DEEPSEEK.vocab * DEEPSEEK.hidden, DEEPSEEK.norm_parameters
    # With its projection, norms and a copy of the embedding.
    further = layer + 2 * DEEPSEEK.hidden**2 + 3 * norm + table
    assert weights(plan, 13) == pytest.approx(4 * layer)
    assert weights(plan, 14) == pytest.approx(2 * layer + further)
    assert weights(plan, 15) == pytest.approx(2 * layer + table + norm)
    beside = replace(plan, pp=31, vpp=1, schedule="1f1b", **ends(-1, 2))
    assert weights(beside, 30) == pytest.approx(further + table + norm)
    assert weights(beside, 29) == pytest.approx(2 * layer)


def test_a_further_layer_on_top_of_a_full_chunk_decides_the_step_and_alone_it_does_not():
    training = Training(
        replace(DEEPSEEK, layers=12, vocab=64, dense_layers=0, dense_ffn=0), cluster("dgx-h100"), TRAINER_BFLOAT16
    )
    splits = {(7, 0, 2), (8, 0, 4), (6, 0, 0)}
    plans = [Plan(pp=pp, grad_accum_steps=512, **ends(first, last)) for pp, first, last in sorted(splits)]
    on_top, beside, alone = time_parts(training, columns_of(plans), DEFAULTS)[TimePart.COMPUTE]
    # Two layers of the ranks between decide; on top of two there are three, and a projection.
    assert beside == pytest.approx(alone)
    projection = on_top - 1.5 * alone
    assert 0.03 * alone < projection < 0.1 * alone
    # Two further layers, in a chunk of their own with one of the others, are three with two projections.
    model = replace(training.model, layers=13, mtp_layers=2)
    plan = Plan(pp=8, grad_accum_steps=512, **ends(0, 3))
    (found,) = time_parts(replace(training, model=model), columns_of([plan]), DEFAULTS)[TimePart.COMPUTE]
    assert found == pytest.approx(1.5 * alone + 2 * projection, rel=0.002)


def test_ends_with_more_layers_are_plans_with_names_of_their_own(make_setting):
    bounds = Bounds(pp=(4,), first_stage_less_layers=(-1, 0), last_stage_less_layers=(0, 1))
    space = Space(bounds, make_setting(layers=8))
    assert {(p.first_stage_less_layers, p.last_stage_less_layers) for p in space} == {(0, 0), (-1, 1)}
    plan = next(plan for plan in space if plan.first_stage_less_layers)
    assert "first--1 last-1" in plan.key
    assert Plan(**{name: int(value) for name, value in in_full("pp4 first--1 last=1").items()}) == Plan(
        pp=4, **ends(-1, 1)
    )
    (told,) = space.explain(replace(plan, pp=1, dp=8, grad_accum_steps=4), ignore_bounds=True)
    assert told.constraint == "split-needs-pp"


@given(st.data(), st.integers(2, 6), st.integers(2, 4), st.integers(1, 4))
def test_an_interleaved_rank_keeps_the_most_that_its_passes_pile_up(data, pp, vpp, rounds):
    """Pass by pass: forward passes until the last rank can begin, then one backward pass after each (Narayanan et al.
    2021, figure 4). Only the pipeline's first and last chunk differ from the others."""
    stage, count = data.draw(st.integers(0, pp - 1)), pp * rounds
    chunks = [1.0] * vpp
    if stage == 0:
        chunks[0] = data.draw(st.sampled_from([0.0, 0.5, 1.5, 2.0]))
    if stage == pp - 1:
        chunks[-1] = data.draw(st.sampled_from([0.0, 0.5, 1.5, 2.0]))
    order = [step // pp % vpp for step in range(count * vpp)]
    before = min(len(order), (vpp - 1) * pp + 2 * (pp - 1 - stage))
    kept, most = 0.0, 0.0
    for step, chunk in enumerate(order):
        kept += chunks[chunk]
        most = max(most, kept)
        if step >= before:
            kept -= chunks[vpp - 1 - order[step - before]]
    plan = Plan(pp=pp, vpp=vpp, schedule=Schedule.INTERLEAVED, grad_accum_steps=count)
    parts = (np.array([part]) for part in (sum(chunks), chunks[0], chunks[-1]))
    assert kept_in_flight(columns_of([plan]), np.array([stage]), *parts).tolist() == [most]
