"""A step's time by part: hand-computed cases, with everything switched off that is not the case's own."""

from __future__ import annotations

from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshtune.runners.documents import read_value
from meshtune.search_spaces.cluster import AttentionRate, ClusterSpec, DeviceSpec, LinkSpec
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.estimate import estimate_time
from meshtune.search_spaces.physics.framework_profiles import (
    FRAMEWORKS,
    FSDP,
    MEGATRON_DEEPSPEED,
    NANOTRON,
    TORCHTITAN,
    TRAINER_BFLOAT16,
    FrameworkProfile,
)
from meshtune.search_spaces.physics.memory import MemoryPart, memory_parts
from meshtune.search_spaces.physics.network import Network
from meshtune.search_spaces.physics.rates import ATTENTION_SHARE
from meshtune.search_spaces.physics.timing import TimePart, time_parts
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import ContextParallel, Plan, Recompute, Schedule, Selective
from meshtune.search_spaces.presets import cluster_presets, described, model_presets
from meshtune.search_spaces.routing import Routing

RATE, MEMORY = 1e14, 1e12
LLAMA = ModelSpec(name="llama", layers=16, hidden=2048, heads=32, kv_heads=8, ffn=8192, vocab=32768, seq_len=2048)
MIXTURE = replace(LLAMA, name="mixture", experts=8, top_k=2, ffn=2048)
DEEPSEEK_16B = described(model_presets()["deepseek-v2"]) | {"name": "16b", "layers": 27, "hidden": 2048, "heads": 16}
DEEPSEEK_16B |= {"ffn": 1408, "experts": 64, "shared_ffn": 2816, "dense_ffn": 10944}
DEEPSEEK_16B |= {"latent_attention": DEEPSEEK_16B["latent_attention"] | {"q_lora_rank": 0}}
HEADLESS = replace(LLAMA, name="headless", vocab=1)
DEVICE = DeviceSpec(
    name="any",
    kind="cuda",
    memory_bytes=80 * 2**30,
    peak_flops={"float16": 2e14, "bfloat16": 2e14},
    sustained_flops={"float16": RATE, "bfloat16": RATE},
    memory_bandwidth_bytes_per_s=MEMORY,
)
CLUSTER = ClusterSpec(
    name="any",
    nodes=8,
    devices_per_node=8,
    device=DEVICE,
    node_link=LinkSpec(latency_s=2e-6, bandwidth_bytes_per_s=100e9),
    network_link=LinkSpec(latency_s=10e-6, bandwidth_bytes_per_s=10e9),
)
# Only products with weights take time; links and memory are turned on by the cases that are about them.
PRODUCTS = replace(
    DEFAULTS,
    matmul_efficiency=1.0,
    attention_efficiency=1e30,
    narrow_rows=1e-30,
    memory_efficiency=1e30,
    launch_factor=1e-30,
    node_efficiency=1e30,
    network_efficiency=1e30,
    collective_overhead_s=1e-30,
    congestion=1e-30,
    network_latency_factor=1e-30,
    send_overhead_s=1e-30,
    straggling=1e-30,
    step_overhead_s=1e-30,
)
LINKS = replace(PRODUCTS, node_efficiency=1.0, network_efficiency=1.0, network_latency_factor=1.0)
NETWORK = Network(CLUSTER, LINKS)
# Two bytes of everything, nothing overlapped, attention fused, one bucket for all weights.
PLAIN = FrameworkProfile(
    routing=Routing.EVEN,
    name="plain",
    dtype="bfloat16",
    weight_bytes=2,
    gradient_bytes=4,
    optimizer_bytes=12,
    activation_bytes=2,
    transfer_bytes=2,
    reduce_bytes=4,
    gather_bytes=2,
    logit_bytes=6,
    overlapped_gradients=False,
    bucket_weights=1e30,
)
OVERLAPPED = replace(PLAIN, overlapped_gradients=True, bucket_weights=0)
LAYER = LLAMA.attention_parameters + LLAMA.feed_forward_parameters


def parts_of(
    model: ModelSpec = LLAMA, constants=PRODUCTS, framework: FrameworkProfile = PLAIN, cluster=CLUSTER, **plan
):
    parts = time_parts(Training(model, cluster, framework), columns_of([Plan(**plan)]), constants)
    return {part: float(column[0]) for part, column in parts.items()}


def part_of(part: str, *args, **plan) -> float:
    return parts_of(*args, **plan)[TimePart(part)]


def step_of(*args, **plan) -> float:
    return sum(parts_of(*args, **plan).values())


# Computation


@pytest.mark.parametrize("model", [LLAMA, MIXTURE, replace(LLAMA, activation="gelu", kv_heads=32)])
def test_unfused_attention_on_one_device_takes_the_models_flops_over_the_rate(model):
    unfused = replace(PLAIN, fused_attention=False)
    tokens = 2 * 3 * model.seq_len
    expected = tokens * model.flops_per_token / RATE
    assert step_of(model, PRODUCTS, unfused, micro_batch_size=2, grad_accum_steps=3) == pytest.approx(expected)


def test_fused_attention_does_half_of_it_at_its_own_rate_and_two_and_a_half_times_backward():
    constants = replace(PRODUCTS, attention_efficiency=0.5)
    products = 6 * (16 * LAYER + LLAMA.vocab * LLAMA.hidden) / RATE
    attention = 16 * 3.5 * 2 * LLAMA.seq_len * LLAMA.hidden / (0.5 * ATTENTION_SHARE * RATE)
    assert step_of(LLAMA, constants) == pytest.approx(LLAMA.seq_len * (products + attention))


SLOW, FAST = "flash2", "cudnn"
# Forward and backward apart; of 4 times the head 4 times as fast, so between them as the head.
KERNELS = tuple(
    AttentionRate(kernel=kernel, head_dim=head, forward_flops=f, backward_flops=f / 2, start_tokens=1024)
    for kernel, head, f in ((SLOW, 64, 2e13), (FAST, 64, 4e13), (FAST, 256, 16e13))
)
TIMED = replace(CLUSTER, device=replace(DEVICE, attention=KERNELS))
ATTENTION = replace(PRODUCTS, matmul_efficiency=1e30, attention_efficiency=0.5)


