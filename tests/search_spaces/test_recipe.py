"""Recipes: which weights are trained, and what that does to memory and time. Figures by hand from the shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.estimate import estimate
from meshtune.search_spaces.physics.framework_profiles import (
    DEEPSPEED,
    FSDP,
    FSDP_PURE_BF16,
    MEGATRON_CORE,
    TRAINER_BFLOAT16,
    FrameworkProfile,
)
from meshtune.search_spaces.physics.memory import MemoryPart, Phase, loaded_bytes, memory_parts, offloaded_bytes, phases
from meshtune.search_spaces.physics.recipes import adapted, flops_per_token, trained_share, with_recipe
from meshtune.search_spaces.physics.timing import TimePart
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan, Recompute, Schedule
from meshtune.search_spaces.presets import cluster_presets, described, model_presets
from meshtune.search_spaces.recipe import PLAIN, Adapter, Companion, Offload, Optimizer, Recipe, Role, Target

GIB = 2**30
MODEL = replace(TypeAdapter(ModelSpec).validate_python(described(model_presets()["llama3-8b"])), seq_len=2048)
NODE = TypeAdapter(ClusterSpec).validate_python(described(cluster_presets()["dgx-h100"]))
LORA = Recipe(adapter=Adapter(rank=16))
QLORA = replace(LORA, base_bits=4)
# By hand: hidden 4096, keys and values 1024, ffn 14336, 32 layers.
ADAPTERS = 16 * 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))


def training(recipe: Recipe, framework: FrameworkProfile = FSDP, devices: int = 1) -> Training:
    return Training(MODEL, replace(NODE, devices_per_node=devices), with_recipe(framework, recipe), recipe)


def parts(recipe: Recipe, framework: FrameworkProfile = FSDP, **plan: Any) -> dict[MemoryPart, float]:
    setting = Plan(recompute=Recompute.FULL, grad_accum_steps=2, **plan)
    subject = training(recipe, framework, setting.world_size)
    return {part: float(size[0]) for part, size in memory_parts(subject, columns_of([setting]), DEFAULTS).items()}


def test_a_plain_recipe_changes_nothing() -> None:
    assert with_recipe(FSDP, PLAIN) is FSDP


def test_an_adapter_s_weights_alone_have_gradients_and_states() -> None:
    found = parts(LORA)
    base = MODEL.parameters * 2
    assert found[MemoryPart.WEIGHTS] == pytest.approx(base + ADAPTERS * 4)
    assert found[MemoryPart.GRADIENTS] == pytest.approx(ADAPTERS * 4)
    assert found[MemoryPart.OPTIMIZER] == pytest.approx(ADAPTERS * 8)


def test_deepspeed_keeps_adapters_in_16_bits_beside_a_float32_master() -> None:
    found = parts(LORA, DEEPSPEED)
    assert found[MemoryPart.WEIGHTS] == pytest.approx((MODEL.parameters + ADAPTERS) * 2)
    assert found[MemoryPart.OPTIMIZER] == pytest.approx(ADAPTERS * 12)


def test_a_base_of_4_bits_leaves_embedding_and_head_in_16() -> None:
    ends = 2 * MODEL.vocab * MODEL.hidden + 4096
    norms = 32 * 2 * 4096
    products = MODEL.parameters - ends - norms
    twice = 0.5 + (1 + 4 / 256) / 64
    expected = products * twice + (ends + norms) * 2 + ADAPTERS * 4
    assert parts(QLORA)[MemoryPart.WEIGHTS] == pytest.approx(expected)
    once = replace(QLORA, double_quantization=False)
    assert parts(once)[MemoryPart.WEIGHTS] == pytest.approx(expected + products * (4 / 64 - (1 + 4 / 256) / 64))
    wide = replace(QLORA, plain_bits=32)
    assert parts(wide)[MemoryPart.WEIGHTS] == pytest.approx(expected + (ends + norms) * 2)


def test_experts_in_one_array_are_not_quantized() -> None:
    mixture = replace(MODEL, experts=8, top_k=2)
    quantized, plain = (
        memory_parts(replace(training(recipe), model=mixture), columns_of([Plan(recompute=Recompute.FULL)]), DEFAULTS)[
            MemoryPart.WEIGHTS
        ][0]
        for recipe in (QLORA, replace(QLORA, quantized_experts=False))
    )
    assert plain - quantized == pytest.approx(32 * 8 * 3 * 4096 * 14336 * (2 - 0.515869), rel=1e-4)


def test_a_base_that_is_known_to_the_byte_is_not_doubted() -> None:
    columns = columns_of([Plan(recompute=Recompute.FULL)])
    plain, lora = (estimate(training(recipe), columns).memory for recipe in (PLAIN, LORA))
    base = MODEL.parameters * 2
    low = lora.peak_bytes[0] * np.exp(-3 * lora.log_sd[0])
    assert base < low < lora.peak_bytes[0]
    assert lora.log_sd[0] < 0.6 * plain.log_sd[0]


def test_targets_name_the_products_that_have_an_adapter() -> None:
    some = Recipe(adapter=Adapter(rank=8, targets=(Target.Q, Target.V)))
    assert [(one.target, one.product.outputs) for one in adapted(MODEL, some)] == [(Target.Q, 4096), (Target.V, 1024)]
    assert parts(some)[MemoryPart.GRADIENTS] == pytest.approx(8 * 32 * (8192 + 5120) * 4)
    dora = replace(some, adapter=replace(some.adapter, dora=True))
    assert parts(dora)[MemoryPart.GRADIENTS] == pytest.approx((8 * 32 * (8192 + 5120) + 32 * 5120) * 4)


def test_tensor_parallelism_cuts_one_side_of_an_adapter() -> None:
    found = parts(LORA, MEGATRON_CORE["bfloat16"], tp=2)
    outputs = 32 * 16 * (3 * 4096 + (4096 + 2 * 1024) / 2 + 2 * 4096 + 2 * 14336 / 2)
    inputs = 32 * 16 * (4096 / 2 + 4096 + 14336 / 2 + 4096)
    assert found[MemoryPart.GRADIENTS] == pytest.approx((outputs + inputs) * 4)


def test_zero_3_shards_frozen_weights_and_gathers_them_in_their_own_format() -> None:
    alone, sharded = parts(QLORA), parts(QLORA, dp=8, zero_stage=3)
    assert sharded[MemoryPart.WEIGHTS] == pytest.approx(alone[MemoryPart.WEIGHTS] / 8)
    wider = parts(LORA, dp=8, zero_stage=3)[MemoryPart.GATHERED] - sharded[MemoryPart.GATHERED]
    # Two layers in 16 bits in place of half a byte; and one product made of it.
    products = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    assert wider == pytest.approx(2 * products * (2 - 0.515869) - 4096 * 14336 * 2, rel=1e-4)


def test_zero_2_of_fsdp_has_shards_beside_the_weights_that_it_gathers() -> None:
    base = MODEL.parameters * 2
    found = parts(LORA, dp=8, zero_stage=2)[MemoryPart.WEIGHTS]
    assert found == pytest.approx(base * (1 + 1 / 8) + ADAPTERS * (2 + 4 / 8))
    wide = parts(replace(LORA, base_bits=32), dp=8, zero_stage=2)[MemoryPart.WEIGHTS]
    assert wide == pytest.approx(base * (1 + 2 / 8) + ADAPTERS * (2 + 4 / 8))
    full = parts(PLAIN, dp=8, zero_stage=2)[MemoryPart.WEIGHTS]
    assert full == pytest.approx(MODEL.parameters * (2 + 4 / 8))
    # DeepSpeed's has no shards but the optimizer's.
    assert parts(PLAIN, DEEPSPEED, dp=8, zero_stage=2)[MemoryPart.WEIGHTS] == pytest.approx(base)


def test_inputs_of_frozen_products_are_not_kept() -> None:
    def kept(recipe: Recipe, **framework: Any) -> float:
        found = memory_parts(training(recipe, replace(FSDP, **framework)), columns_of([Plan()]), DEFAULTS)
        return float(found[MemoryPart.ACTIVATIONS][0])

    attention = Recipe(adapter=Adapter(targets=(Target.Q, Target.K, Target.V), bits=16, copies_inputs=False))
    shared = replace(LORA, adapter=replace(LORA.adapter, copies_inputs=False))
    # In 32 layers of 2,048 tokens: the inputs of gate and up, and of down, of 2 bytes each.
    least = 32 * 2048 * 2 * (4096 + 14336)
    assert kept(shared) - kept(attention) == pytest.approx(least, rel=0.06)
    dropped = replace(shared, adapter=replace(shared.adapter, dropout=0.1))
    assert kept(dropped) > kept(LORA) > kept(shared)
    assert kept(replace(LORA, base_bits=32)) > 1.2 * kept(LORA)


def test_the_values_between_the_products_of_an_adapter_and_casts_of_its_weights_are_kept() -> None:
    def kept(rank: int, **plan: Any) -> float:
        subject = training(Recipe(adapter=Adapter(rank=rank)), devices=plan.get("dp", 1))
        found = memory_parts(subject, columns_of([Plan(**plan)]), DEFAULTS)
        return float(found[MemoryPart.ACTIVATIONS][0])

    values, weights = 32 * 7 * 48 * 2048 * 2, ADAPTERS / 16 * 48 * 2
    assert kept(64) - kept(16) == pytest.approx(DEFAULTS.activation_factor * (values + weights))
    three = kept(64, dp=8, zero_stage=3) - kept(16, dp=8, zero_stage=3)
    assert three == pytest.approx(DEFAULTS.activation_factor * values)


def test_frozen_layers_of_a_pipeline_lie_on_its_first_stages() -> None:
    half = Recipe(frozen_layers=16, frozen_embedding=True)
    found = parts(half, pp=2)
    assert found[MemoryPart.GRADIENTS] == pytest.approx(parts(PLAIN, pp=2)[MemoryPart.GRADIENTS])
    uneven = parts(replace(half, frozen_layers=24), pp=2)[MemoryPart.GRADIENTS]
    head = MODEL.vocab * MODEL.hidden + 4096
    assert uneven - head * 4 == pytest.approx((found[MemoryPart.GRADIENTS] - head * 4) / 2)
    chunks = columns_of(
        [Plan(pp=2, vpp=2, schedule=kind, grad_accum_steps=4) for kind in (Schedule.INTERLEAVED, Schedule.ZBV)]
    )
    stages = [trained_share(MODEL, half, chunks, np.array([stage, stage])).tolist() for stage in (0, 1)]
    assert stages == [[0.5, 0.5], [0.5, 0.5]]


def test_trained_ends_are_reduced_and_stepped() -> None:
    columns = columns_of([Plan(dp=8, grad_accum_steps=2)])
    own, ends = (
        estimate(training(each, devices=8), columns).time.parts for each in (LORA, replace(LORA, trained_ends=True))
    )
    embedding_and_head = 2 * MODEL.vocab * MODEL.hidden + 4096
    assert ends[TimePart.DP][0] > 1.2 * own[TimePart.DP][0]
    bandwidth = NODE.device.memory_bandwidth_bytes_per_s
    assert bandwidth is not None
    # Weight and two moments are read and written, the gradient is read: 28 bytes.
    longer = ends[TimePart.OPTIMIZER][0] - own[TimePart.OPTIMIZER][0]
    assert longer == pytest.approx(embedding_and_head * 28 / (bandwidth * DEFAULTS.memory_efficiency))


def test_frozen_weights_take_two_flops_less() -> None:
    head = MODEL.vocab * MODEL.hidden
    layers = MODEL.parameters - 2 * head - 4096 - 32 * 2 * 4096
    assert flops_per_token(MODEL, PLAIN) == MODEL.flops_per_token
    assert MODEL.flops_per_token - flops_per_token(MODEL, LORA) == 2 * (layers + head)
    assert MODEL.flops_per_token - flops_per_token(MODEL, Recipe(frozen_layers=8)) == 2 * layers / 4
    columns = columns_of([Plan()])
    found = estimate(training(LORA), columns)
    assert found.model_flops_per_device[0] == pytest.approx(found.tokens_per_s[0] * flops_per_token(MODEL, LORA))


@settings(max_examples=10, deadline=None)
@given(
    recipe=st.sampled_from([LORA, QLORA, replace(LORA, trained_ends=True), Recipe(frozen_layers=8)]),
    framework=st.sampled_from([FSDP, DEEPSPEED, TRAINER_BFLOAT16]),
    zero=st.integers(0, 3),
    micro=st.sampled_from([1, 4]),
    recompute=st.sampled_from(list(Recompute)),
)
def test_frozen_weights_and_lower_ranks_never_take_more(
    recipe: Recipe, framework: FrameworkProfile, zero: int, micro: int, recompute: Recompute
) -> None:
    columns = columns_of([Plan(dp=8, zero_stage=zero, micro_batch_size=micro, recompute=recompute)])

    def peak(each: Recipe) -> float:
        return float(np.sum(list(memory_parts(training(each, framework, 8), columns, DEFAULTS).values())))

    if recipe.adapter is None:
        assert peak(recipe) < peak(PLAIN)
    else:
        # Copies of inputs for each adapter may take more than one input for all products.
        assert peak(replace(recipe, adapter=replace(recipe.adapter, copies_inputs=False))) < peak(PLAIN)
        assert peak(recipe) < peak(replace(recipe, adapter=replace(recipe.adapter, rank=64)))
        assert peak(replace(recipe, base_bits=4)) <= peak(recipe)


def test_a_reference_has_weights_and_a_forward_pass() -> None:
    pairs = Recipe(rows_per_sample=2)
    with_model = replace(pairs, beside=(Companion(role=Role.REFERENCE),))
    with_base = replace(pairs, beside=(Companion(role=Role.REFERENCE, bits=0),))
    stored = replace(pairs, beside=(Companion(role=Role.REFERENCE, bits=0, runs=False),))
    own = parts(pairs)
    assert parts(with_model)[MemoryPart.WEIGHTS] - own[MemoryPart.WEIGHTS] == pytest.approx(MODEL.parameters * 2)
    assert parts(with_base) == parts(stored) == own
    columns = columns_of([Plan(grad_accum_steps=4)])
    seconds = {
        recipe: estimate(training(recipe), columns).time.parts[TimePart.COMPUTE][0]
        for recipe in (pairs, with_model, with_base, stored)
    }
    assert seconds[stored] == seconds[pairs] < seconds[with_base] == seconds[with_model]
    assert seconds[with_model] / seconds[pairs] == pytest.approx(4 / 3)
    assert own[MemoryPart.LOGITS] == pytest.approx(2 * parts(PLAIN)[MemoryPart.LOGITS])


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        (Optimizer.ADAMW, 8.0),
        (Optimizer.ADAMW_16BIT, 4.0),
        (Optimizer.ADAMW_8BIT, 2 * (1 + 4 / 256)),
        (Optimizer.LION, 4.0),
        (Optimizer.ADAFACTOR, 0.0),
        (Optimizer.SGD, 0.0),
    ],
)
def test_optimizers_have_their_own_states(optimizer: Optimizer, states: float) -> None:
    found = parts(Recipe(optimizer=optimizer))[MemoryPart.OPTIMIZER]
    ends = 2 * MODEL.vocab * MODEL.hidden + 4096
    # bitsandbytes leaves embeddings in 32 bits.
    wide = {Optimizer.ADAMW_8BIT: ends * (8 - states)}.get(optimizer, 0.0)
    assert found == pytest.approx(MODEL.parameters * states + wide)


def test_muon_has_one_moment_of_matrices() -> None:
    ends = 2 * MODEL.vocab * MODEL.hidden + 4096
    found = parts(Recipe(optimizer=Optimizer.MUON))[MemoryPart.OPTIMIZER]
    assert found == pytest.approx(MODEL.parameters * 4 + ends * 4)


def test_paged_states_take_the_room_that_is_left() -> None:
    plan = columns_of([Plan(recompute=Recompute.FULL)])
    large, small = (
        replace(training(recipe), cluster=replace(NODE, devices_per_node=1, device=device))
        for recipe in (Recipe(optimizer=Optimizer.PAGED_ADAMW),)
        for device in (replace(NODE.device, memory_bytes=300 * GIB), replace(NODE.device, memory_bytes=90 * GIB))
    )
    whole = memory_parts(large, plan, DEFAULTS)[MemoryPart.OPTIMIZER][0]
    assert whole == pytest.approx(MODEL.parameters * 8)
    assert memory_parts(small, plan, DEFAULTS)[MemoryPart.OPTIMIZER][0] < 0.5 * whole


def test_offloaded_weights_leave_the_device_and_take_time() -> None:
    there = Recipe(offload=Offload.WEIGHTS)
    plan, columns = Plan(dp=8, zero_stage=3), columns_of([Plan(dp=8, zero_stage=3)])
    found = parts(there, DEEPSPEED, dp=plan.dp, zero_stage=3)
    assert found[MemoryPart.WEIGHTS] == found[MemoryPart.OPTIMIZER] == 0
    host = offloaded_bytes(training(there, DEEPSPEED, 8), columns)[0]
    assert host == pytest.approx(MODEL.parameters * (2 + 12 + 4))
    slow, fast = (estimate(training(each, DEEPSPEED, 8), columns).time.step_s[0] for each in (there, PLAIN))
    assert slow > fast


def test_a_frozen_base_is_read_in_its_own_format() -> None:
    assert loaded_bytes(training(LORA, devices=8)) == 8 * 2 * MODEL.parameters
    assert loaded_bytes(training(PLAIN, devices=8)) == 8 * 4 * MODEL.parameters


def test_frozen_parts_have_no_gradients() -> None:
    embedding = MODEL.vocab * MODEL.hidden
    own, frozen = parts(PLAIN), parts(Recipe(frozen_embedding=True))
    assert own[MemoryPart.GRADIENTS] - frozen[MemoryPart.GRADIENTS] == pytest.approx(embedding * 4)
    half = parts(Recipe(frozen_layers=16, frozen_embedding=True, frozen_head=True))
    assert half[MemoryPart.OPTIMIZER] == pytest.approx((MODEL.parameters - 2 * embedding - 4096) / 2 * 8)
    tower = replace(training(PLAIN), model=replace(MODEL, tower_parameters=10**9))
    found = memory_parts(tower, columns_of([Plan(recompute=Recompute.FULL)]), DEFAULTS)
    assert found[MemoryPart.WEIGHTS][0] - own[MemoryPart.WEIGHTS] == pytest.approx(4e9)
    assert found[MemoryPart.GRADIENTS][0] == pytest.approx(own[MemoryPart.GRADIENTS])


def test_a_backward_pass_of_frozen_weights_is_shorter() -> None:
    columns = columns_of([Plan(micro_batch_size=4, recompute=Recompute.NONE)])
    full, lora, qlora = (
        estimate(training(recipe, TRAINER_BFLOAT16), columns).time.step_s[0] for recipe in (PLAIN, LORA, QLORA)
    )
    assert 0.6 < lora / full < 0.9
    assert lora < qlora


def test_data_parallel_ranks_send_gradients_of_adapters_alone() -> None:
    columns = columns_of([Plan(dp=8)])
    full, lora = (estimate(training(each, devices=8), columns).time.parts[TimePart.DP][0] for each in (PLAIN, LORA))
    assert lora < full / 2


def test_rows_are_as_long_as_the_longest_in_memory_and_as_the_mean_in_time() -> None:
    short = Recipe(mean_tokens=512)
    columns = columns_of([Plan(micro_batch_size=4)])
    long, mean = estimate(training(PLAIN), columns), estimate(training(short), columns)
    assert mean.memory.peak_bytes == pytest.approx(long.memory.peak_bytes)
    assert mean.time.step_s[0] < 0.5 * long.time.step_s[0]
    assert mean.tokens_per_s[0] == pytest.approx(4 * 512 / mean.time.step_s[0])


def test_torch_s_optimizer_makes_its_states_in_the_first_step() -> None:
    columns = columns_of([Plan(recompute=Recompute.FULL, grad_accum_steps=2)])
    lazy, early = (phases(training(PLAIN, code), columns, DEFAULTS) for code in (FSDP, DEEPSPEED))
    assert lazy[Phase.FIRST_STEP][0] < lazy[Phase.STEADY][0]
    assert early[Phase.FIRST_STEP][0] == early[Phase.STEADY][0]
    assert lazy[Phase.LOAD][0] < lazy[Phase.CHECKPOINT][0] <= lazy[Phase.STEADY][0]


def test_float32_weights_under_autocast_keep_their_casts_until_they_are_sharded() -> None:
    plan = columns_of([Plan(), Plan(dp=8, zero_stage=3)])
    found = memory_parts(training(PLAIN, devices=8), plan, DEFAULTS)[MemoryPart.ACTIVATIONS]
    plain = memory_parts(training(PLAIN, FSDP_PURE_BF16, devices=8), plan, DEFAULTS)[MemoryPart.ACTIVATIONS]
    casts = (MODEL.parameters - 2 * MODEL.vocab * MODEL.hidden) * 2
    assert found[0] - plain[0] > casts
    assert np.isclose(found[1], plain[1])


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"base_bits": 4}, "base_bits"),
        ({"base_bits": 5}, "base_bits"),
        ({"plain_bits": 8}, "plain_bits"),
        ({"trained_ends": True}, "trained_ends"),
        ({"optimizer": "adam9"}, "optimizer"),
        ({"adapter": Adapter(), "frozen_layers": 3}, "frozen_layers"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_by_its_key(given: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Recipe(**given)
    assert [problem.path for problem in caught.value.problems] == [path]
