"""Memory by part: hand-computed cases, what pruning rules may rely on, and the speed of whole spaces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshtune.search_spaces.cluster import ClusterSpec, DeviceSpec
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.activations import layer_bytes
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.framework_profiles import (
    MEGATRON_DEEPSPEED,
    NANOTRON,
    TRAINER_BFLOAT16,
    FrameworkProfile,
)
from meshtune.search_spaces.physics.memory import MemoryPart, in_flight, memory_parts, stage_parts
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan, Schedule

GPT = ModelSpec(
    name="gpt",
    layers=8,
    hidden=1024,
    heads=16,
    ffn=4096,
    vocab=32768,
    seq_len=1024,
    norm="layernorm",
    activation="gelu",
    position="learned",
)
LLAMA = ModelSpec(name="llama", layers=16, hidden=2048, heads=32, kv_heads=8, ffn=8192, vocab=32768, seq_len=2048)
MIXTURE = replace(LLAMA, name="mixture", experts=8, top_k=2, ffn=2048)
DEVICE = DeviceSpec(name="any", kind="cuda", memory_bytes=80 * 2**30)
CLUSTER = ClusterSpec(name="any", nodes=8, devices_per_node=8, device=DEVICE)
BARE = replace(DEFAULTS, memory_offset_bytes=1e-9, activation_factor=1.0)
FUSED = replace(MEGATRON_DEEPSPEED, fused_attention=True, optimizer_bytes=12)


def parts_of(model: ModelSpec, framework: FrameworkProfile, **plan):
    return memory_parts(Training(model, CLUSTER, framework), columns_of([Plan(**plan)]), BARE)


def total(model: ModelSpec, framework: FrameworkProfile, **plan) -> float:
    return sum(float(part[0]) for part in parts_of(model, framework, **plan).values())


def kept(model: ModelSpec, framework: FrameworkProfile, **plan) -> float:
    (layer,) = layer_bytes(model, framework, columns_of([Plan(**plan)]))
    return float(layer.kept[0])


S, B, H, A = GPT.seq_len, 2, GPT.hidden, GPT.heads


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({}, S * B * H * (34 + 5 * A * S / H)),
        ({"tp": 4, "sequence_parallel": False}, S * B * H * (10 + 24 / 4 + 5 * A * S / (H * 4))),
        ({"tp": 4}, S * B * H / 4 * (34 + 5 * A * S / H)),
        ({"tp": 4, "recompute": "selective"}, 34 * S * B * H / 4),
        ({"recompute": "full"}, 2 * S * B * H),
        ({"recompute": "full", "recompute_interval": 2}, S * B * H * (2 + 34 + 5 * A * S / H) / 2),
    ],
    ids=["one rank", "tensor", "sequence", "selective", "full", "every second in full"],
)
def test_a_gpt_layer_keeps_what_korthikanti_et_al_count(plan, expected):
    assert kept(GPT, MEGATRON_DEEPSPEED, micro_batch_size=B, **plan) == pytest.approx(expected)


def test_fused_attention_keeps_no_scores_but_a_row_of_logarithms_per_head():
    assert kept(GPT, FUSED, micro_batch_size=B) == pytest.approx(S * B * (34 * H + 4 * A))


def test_a_gated_layer_with_grouped_queries_by_hand():
    # In 16 bits: two norms' inputs and outputs, query, answer; narrow keys and values; gate, up, both activated.
    h, kv, f = LLAMA.hidden, LLAMA.kv_width, LLAMA.ffn
    plain = replace(FUSED, kept=replace(FUSED.kept, dropout=False))
    assert kept(LLAMA, plain) == pytest.approx(2048 * (2 * (6 * h + 2 * kv + 4 * f) + 4 * 32))


@pytest.mark.parametrize(("stage", "per_weight"), [(0, 16), (1, 4 + 12 / 8), (2, 2 + 14 / 8), (3, 16 / 8)])
def test_model_states_by_zero_stage_are_those_of_rajbhandari_et_al(stage, per_weight):
    states = [MemoryPart.WEIGHTS, MemoryPart.GRADIENTS, MemoryPart.OPTIMIZER]
    parts = parts_of(GPT, FUSED, dp=4, cp=2, zero_stage=stage)
    assert sum(float(parts[part][0]) for part in states) == pytest.approx(per_weight * GPT.parameters, rel=1e-6)


def test_gradients_stay_whole_in_a_pipeline_under_zero_2():
    shared, alone = (
        parts_of(GPT, FUSED, pp=pp, dp=8, zero_stage=2, grad_accum_steps=8)[MemoryPart.GRADIENTS][0] for pp in (2, 1)
    )
    assert shared > alone


def test_experts_states_are_sharded_over_their_own_replicas():
    def optimizer(ep):
        return float(parts_of(MIXTURE, FUSED, dp=8, ep=ep, zero_stage=1)[MemoryPart.OPTIMIZER][0])

    def weights(ep):
        return float(parts_of(MIXTURE, FUSED, dp=8, ep=ep, zero_stage=1)[MemoryPart.WEIGHTS][0])

    experts = MIXTURE.layers * MIXTURE.experts * MIXTURE.feed_forward_parameters
    assert optimizer(8) == pytest.approx(optimizer(1))
    assert weights(1) - weights(8) == pytest.approx(2 * experts * 7 / 8)


def test_sharding_that_knows_no_experts_leaves_a_copy_of_all_other_states_with_each_of_their_ranks():
    unaware = replace(FUSED, shards_over_experts=False)

    def optimizer(framework, ep):
        return float(parts_of(MIXTURE, framework, dp=8, ep=ep, zero_stage=1)[MemoryPart.OPTIMIZER][0])

    experts = MIXTURE.layers * MIXTURE.experts * MIXTURE.feed_forward_parameters
    others = MIXTURE.parameters - experts
    assert optimizer(unaware, 1) == optimizer(FUSED, 1)
    more = optimizer(unaware, 4) - optimizer(FUSED, 4)
    assert more == pytest.approx(3 * others / 8 * FUSED.optimizer_bytes, rel=1e-3)


@pytest.mark.parametrize(
    ("plan", "stage", "expected"),
    [
        ({"pp": 4, "grad_accum_steps": 8}, 0, 4),
        ({"pp": 4, "grad_accum_steps": 8}, 3, 1),
        ({"pp": 4, "grad_accum_steps": 2}, 0, 2),
        ({"pp": 4, "grad_accum_steps": 8, "schedule": "gpipe"}, 3, 8),
        # Chunks: (1 + (p - 1) / (p v)) times 1F1B's, of Narayanan et al. 2021.
        ({"pp": 4, "vpp": 2, "grad_accum_steps": 8, "schedule": "interleaved"}, 0, 4 * 2 * (1 + 3 / 8)),
        ({"pp": 4, "vpp": 2, "grad_accum_steps": 8, "schedule": "zbv"}, 3, 8),
        ({"grad_accum_steps": 8}, 0, 1),
    ],
)
def test_micro_batches_in_flight_by_schedule_and_stage(plan, stage, expected):
    assert in_flight(columns_of([Plan(**plan)]), np.array([stage])) == [expected]


def test_a_tied_head_is_held_by_the_first_and_the_last_stage():
    tied = replace(GPT, tied_head=True)
    training = Training(tied, CLUSTER, FUSED)
    columns = columns_of([Plan(pp=4, grad_accum_steps=4)])
    first, middle, last = (
        stage_parts(training, columns, BARE, np.array([stage]))[MemoryPart.WEIGHTS][0] for stage in (0, 1, 3)
    )
    assert first - middle == 2 * tied.embedding_parameters
    assert last - middle == 2 * (tied.vocab * tied.hidden + tied.norm_parameters)


def test_the_fullest_stage_is_reported_whichever_it_is():
    training, columns = Training(GPT, CLUSTER, FUSED), columns_of([Plan(pp=4, grad_accum_steps=4)])
    sums = [
        sum(float(part[0]) for part in stage_parts(training, columns, BARE, np.array([stage])).values())
        for stage in range(4)
    ]
    assert total(GPT, FUSED, pp=4, grad_accum_steps=4) == pytest.approx(max(sums))


def test_late_buffers_never_fill_the_device():
    large = {"tp": 32, "micro_batch_size": 128, "grad_accum_steps": 2}
    bare = total(LLAMA, replace(NANOTRON, kept=replace(NANOTRON.kept, late_buffers=False)), **large)
    with_late = total(LLAMA, NANOTRON, **large)
    assert bare < with_late <= max(bare, 0.9 * DEVICE.memory_bytes) * (1 + 1e-9)


plans = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4]),
        "pp": st.sampled_from([1, 2, 4]),
        "dp": st.sampled_from([2, 8]),
        "cp": st.sampled_from([1, 2]),
        "micro_batch_size": st.integers(1, 8),
        "grad_accum_steps": st.integers(1, 16),
        "zero_stage": st.integers(0, 2),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "sequence_parallel": st.booleans(),
        "recompute_interval": st.integers(1, 3),
        "schedule": st.sampled_from(list(Schedule)),
    }
)
cases = st.tuples(
    plans.map(lambda plan: plan | {"vpp": 2 if plan["pp"] > 1 and Schedule(plan["schedule"]).interleaves else 1}).map(
        lambda plan: plan | ({} if plan["vpp"] == 2 else {"schedule": "1f1b"} if plan["schedule"] != "gpipe" else {})
    ),
    st.sampled_from([GPT, LLAMA, MIXTURE]),
    st.sampled_from([MEGATRON_DEEPSPEED, FUSED, TRAINER_BFLOAT16]),
)


@settings(max_examples=150, deadline=None)
@given(cases)
def test_what_pruning_relies_on(case):
    plan, model, framework = case
    here = total(model, framework, **plan)
    more_recompute = {"none": "selective", "selective": "full", "full": "full"}[plan["recompute"]]
    assert total(model, framework, **plan | {"tp": 2 * plan["tp"]}) <= here * (1 + 1e-9)
    assert total(model, framework, **plan | {"micro_batch_size": 1 + plan["micro_batch_size"]}) >= here
    assert total(model, framework, **plan | {"grad_accum_steps": 1 + plan["grad_accum_steps"]}) >= here
    assert total(model, framework, **plan | {"recompute": more_recompute}) <= here * (1 + 1e-9)
    assert total(model, framework, **plan | {"zero_stage": 1}) <= total(model, framework, **plan | {"zero_stage": 0})