def seconds_of_attention(forward: float, seq_len: int = 16384) -> float:
    """Of HEADLESS in one sequence, at half of the rate, backward of a quarter; without its products."""
    return 16 * 2 * seq_len**2 * HEADLESS.hidden * (1 / forward + 2.5 / (forward / 2)) / 0.5


@pytest.mark.parametrize(
    ("kernels", "heads", "seq_len", "forward"),
    [
        ((FAST, SLOW), 32, 16384, 4e13),
        ((SLOW, FAST), 32, 16384, 2e13),
        (("unheard", SLOW), 32, 16384, 2e13),  # the next one, where the first was not timed on the device
        ((FAST,), 16, 16384, 8e13),  # heads of 128, between 64 and 256
        ((FAST,), 4, 16384, 16e13),  # of 512, as the largest
        ((FAST,), 32, 1024, 4e13 * (1 + 1 / 16) / 2),  # half as fast as without an end
        (("unheard",), 32, 16384, None),
    ],
)
def test_attention_runs_at_the_rate_of_the_codes_kernel_by_head_and_length(kernels, heads, seq_len, forward):
    model = replace(HEADLESS, heads=heads, head_dim=2048 // heads, kv_heads=4, seq_len=seq_len)
    code = replace(PLAIN, attention_kernels=kernels)
    known = seconds_of_attention(forward, seq_len) if forward else 16 * 3.5 * 2 * seq_len**2 * 2048 / (0.3 * RATE)
    assert step_of(model, ATTENTION, code, TIMED) == pytest.approx(known)


def test_a_window_slows_attention_as_a_sequence_of_what_it_leaves():
    model = replace(HEADLESS, seq_len=16384, window=1024)
    seen = 1 / 16 * (2 - 1 / 16)
    shorter = (1 + 1 / 16) / (1 + 1 / (16 * seen))
    assert step_of(model, ATTENTION, cluster=TIMED) == pytest.approx(seen * seconds_of_attention(4e13 * shorter))


def test_a_rate_of_attention_in_the_spec_goes_before_those_of_kernels():
    told = replace(TIMED, device=replace(TIMED.device, attention_flops={"bfloat16": 1e13}))
    model = replace(HEADLESS, seq_len=16384)
    expected = 16 * 3.5 * 2 * 16384**2 * 2048 / (0.5 * 1e13)
    assert step_of(model, ATTENTION, cluster=told) == pytest.approx(expected)
    # As specs of before `device.attention` have both rates.
    both = replace(told, device=replace(told.device, own_attention_flops={"bfloat16": 2e13}))
    assert step_of(model, ATTENTION, cluster=both) == pytest.approx(expected / 2)
    usual = replace(PLAIN, attention_kernels=("flash2",))
    assert step_of(model, ATTENTION, usual, cluster=both) == pytest.approx(expected)


# Context of 1,048,576 tokens on 8 H100, cp 8, everything recomputed (github.com/huggingface/trl/pull/6845); torch ran
# cuDNN's attention.
@pytest.mark.parametrize(("name", "step_s"), [("qwen3-0.6b", 137.0), ("qwen3-8b", 364.0), ("qwen3-32b", 1295.0)])
def test_a_long_context_on_hopper_takes_the_time_of_cudnn(name, step_s):
    model = read_value(ModelSpec, described(model_presets()[name]) | {"seq_len": 2**20})
    hopper = read_value(ClusterSpec, described(cluster_presets()["dgx-h100"]))
    columns = columns_of([Plan(cp=8, zero_stage=3, recompute=Recompute.FULL, context=ContextParallel.RING)])
    found = estimate_time(Training(model, hopper, FSDP), columns)
    assert abs(np.log(step_s / found.step_s[0])) < 1.645 * found.log_sd[0]
    usual = time_parts(Training(model, hopper, FSDP), columns, replace(DEFAULTS, attention_efficiency=0.87))
    assert sum(part[0] for part in usual.values()) == pytest.approx(step_s, rel=0.2)
    older = estimate_time(Training(model, hopper, NANOTRON), columns)  # FlashAttention-2
    assert older.step_s > 1.4 * found.step_s


def test_narrow_products_take_longer_by_their_sides():
    constants = replace(PRODUCTS, narrow_rows=100.0)
    wide, narrow = (part_of("compute", HEADLESS, c, tp=8) for c in (PRODUCTS, constants))
    # Rows, hidden, and the side that tp cuts: of queries, keys and values, of the answer, of ffn.
    read, answer = HEADLESS.query_width + 2 * HEADLESS.kv_width, HEADLESS.answer_width
    block = HEADLESS.feed_forward_parameters * 8 / HEADLESS.ffn
    cut = HEADLESS.hidden * (read * 8 / read + answer * 8 / answer) + block
    sides = 2 / 2048 + cut / LAYER
    assert narrow / wide == pytest.approx(1 + 100 * sides, rel=1e-4)


def test_an_expert_meets_the_tokens_of_all_ranks_that_share_it():
    constants = replace(PRODUCTS, narrow_rows=100.0)
    products = 2 * 6 * MIXTURE.feed_forward_parameters * 2048 * 16 / RATE
    alone, spread = (part_of("compute", MIXTURE, constants, dp=8, ep=ep) for ep in (1, 8))
    assert alone - spread == pytest.approx(products * 100 * (8 / 4096 - 1 / 4096))


def test_copies_of_tokens_for_experts_are_read_and_written():
    constants = replace(PRODUCTS, memory_efficiency=1.0)
    copies = 2048 * 2 * MIXTURE.hidden * 2 * 16 / MEMORY

    def compute(passes: float, **plan) -> float:
        return part_of("compute", MIXTURE, constants, replace(PLAIN, copy_passes=passes), **plan)

    assert compute(6, dp=8) - compute(0, dp=8) == pytest.approx(3 * 6 * copies)
    assert compute(6, tp=2, dp=4) - compute(0, tp=2, dp=4) == pytest.approx(3 * 6 * copies)
    # Those that came from other ranks are ordered once more, here and for the way back. Of fewer weights a rank reads 2
    # bytes each in three passes, and 12 with gradients that are added up.
    weights = 2 * MIXTURE.experts * MIXTURE.feed_forward_parameters * 16 / MEMORY
    reading = compute(6, dp=8) - compute(6, dp=8, ep=8)
    assert reading == pytest.approx((3 + 6) * weights * 7 / 8 - 3 * 3 * copies, rel=1e-3)
    dense = replace(PLAIN, copy_passes=1e6)
    assert part_of("compute", LLAMA, constants, dense) == part_of("compute", LLAMA, constants)


@pytest.mark.parametrize(
    ("place", "model", "framework", "plan", "tokens_per_s"),
    [
        # mlc-ai/pith-train issue 79; predicted 27,800 before copies of tokens were counted.
        (
            "dgx-b200",
            described(model_presets()["qwen3-30b-a3b"]) | {"seq_len": 8192},
            FRAMEWORKS["torchtitan-chunked"],
            {"dp": 8, "micro_batch_size": 8, "zero_stage": 3, "recompute": "selective"},
            19_500,
        ),
        # pytorch/torchtitan issue 1789, its DeepSeek-V3 16B with four sequences of a rank; 19,200 before.
        (
            "dgx-h100",
            DEEPSEEK_16B,
            TORCHTITAN,
            {"dp": 8, "ep": 8, "micro_batch_size": 4, "zero_stage": 3, "recompute": "selective"},
            11_650,
        ),
    ],
)
def test_reported_times_of_mixtures_on_torch_programs(place, model, framework, plan, tokens_per_s):
    model, where = read_value(ModelSpec, dict(model)), read_value(ClusterSpec, described(cluster_presets()[place]))
    found = estimate_time(Training(model, where, framework), columns_of([Plan(**plan)]))
    ours = plan["micro_batch_size"] * model.seq_len / found.step_s[0]
    assert ours == pytest.approx(tokens_per_s, rel=0.25)
    assert abs(log(ours / tokens_per_s)) < 1.64 * found.log_sd[0]


def test_elementwise_work_is_bytes_over_the_memorys_bandwidth():
    constants = replace(PRODUCTS, matmul_efficiency=1e30, memory_efficiency=1.0)
    tokens, weights = LLAMA.seq_len, LAYER
    forward = 2 * tokens * (14 * LLAMA.hidden + 2 * 3 * LLAMA.ffn) + 2 * weights
    gradients = 2 * weights * (2 + 4)
    head = 5 * tokens * LLAMA.vocab * 6
    assert part_of("compute", LLAMA, constants) == pytest.approx((16 * (3 * forward + gradients) + head) / MEMORY)


def test_full_recomputation_adds_a_forward_pass():
    forward = 16 * 2 * LAYER * LLAMA.seq_len / RATE
    assert part_of("recompute") == 0
    assert part_of("recompute", recompute="full") == pytest.approx(forward)
    assert part_of("recompute", recompute="full", recompute_interval=4) == pytest.approx(forward / 4)


def selective(kind: str, *, fused: bool = False) -> FrameworkProfile:
    return replace(PLAIN, kept=replace(PLAIN.kept, selective=Selective(kind), fused_products=fused))


def test_selective_recomputation_of_attention_adds_attention_alone():
    constants = replace(PRODUCTS, attention_efficiency=0.5)
    attention = 16 * 2 * LLAMA.seq_len**2 * LLAMA.hidden / (0.5 * ATTENTION_SHARE * RATE)
    assert part_of("recompute", LLAMA, constants, selective("attention"), recompute="selective") == pytest.approx(
        attention
    )


def test_selective_recomputation_that_keeps_products_adds_elementwise_work_alone():
    constants = replace(PRODUCTS, memory_efficiency=1.0)
    elementwise = 16 * 2 * LLAMA.seq_len * (14 * LLAMA.hidden + 2 * 3 * LLAMA.ffn) / MEMORY
    added = part_of("recompute", LLAMA, constants, selective("products"), recompute="selective")
    assert added == pytest.approx(elementwise)


@pytest.mark.parametrize(
    ("model", "fused", "products"),
    [
        # Of query, key, value, output; of gate, up, down, whose last product nothing in the backward pass needs.
        (LLAMA, False, LLAMA.hidden * (LLAMA.kv_width + LLAMA.hidden + LLAMA.ffn)),
        (LLAMA, True, LLAMA.hidden * LLAMA.hidden),
        (replace(LLAMA, activation="gelu"), False, LLAMA.hidden * (LLAMA.kv_width + LLAMA.hidden)),
        (MIXTURE, False, MIXTURE.hidden * (MIXTURE.kv_width + MIXTURE.hidden + 2 * MIXTURE.ffn)),
    ],
)
def test_selective_recomputation_by_halves_adds_every_second_product(model, fused, products):
    half = selective("half_products", fused=fused)
    added = part_of("recompute", model, PRODUCTS, half, recompute="selective")
    assert added == pytest.approx(16 * 2 * products * model.seq_len / RATE)


def test_recomputed_attention_repeats_the_exchange_that_ulysses_needs():
    added = [
        part_of("cp", LLAMA, LINKS, selective(kind), cp=4, context="ulysses", recompute=recompute)
        for kind, recompute in (("products", "none"), ("products", "selective"), ("attention", "selective"))
    ]
    assert (added[1], added[2]) == (pytest.approx(added[0]), pytest.approx(added[0] * 3 / 2))


def test_a_layer_is_never_faster_than_its_host_launches_it():
    constants = replace(PRODUCTS, launch_factor=2.0)
    tiny = replace(HEADLESS, hidden=64, ffn=64, seq_len=64)
    launched = 16 * 2.0 * PLAIN.layer_launch_s
    assert step_of(tiny, constants) == pytest.approx(2.5 * launched, rel=1e-3)
    assert step_of(tiny, constants, grad_accum_steps=4) == pytest.approx(4 * 2.5 * launched, rel=1e-3)
    assert step_of(tiny, constants, recompute="full") == pytest.approx(3.5 * launched, rel=1e-3)
    large = replace(HEADLESS, seq_len=65536)
    assert step_of(large, constants) == pytest.approx(step_of(large), rel=1e-3)


# The pipeline


def test_split_backward_passes_fill_the_bubble():
    plan = {"pp": 4, "vpp": 2, "grad_accum_steps": 16}
    interleaved, zero, vee = (
        part_of("bubble", HEADLESS, **plan, schedule=schedule) for schedule in ("interleaved", "zero_bubble", "zbv")
    )
    # Products alone: forward, gradients of inputs and gradients of weights take a third each.
    assert zero == pytest.approx(interleaved / 3, rel=1e-6)
    assert vee == pytest.approx(0, abs=1e-9 * interleaved)
    heavy = replace(PRODUCTS, attention_efficiency=0.3)
    by_schedule = [
        part_of("bubble", HEADLESS, heavy, **plan, schedule=schedule)
        for schedule in ("zbv", "zero_bubble", "interleaved")
    ]
    assert 0 < by_schedule[0] < by_schedule[1] < by_schedule[2]


def made_span(stages: int, micro_batches: int) -> int:
    """The end of the last stage, in units of F = B = W. Each takes what can start first; of those B, then F, then W."""
    free, done = [0] * stages, [{"F": [], "B": [], "W": []} for _ in range(stages)]
    while any(len(one["W"]) < micro_batches for one in done):
        able = []
        for stage, one in enumerate(done):
            forward, backward, weights = (len(one[kind]) for kind in "FBW")
            ends = one["F"] if stage == stages - 1 else done[stage + 1]["B"]
            if backward < min(forward, len(ends)):
                able.append((max(free[stage], ends[backward]), "BFW".index("B"), stage))
            starts = [0] * micro_batches if stage == 0 else done[stage - 1]["F"]
            if forward < len(starts) and forward - backward < stages - stage:
                able.append((max(free[stage], starts[forward]), "BFW".index("F"), stage))
            if weights < backward:
                able.append((free[stage], "BFW".index("W"), stage))
        start, kind, stage = min(able)
        free[stage] = start + 1
        done[stage]["BFW"[kind]].append(free[stage])
    return max(free)


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 6, 8])
def test_few_micro_batches_have_few_gradients_of_weights_to_fill_the_bubble_with(micro_batches):
    plan = {"pp": 4, "grad_accum_steps": micro_batches, "schedule": "zero_bubble"}
    unit = part_of("compute", HEADLESS, **plan) / (3 * micro_batches)
    span = made_span(4, micro_batches)
    assert part_of("bubble", HEADLESS, **plan) == pytest.approx((span - 3 * micro_batches) * unit, rel=1e-4)


def test_stages_send_activations_and_gradients_cut_over_tensor_ranks():
    constants = replace(LINKS, send_overhead_s=1e-3)
    size = 2 * LLAMA.seq_len * LLAMA.hidden * 2 / 2
    one = 10e-6 + size / 10e9 + 1e-3
    plan = {"tp": 2, "pp": 4, "dp": 8, "micro_batch_size": 2, "grad_accum_steps": 8}
    assert part_of("send_receive", LLAMA, constants, **plan) == pytest.approx(2 * (8 + 3) * one, rel=2e-6)
    assert part_of("send_receive", LLAMA, constants, dp=64) == 0
    beside, shown = replace(PLAIN, overlaps_sends=True), replace(constants, exposed_reduction=0.25)
    chunked = plan | {"vpp": 2, "schedule": "interleaved"}
    times = [part_of("send_receive", LLAMA, shown, code, **chunked) for code in (PLAIN, beside)]
    assert times == pytest.approx([2 * (16 + 3) * one, 2 * (16 + 3) * one / 4], rel=2e-6)
    assert part_of("send_receive", LLAMA, shown, beside, **plan) == pytest.approx(2 * (8 + 3) * one, rel=2e-6)


# Collectives in the layers


def test_tensor_parallelism_reduces_four_times_a_layer_and_sequence_parallelism_gathers_twice_more():
    size = LLAMA.seq_len * LLAMA.hidden * 2
    gather = float(NETWORK.gather_s(size, 8, 1))
    plan = {"tp": 8, "grad_accum_steps": 3}
    alone, split, again = (
        part_of("tp", LLAMA, LINKS, **plan, **more)
        for more in ({"sequence_parallel": False}, {}, {"sequence_parallel": False, "recompute": "full"})
    )
    assert alone == pytest.approx(3 * 16 * 4 * 2 * gather)
    assert split == pytest.approx(3 * 16 * (4 * 2 + 2) * gather)
    assert again == pytest.approx(3 * 16 * 6 * 2 * gather)
    assert part_of("tp", LLAMA, LINKS, dp=8) == 0


def test_context_parallelism_by_kind():
    kv = 2 * LLAMA.seq_len * LLAMA.kv_width * 2
    gather = float(NETWORK.gather_s(kv, 8, 1))
    exchange = float(NETWORK.all_to_all_s(LLAMA.seq_len / 8 * 2 * (LLAMA.hidden + LLAMA.kv_width) * 2, 8, 1))
    by_kind = {kind: part_of("cp", LLAMA, LINKS, cp=8, context=kind) for kind in ContextParallel}
    assert by_kind[ContextParallel.ALL_GATHER] == pytest.approx(16 * 3 * gather)
    assert by_kind[ContextParallel.ULYSSES] == pytest.approx(16 * 2 * exchange)
    assert by_kind[ContextParallel.RING] == pytest.approx(by_kind[ContextParallel.ALL_GATHER])
    assert part_of("cp", LLAMA, LINKS, dp=8, context="ring") == 0


def test_a_ring_hides_what_it_can_behind_attention():
    attention = 1e9 * 3.5 * 2 * LLAMA.seq_len**2 / 8 * LLAMA.hidden / 2e14
    slow = replace(LINKS, attention_efficiency=1e-9, exposed_reduction=0.25)
    gather, ring = (part_of("cp", LLAMA, slow, cp=8, context=kind) for kind in ("all_gather", "ring"))
    assert gather / 16 < attention
    assert ring == pytest.approx(gather / 4)


def test_experts_exchange_tokens_only_where_they_are_spread():
    size = LLAMA.seq_len * 2 * LLAMA.hidden * 2
    one = float(NETWORK.all_to_all_s(size, 8, 1))
    assert part_of("ep", MIXTURE, LINKS, dp=8) == 0
    assert part_of("ep", MIXTURE, LINKS, dp=8, ep=8, grad_accum_steps=2) == pytest.approx(2 * 16 * 4 * one)
    assert part_of("ep", MIXTURE, LINKS, dp=8, ep=8, recompute="full") == pytest.approx(16 * 6 * one)
    assert part_of("ep", LLAMA, LINKS, dp=8) == 0


# Replicas


# Layers, embedding and head, the last norm.
DENSE = 16 * LAYER + 2 * LLAMA.vocab * LLAMA.hidden + LLAMA.hidden


def test_replicas_reduce_gradients_once_a_step():
    expected = float(NETWORK.all_reduce_s(DENSE * 4, 8, 1))
    for accumulated in (1, 8):
        assert part_of("dp", LLAMA, LINKS, dp=8, grad_accum_steps=accumulated) == pytest.approx(expected)
    assert part_of("dp", LLAMA, LINKS, tp=8) == 0


def test_sharding_that_knows_no_experts_reduces_among_their_ranks_and_scatters_over_the_rest():
    unaware = replace(PLAIN, shards_over_experts=False)
    plan = {"dp": 64, "ep": 8, "zero_stage": 1}
    experts = 16 * 8 * MIXTURE.feed_forward_parameters / 8
    dense = MIXTURE.parameters - 16 * 8 * MIXTURE.feed_forward_parameters - 32 * MIXTURE.hidden  # norms of layers
    shared = float(NETWORK.gather_s(dense * 4, 64, 1) + NETWORK.gather_s(dense * 2, 64, 1))
    groups = float(NETWORK.gather_s(dense * 4, 8, 8) + NETWORK.gather_s(dense * 2, 8, 8))
    among = float(NETWORK.all_reduce_s(dense * 4, 8, 1))
    own = float(NETWORK.gather_s(experts * 4, 8, 8) + NETWORK.gather_s(experts * 2, 8, 8))
    assert part_of("dp", MIXTURE, LINKS, **plan) == pytest.approx(shared + own, rel=1e-3)
    assert part_of("dp", MIXTURE, LINKS, unaware, **plan) == pytest.approx(among + groups + own, rel=1e-3)
    once = {"dp": 64, "ep": 8, "zero_stage": 0}
    assert part_of("dp", MIXTURE, LINKS, unaware, **once) == part_of("dp", MIXTURE, LINKS, **once)


def test_zero_1_scatters_gradients_and_gathers_weights():
    expected = float(NETWORK.gather_s(DENSE * 4, 8, 1) + NETWORK.gather_s(DENSE * 2, 8, 1))
    assert part_of("dp", LLAMA, LINKS, dp=8, zero_stage=1) == pytest.approx(expected)
    assert part_of("dp", LLAMA, LINKS, dp=2, cp=4, zero_stage=1) == pytest.approx(expected)


def test_zero_2_scatters_every_micro_batchs_gradients_where_there_is_no_pipeline():
    scatter, gather = (float(NETWORK.gather_s(DENSE * width, 8, 1)) for width in (4, 2))
    assert part_of("dp", LLAMA, LINKS, dp=8, zero_stage=2, grad_accum_steps=3) == pytest.approx(3 * scatter + gather)
    once = replace(PLAIN, reduces_every_micro_batch=False)
    assert part_of("dp", LLAMA, LINKS, once, dp=8, zero_stage=2, grad_accum_steps=3) == pytest.approx(scatter + gather)
    in_pipeline = {"pp": 4, "dp": 8, "grad_accum_steps": 8}
    assert part_of("dp", LLAMA, LINKS, **in_pipeline, zero_stage=2) == part_of(
        "dp", LLAMA, LINKS, **in_pipeline, zero_stage=1
    )


def in_units(transfer: str, size: float, count: int, *group: int) -> float:
    """Seconds of one of `count` units."""
    return float(getattr(NETWORK, transfer)(size / count, *group))


def test_zero_3_gathers_every_layer_in_every_pass_of_every_micro_batch():
    scatter, gather = (in_units("gather_s", DENSE * width, 17, 8, 1) for width in (4, 2))
    one = part_of("dp", LLAMA, LINKS, dp=8, zero_stage=3)
    # A share of what runs beside computing is shown; here that is all but the forward pass's first gather, and in the
    # backward pass one gather and one scatter.
    hiding = replace(LINKS, exposed_reduction=1e-30, matmul_efficiency=1e-2)
    slowed = replace(hiding, exposed_reduction=0.25)
    assert part_of("dp", LLAMA, slowed, dp=8, zero_stage=3) == pytest.approx(
        2 * gather + scatter + 0.25 * 16 * (2 * gather + scatter)
    )
    assert part_of("dp", LLAMA, LINKS, dp=8, zero_stage=3, grad_accum_steps=5) == pytest.approx(5 * one)
    assert part_of("dp", LLAMA, hiding, dp=8, zero_stage=3) == pytest.approx(2 * gather + scatter)


def left_to_wait(paces: list[float], ready: list[float], after: list[float]) -> float:
    """Seconds from the end of computing to the end of the last unit: a stream of collectives, event by event. after:
    of a second stream, which takes a unit as soon as the first has done with it."""
    first = second = 0.0
    for pace, at, further in zip(paces, ready, after, strict=True):
        first = max(first, at) + pace
        second = max(second, first) + further
    return max(first, second) - ready[-1]


@given(
    count=st.integers(1, 40),
    compute=st.floats(0.1, 10),
    node=st.floats(0.05, 20),
    share=st.sampled_from([1e-30, 0.3]),
    groups=st.sampled_from([1, 2]),
)
def test_what_a_backward_pass_leaves_to_wait_for_is_what_its_events_say(count, compute, node, share, groups):
    """Units of equal size: the closed form against a simulation of both streams."""
    constants = replace(
        LINKS, matmul_efficiency=compute, node_efficiency=node, network_efficiency=node, exposed_reduction=share
    )
    code = replace(OVERLAPPED, bucket_weights=DENSE / count * (1 + 1e-9))
    plan = {"dp": 8 * groups, "zero_stage": 1, "zero_group": 8 if groups > 1 else 0}
    links = Network(CLUSTER, constants)
    scatter, gather = (float(links.gather_s(DENSE * width / count, 8, 1)) for width in (4, 2))
    across = float(links.all_reduce_s(DENSE * 4 / 8 / count, groups, 8))
    backward = part_of("compute", LLAMA, constants, code, **plan) * 2 / 3
    ready = [backward * (unit + 1) / count for unit in range(count)]
    waited = left_to_wait([scatter] * count, ready, [across] * count)
    beside = (count - 1) * max(scatter, across) + scatter + across - waited
    expected = waited + share * beside + count * gather
    assert part_of("dp", LLAMA, constants, code, **plan) == pytest.approx(expected, rel=1e-6)


def test_groups_scatter_among_themselves_and_sum_their_shards_over_the_others():
    scatter, gather = (float(NETWORK.gather_s(DENSE * width, 8, 1)) for width in (4, 2))
    across = float(NETWORK.all_reduce_s(DENSE * 4 / 8, 8, 8))
    plan = {"dp": 64, "zero_stage": 1, "zero_group": 8}
    assert part_of("dp", LLAMA, LINKS, **plan) == pytest.approx(scatter + across + gather)
    state = part_of("optimizer", LLAMA, replace(PRODUCTS, memory_efficiency=1.0), **plan)
    assert state == pytest.approx(DENSE / 8 * (2 * 12 + 2 * 2 + 4) / MEMORY)


def test_a_step_costs_more_the_more_ranks_broadcast_their_part_of_the_weights():
    """As measured of a 7B on 8 to 1,024 A100 with ZeRO 1 over all ranks: 4.03 to 7.21 s, 4.52 s in groups of 8."""
    model = ModelSpec(name="7b", layers=32, hidden=4096, heads=32, ffn=11008, vocab=103168, seq_len=2048)
    steps = {}
    for nodes, group in ((1, 0), (128, 0), (128, 8)):
        plan = {"dp": 8 * nodes, "zero_stage": 1, "zero_group": group, "micro_batch_size": 2, "grad_accum_steps": 4}
        parts = parts_of(model, DEFAULTS, FRAMEWORKS["internevo"], cluster_of("a100-400g", nodes), **plan)
        steps[nodes, group] = sum(parts.values())
    assert steps == pytest.approx({(1, 0): 4.03, (128, 0): 7.21, (128, 8): 4.52}, rel=0.15)


def test_the_slowest_of_more_replicas_lies_further_from_their_mean():
    scattered = replace(PRODUCTS, straggling=0.01)
    computing = part_of("compute", grad_accum_steps=2)
    assert part_of("dp", LLAMA, scattered, tp=8, grad_accum_steps=2) == 0
    waits = [
        part_of("dp", LLAMA, scattered, dp=dp, grad_accum_steps=2) - part_of("dp", dp=dp, grad_accum_steps=2)
        for dp in (2, 64)
    ]
    assert waits == pytest.approx([0.01 * computing * sqrt(2 * log(dp)) for dp in (2, 64)])


def test_overlapped_exchanges_of_experts_show_a_share():
    constants = replace(LINKS, exposed_reduction=0.25)
    whole = part_of("ep", MIXTURE, constants, dp=8, ep=8)
    beside = replace(PLAIN, overlaps_experts=True)
    assert part_of("ep", MIXTURE, constants, beside, dp=8, ep=8) == pytest.approx(whole / 4)


@pytest.mark.parametrize("dtype", ["float8", "float4"])
def test_products_in_fewer_bits_leave_attention_and_the_head_in_16(dtype):
    rates = {"peak_flops": {**DEVICE.peak_flops, dtype: 4e14}}
    rates["sustained_flops"] = {**DEVICE.sustained_flops, dtype: 3e14}
    fast = replace(CLUSTER, device=replace(DEVICE, **rates))
    constants = replace(PRODUCTS, attention_efficiency=0.5)
    eight = replace(PLAIN, product_dtype=dtype)
    wide, narrow = (step_of(LLAMA, constants, profile, fast) for profile in (PLAIN, eight))
    assert wide == step_of(LLAMA, constants, eight)  # a device without such a rate
    layers = 16 * 6 * LAYER * LLAMA.seq_len
    assert wide - narrow == pytest.approx(layers / RATE - layers / 3e14)


def in_fewer_bits(dtype: str) -> tuple[FrameworkProfile, ClusterSpec]:
    device = replace(DEVICE, peak_flops={**DEVICE.peak_flops, dtype: 4e14})
    return replace(PLAIN, product_dtype=dtype), replace(CLUSTER, device=device)


@pytest.mark.parametrize(("dtype", "written"), [("float8", 1), ("float4", 0.5)])
@pytest.mark.parametrize("tp", [1, 8])
def test_products_in_fewer_bits_read_what_was_cast_for_them(dtype, written, tp):
    """What a product reads, and the gradient of what it returns: read in 16 bits, written by rows and by columns."""
    constants = replace(PRODUCTS, matmul_efficiency=1e30, memory_efficiency=1.0)
    code, cluster = in_fewer_bits(dtype)
    read = LLAMA.hidden + LLAMA.answer_width + LLAMA.hidden + LLAMA.ffn
    returned = LLAMA.query_width + LLAMA.kv_width + LLAMA.value_width + LLAMA.hidden + 2 * LLAMA.ffn + LLAMA.hidden
    cast = 16 * LLAMA.seq_len * (read + returned) * (2 + 2 * written) / MEMORY
    plain, fewer = (part_of("compute", LLAMA, constants, one, cluster, tp=tp) for one in (PLAIN, code))
    assert fewer - plain == pytest.approx(cast / tp)


def test_sequence_parallelism_gathers_what_was_cast_and_scatters_16_bits():
    code, cluster = in_fewer_bits("float8")
    size = LLAMA.seq_len * LLAMA.hidden
    whole, half = (float(NETWORK.gather_s(size * width, 8, 1)) for width in (2, 1))
    assert part_of("tp", LLAMA, LINKS, code, cluster, tp=8) == pytest.approx(16 * 2 * (2 * whole + 3 * half))
    summed = part_of("tp", LLAMA, LINKS, code, cluster, tp=8, sequence_parallel=False)
    assert summed == part_of("tp", LLAMA, LINKS, PLAIN, cluster, tp=8, sequence_parallel=False)


def test_tf32_is_a_code_that_a_spec_can_name():
    plain, faster = (FRAMEWORKS[f"megatron-core-{kind}"] for kind in ("float32", "tf32"))
    a100 = replace(A100.device, sustained_flops={})
    model = replace(HEADLESS, seq_len=512)
    cluster = replace(CLUSTER, device=a100)
    unfused = replace(plain, fused_attention=False)
    ratio = part_of("compute", model, PRODUCTS, unfused, cluster) / part_of("compute", model, PRODUCTS, faster, cluster)
    assert ratio == pytest.approx(156 / 19.5)


def test_slices_cost_the_host_time_for_each_parameter_and_replica_under_zero_1():
    cut = replace(PLAIN, slice_s=1e-5)
    launched = replace(LINKS, launch_factor=1.0)
    assert len({part_of("dp", LLAMA, launched, code, dp=8) for code in (PLAIN, cut)}) == 1
    plain, sliced = (part_of("dp", LLAMA, launched, code, dp=8, zero_stage=1) for code in (PLAIN, cut))
    assert sliced - plain == pytest.approx((6 * 16 + 3) * 8 * 1e-5)


def test_whole_gradients_of_zero_1_are_summed_after_the_backward_pass():
    late = replace(OVERLAPPED, late_whole_gradients=True)
    reduced, gathered = float(NETWORK.all_reduce_s(DENSE * 4, 8, 1)), 17 * in_units("gather_s", DENSE * 2, 17, 8, 1)
    assert part_of("dp", LLAMA, LINKS, late, dp=8, zero_stage=1) == pytest.approx(reduced + gathered)
    assert part_of("dp", LLAMA, LINKS, late, dp=8) == part_of("dp", LLAMA, LINKS, OVERLAPPED, dp=8) < reduced


def test_an_optimizer_on_the_host_takes_no_device_memory_and_moves_what_it_steps():
    offloaded = replace(PLAIN, host_optimizer=True)
    training = Training(LLAMA, CLUSTER, offloaded)
    columns = columns_of([Plan(dp=8, zero_stage=1)])
    assert float(memory_parts(training, columns, DEFAULTS)[MemoryPart.OPTIMIZER][0]) == 0
    own = DENSE / 8
    moved = own * (4 + 2) / 25e9 + own * (2 * 12 + 2 * 2 + 4) * 8 / 3e11
    assert part_of("optimizer", LLAMA, PRODUCTS, offloaded, dp=8, zero_stage=1) == pytest.approx(moved)


def test_layers_without_experts_exchange_nothing():
    """Every second layer a mixture, as of Llama 4 Maverick; with copies that cross the network once a node as well."""
    half = replace(MIXTURE, moe_every=2)
    for code in (PLAIN, replace(PLAIN, dispatches_by_node=True)):
        every, second = (part_of("ep", model, LINKS, code, dp=64, ep=8) for model in (MIXTURE, half))
        assert 0 < second == pytest.approx(every / 2)


def test_overlapped_collectives_hide_behind_the_work_beside_them_and_no_more():
    slow = replace(LINKS, node_efficiency=1e-4, network_efficiency=1e-4, exposed_reduction=0.25)
    computing = part_of("compute")
    code = replace(PLAIN, overlaps_tensor=True, overlaps_sends=True)
    alone, beside = (part_of("tp", LLAMA, slow, one, tp=8) for one in (PLAIN, code))
    assert 0 < alone - beside < computing
    pipeline = {"pp": 4, "dp": 8, "vpp": 2, "schedule": "interleaved", "grad_accum_steps": 8}
    alone, beside = (part_of("send_receive", LLAMA, slow, one, **pipeline) for one in (PLAIN, code))
    assert 0 < alone - beside < 2 * part_of("compute", LLAMA, slow, **pipeline)
    exchanging = replace(PLAIN, overlaps_experts=True)
    alone, beside = (part_of("ep", MIXTURE, slow, one, dp=64, ep=8) for one in (PLAIN, exchanging))
    assert 0 < alone - beside < part_of("compute", MIXTURE, slow, dp=64, ep=8)


def test_tensor_collectives_that_overlap_forward_too_show_a_share_of_them_all():
    fast = replace(LINKS, node_efficiency=100.0, exposed_reduction=0.25, network_latency_factor=1e-30)
    code = replace(PLAIN, overlaps_tensor=True, overlaps_tensor_forward=True)
    plan = {"tp": 8, "micro_batch_size": 8, "recompute": "full"}
    alone, beside = (part_of("tp", LLAMA, fast, one, **plan) for one in (PLAIN, code))
    assert beside == pytest.approx(alone / 4)
    summed = {**plan, "sequence_parallel": False}
    backward = replace(code, overlaps_tensor_forward=False)
    assert len({part_of("tp", LLAMA, fast, one, **summed) for one in (code, backward)}) == 1
    slow = replace(fast, node_efficiency=1e-4)
    alone, beside = (part_of("tp", LLAMA, slow, one, tp=8) for one in (PLAIN, code))
    assert 0 < alone - beside < part_of("compute", LLAMA, slow, tp=8)


def test_experts_with_degrees_of_their_own():
    """Of 8 ranks: tp 2, and experts whole on each, four apart, two replicas of each part."""
    plan = {"tp": 2, "dp": 4, "ep": 4, "etp": 1}
    tokens, width = MIXTURE.seq_len, 2 * MIXTURE.hidden
    exchange = float(NETWORK.all_to_all_s(tokens / 2 * 2 * width, 4, 1))
    assert part_of("ep", MIXTURE, LINKS, **plan) == pytest.approx(16 * 4 * exchange)
    experts = 16 * 8 / 4 * MIXTURE.feed_forward_parameters
    ends = MIXTURE.vocab * MIXTURE.hidden + MIXTURE.hidden
    attention = 16 * (MIXTURE.attention_parameters / 2 + MIXTURE.hidden * 8) + ends
    reduced = NETWORK.all_reduce_s(attention * 4, 4, 2) + NETWORK.all_reduce_s(experts * 4, 2, 4)
    assert part_of("dp", MIXTURE, LINKS, **plan) == pytest.approx(float(reduced))
    # Attention is gathered over tp, and no copy of a token.
    gather = float(NETWORK.gather_s(tokens * width, 2, 1))
    assert part_of("tp", MIXTURE, LINKS, **plan) == pytest.approx(16 * 5 * gather)
    copies = float(NETWORK.gather_s(2 * tokens * width, 2, 1))
    cut = part_of("tp", MIXTURE, LINKS, tp=2, dp=4, ep=4)
    assert cut == pytest.approx(16 * (5 * gather + 4 * copies))


def test_experts_are_reduced_over_their_own_replicas():
    attention = 16 * (MIXTURE.attention_parameters + MIXTURE.hidden * 8) + (2 * MIXTURE.vocab + 1) * MIXTURE.hidden
    experts = 16 * 8 * MIXTURE.feed_forward_parameters
    dense = float(NETWORK.all_reduce_s(attention * 4, 8, 1))
    assert part_of("dp", MIXTURE, LINKS, dp=8, ep=8) == pytest.approx(dense)
    spread = float(NETWORK.all_reduce_s(experts / 4 * 4, 2, 4))
    assert part_of("dp", MIXTURE, LINKS, dp=8, ep=4) == pytest.approx(dense + spread)
    # One replica of an expert a node: all of them meet over the network.
    wide = float(NETWORK.all_reduce_s(attention * 4, 64, 1) + NETWORK.all_reduce_s(experts / 8 * 4, 8, 8))
    assert part_of("dp", MIXTURE, LINKS, dp=64, ep=8) == pytest.approx(wide)


# The optimizer


def test_the_optimizer_reads_and_writes_what_zero_leaves_a_rank():
    constants = replace(PRODUCTS, memory_efficiency=1.0, step_overhead_s=0.01)
    whole = DENSE * (2 * 12 + 2 * 2 + 4) / MEMORY
    assert part_of("optimizer", LLAMA, constants, dp=8) == pytest.approx(0.01 + whole)
    for stage in (1, 2, 3):
        assert part_of("optimizer", LLAMA, constants, dp=4, cp=2, zero_stage=stage) == pytest.approx(0.01 + whole / 8)
    # The last norm is whole on every tensor rank.
    own = whole * ((DENSE - LLAMA.hidden) / 8 + LLAMA.hidden) / DENSE
    assert part_of("optimizer", LLAMA, constants, tp=8) == pytest.approx(0.01 + own)


# Anything that a Space may hold: what only costs is never rewarded.


def cluster_of(name: str, nodes: int) -> ClusterSpec:
    preset = described(cluster_presets()[name])
    links = {key: LinkSpec(**value) for key, value in preset.items() if key.endswith("_link")}
    return ClusterSpec(**preset | links | {"nodes": nodes, "device": read_value(DeviceSpec, preset["device"])})


FRONTIER = cluster_of("frontier", 384)
A100 = cluster_of("dgx-a100", 16)


plans = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 8]),
        "pp": st.sampled_from([1, 2, 4, 16]),
        "dp": st.sampled_from([1, 2, 8]),
        "cp": st.sampled_from([1, 2]),
        "ep": st.sampled_from([1, 2, 8]),
        "vpp": st.sampled_from([1, 2, 4]),
        "micro_batch_size": st.integers(1, 16),
        "grad_accum_steps": st.integers(1, 64),
        "zero_stage": st.integers(0, 3),
        "recompute": st.sampled_from(list(Recompute)),
        "schedule": st.sampled_from(list(Schedule)),
        "sequence_parallel": st.booleans(),
        "recompute_interval": st.integers(1, 4),
        "context": st.sampled_from(list(ContextParallel)),
    }
).map(lambda plan: plan | {"ep": min(plan["ep"], plan["dp"])})
cases = st.tuples(
    st.sampled_from([LLAMA, MIXTURE, replace(LLAMA, layers=61, vocab=1)]),
    st.sampled_from([TRAINER_BFLOAT16, MEGATRON_DEEPSPEED, NANOTRON, FSDP]),
    st.sampled_from([A100, replace(A100, nodes_per_rack=2), FRONTIER]),
)


@settings(max_examples=150, deadline=None)
@given(cases, plans)
def test_what_a_step_can_only_lose_by(case, plan):
    model, framework, cluster = case

    def step_s(cluster: ClusterSpec = cluster, **changes: object) -> float:
        return step_of(model, DEFAULTS, framework, cluster, **plan | changes)

    here = step_s()
    longer = here * (1 - 1e-12)
    # Uncompiled, the host has more work with selective recomputation than with full.
    assert step_s(recompute="full") >= step_s(recompute="none") * (1 - 1e-12)
    assert step_s(grad_accum_steps=65) >= longer
    # Where launching decides, longer products cost nothing, and split backward passes fill a bubble the better.
    if not Schedule(plan["schedule"]).splits_backward:
        assert step_s(micro_batch_size=32) >= longer
        slower = replace(cluster, device=replace(cluster.device, sustained_flops={"float16": 5e13, "bfloat16": 5e13}))
        assert step_s(slower) >= longer
    distant = replace(cluster, network_link=LinkSpec(latency_s=1e-4, bandwidth_bytes_per_s=1e9))
    assert step_s(distant) >= longer
