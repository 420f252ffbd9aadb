"""Memory that people reported of real runs, beside what is predicted; settings and outcomes are facts of threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.activations import layer_bytes
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.estimate import estimate_memory
from meshtune.search_spaces.physics.framework_profiles import (
    DEEPSPEED,
    FRAMEWORKS,
    FSDP,
    FSDP_PURE_BF16,
    MEGATRON_CORE,
    MEGATRON_DEEPSPEED,
    TORCHTITAN,
    TORCHTITAN_COMPILED,
    TRAINER_BFLOAT16,
    FrameworkProfile,
    Reports,
)
from meshtune.search_spaces.physics.memory import (
    MemoryPart,
    loaded_bytes,
    memory_parts,
    offloaded_bytes,
)
from meshtune.search_spaces.physics.training import COMMUNICATOR_BYTES, Training, usable_bytes
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.presets import cluster_presets, described, model_presets
from meshtune.search_spaces.routing import Routing

GIB = 2**30
CUDA = DeviceKind.CUDA
# torchtitan pull 97's; of meshtune's presets none has its shapes.
SEVEN = ModelSpec(name="7B", layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000, seq_len=2048)
ALLOCATED = replace(TORCHTITAN, reports=Reports.ALLOCATED)
OFFLOADING = replace(DEEPSPEED, host_optimizer=True)


def preset(name: str, seq_len: int) -> ModelSpec:
    return replace(TypeAdapter(ModelSpec).validate_python(described(model_presets()[name])), seq_len=seq_len)


def cluster(name: str, nodes: int = 1) -> ClusterSpec:
    return replace(TypeAdapter(ClusterSpec).validate_python(described(cluster_presets()[name])), nodes=nodes)


def parts(model: ModelSpec, where: ClusterSpec, framework: FrameworkProfile, **plan: Any) -> dict[MemoryPart, float]:
    found = memory_parts(Training(model, where, framework), columns_of([Plan(**plan)]), DEFAULTS)
    return {part: float(value[0]) / GIB for part, value in found.items()}


def gib(model: ModelSpec, where: ClusterSpec, framework: FrameworkProfile, **plan: Any) -> float:
    return sum(parts(model, where, framework, **plan).values())


@pytest.mark.parametrize(
    ("framework", "nodes", "plan", "reported", "within"),
    [
        # The device is nearly full, and the allocator's share of that is not predicted.
        (TORCHTITAN_COMPILED, 1, {"dp": 8, "micro_batch_size": 2}, 81.85, 0.08),
        (TORCHTITAN, 4, {"tp": 8, "dp": 4, "micro_batch_size": 16}, 43.45, 0.03),
        (TORCHTITAN, 4, {"tp": 8, "dp": 4, "micro_batch_size": 32}, 70.79, 0.03),
        (TORCHTITAN, 8, {"tp": 8, "dp": 8, "micro_batch_size": 32}, 63.27, 0.03),
    ],
    ids=["compiled", "16 a rank", "32 a rank", "32 a rank of 64"],
)
def test_a_32b_model_of_torchtitan_takes_what_its_log_says(framework, nodes, plan, reported, within):
    # pytorch/torchtitan pull 1690: devices of 95 GiB, 86.17 % of them being 81.85.
    model = preset("qwen3-32b", 4096)
    there = gib(model, cluster("dgx-h100", nodes), framework, zero_stage=3, recompute="full", **plan)
    assert there == pytest.approx(reported, rel=within)


@pytest.mark.parametrize(
    ("framework", "seq_len", "devices", "plan", "reported"),
    [
        (TORCHTITAN, 8192, 8, {"dp": 8, "micro_batch_size": 2, "recompute": "selective"}, 82.4),
        (TORCHTITAN, 8192, 128, {"dp": 128, "micro_batch_size": 2, "recompute": "selective"}, 67.0),
        (TORCHTITAN, 32768, 8, {"dp": 8, "recompute": "full"}, 83.9),
        (TORCHTITAN, 262144, 8, {"cp": 8, "recompute": "full"}, 84.5),
        (TORCHTITAN_COMPILED, 8192, 32, {"dp": 32, "micro_batch_size": 2, "recompute": "selective"}, 47.96),
        (TORCHTITAN_COMPILED, 8192, 64, {"dp": 64, "micro_batch_size": 2, "recompute": "selective"}, 46.97),
    ],
    ids=["8", "128", "32k tokens", "256k tokens over cp", "compiled on 32", "compiled on 64"],
)
def test_an_8b_model_takes_what_torchtitan_s_benchmarks_say(framework, seq_len, devices, plan, reported):
    # Its benchmarks/llama3_h100_202412_torchtitan.md, where no loss was compiled (train.py: "turning off for now"), and
    # llama3-8b_h200_202506_trainy-whitefiber.md, where it was.
    where = cluster("dgx-h100", devices // 8)
    there = gib(preset("llama3-8b", seq_len), where, framework, zero_stage=3, **plan)
    assert there == pytest.approx(reported, rel=0.06)


@pytest.mark.parametrize(
    ("plan", "reported"),
    [
        ({"dp": 8, "micro_batch_size": 2, "grad_accum_steps": 128}, 69.1),
        ({"tp": 2, "dp": 4, "micro_batch_size": 4, "grad_accum_steps": 64}, 55.7),
        ({"pp": 2, "dp": 4, "micro_batch_size": 2, "grad_accum_steps": 256}, 49.8),
        ({"tp": 8, "micro_batch_size": 4, "grad_accum_steps": 32}, 28.8),
    ],
)
def test_a_7b_model_allocates_what_was_measured_of_megatron_in_2023(plan, reported):
    # NVIDIA/Megatron-LM pull 482: dropout, SwiGLU not fused yet, positions learnt, no sequence parallelism.
    model = replace(SEVEN, norm="layernorm", position="learned")
    code = MEGATRON_CORE["bfloat16"]
    code = replace(code, kept=replace(code.kept, swiglu_values=4, dropout=True))
    there = gib(model, cluster("dgx-a100"), code, zero_stage=1, sequence_parallel=False, **plan)
    assert there == pytest.approx(reported, rel=0.03)


@pytest.mark.parametrize(
    ("code", "plan", "reported"),
    [
        (DEEPSPEED, {"micro_batch_size": 2, "grad_accum_steps": 4, "recompute": "full"}, 20.4),
        (DEEPSPEED, {"micro_batch_size": 8, "recompute": "full"}, 39.1),
        (DEEPSPEED, {"micro_batch_size": 2, "grad_accum_steps": 4}, 75.7),
        (OFFLOADING, {"micro_batch_size": 2, "grad_accum_steps": 4, "recompute": "full"}, 9.4),
        (OFFLOADING, {"zero_stage": 2, "grad_accum_steps": 8, "recompute": "full"}, 16.9),
    ],
    ids=["two sequences", "eight", "all kept", "offloaded", "offloaded, ZeRO 2"],
)
def test_deepspeed_allocates_what_a_gist_says(code, plan, reported):
    # chenyaofo's "Benchmark of LLaMA-7B models": sequences of 4,096 on 8 A800. Of its rows those whose states are
    # AdamW's; reduce_bucket_size is not told, so transformers' "auto".
    code = replace(code, bucket_weights=SEVEN.hidden**2)
    there = gib(replace(SEVEN, seq_len=4096), cluster("dgx-a100"), code, **{"dp": 8, "zero_stage": 3} | plan)
    assert there == pytest.approx(reported, rel=0.15)


def test_the_masters_gradient_is_there_while_the_optimizer_steps_and_not_at_the_loss():
    model, plan = preset("llama3-8b", 4096), {"dp": 8, "zero_stage": 3, "recompute": "full"}
    later, always = DEEPSPEED, replace(DEEPSPEED, optimizer_bytes=16, step_bytes=0)
    shard = 4 * model.parameters / 8 / GIB
    # Many logits: the loss is the fullest moment. None: the step is.
    at_loss, counted = (gib(model, cluster("dgx-h100"), one, micro_batch_size=4, **plan) for one in (later, always))
    assert counted - at_loss == pytest.approx(shard, rel=0.01)
    stepping = parts(replace(model, seq_len=16), cluster("dgx-h100"), replace(later, live_weights=0), **plan)
    assert stepping[MemoryPart.GATHERED] == pytest.approx(shard, rel=0.01)


def test_norms_in_python_s_steps_keep_a_float32_copy_on_accelerators_and_torch_s_do_not():
    one, other = (
        layer_bytes(SEVEN, replace(DEEPSPEED, kept=replace(DEEPSPEED.kept, norm_bytes=norm)), columns_of([Plan()]))
        for norm in (4, 0)
    )
    assert one[0].kept - other[0].kept == 2 * 4 * SEVEN.seq_len * SEVEN.hidden
    alone = replace(DEEPSPEED, bucket_weights=0, live_weights=0)
    plain = replace(alone, kept=replace(alone.kept, norm_bytes=0))
    plan = {"dp": 8, "zero_stage": 3}
    more, less = (parts(SEVEN, cluster("dgx-a100"), code, **plan)[MemoryPart.ACTIVATIONS] for code in (alone, plain))
    assert more > less
    cpus, gpus = (replace(TRAINER_BFLOAT16, kept=replace(TRAINER_BFLOAT16.kept, norm_bytes=norm)) for norm in (6, 0))
    assert gib(SEVEN, cluster("dgx-a100"), cpus, **plan) == gib(SEVEN, cluster("dgx-a100"), gpus, **plan)


@pytest.mark.parametrize(("micro_batches", "chunks"), [(4, 1), (8, 4)])
def test_a_chunk_whose_backward_passes_come_in_a_row_is_reduced_before_the_next(micro_batches, chunks):
    # With as many micro-batches as stages. By the exact estimate whole gradients are 0.2 GiB too much on two stages.
    model, where = preset("llama3-70b", 4096), cluster("dgx-h100", 8)
    plan = {"tp": 4, "pp": 4, "vpp": 4, "dp": 4, "schedule": "interleaved", "grad_accum_steps": micro_batches}
    whole, found = (
        parts(model, where, MEGATRON_CORE["bfloat16"], zero_stage=stage, **plan)[MemoryPart.GRADIENTS]
        for stage in (1, 2)
    )
    assert found == pytest.approx(whole * (chunks / 4 + 1 / 4), rel=0.02)


def test_64_sequences_of_a_rank_run_out_of_memory_as_reported():
    plan = {"tp": 8, "dp": 4, "micro_batch_size": 64, "zero_stage": 3, "recompute": "full"}
    assert gib(preset("qwen3-32b", 4096), cluster("dgx-h100", 4), TORCHTITAN, **plan) > 95


@pytest.mark.parametrize(("recompute", "percent"), [("selective", 62.0), ("full", 28.12)])
def test_torchtitan_allocates_what_its_selective_policy_keeps(recompute, percent):
    # pytorch/torchtitan pull 97: "Alloc", of 80 GB.
    plan = {"dp": 8, "micro_batch_size": 8, "zero_stage": 3, "recompute": recompute}
    assert gib(SEVEN, cluster("dgx-a100"), ALLOCATED, **plan) == pytest.approx(percent / 100 * 80, rel=0.04)


def test_gradients_that_a_step_frees_are_no_tensors_at_the_loss_but_their_room_stays():
    plan = {"dp": 8, "micro_batch_size": 8, "zero_stage": 3, "recompute": "full"}
    shard = 4 * SEVEN.parameters / 8 / GIB
    at_loss, room = (parts(SEVEN, cluster("dgx-a100"), one, **plan) for one in (ALLOCATED, TORCHTITAN))
    assert (at_loss[MemoryPart.GRADIENTS], room[MemoryPart.GRADIENTS]) == (0, pytest.approx(shard, rel=0.01))
    several = parts(SEVEN, cluster("dgx-a100"), ALLOCATED, **plan, grad_accum_steps=2)
    assert several[MemoryPart.GRADIENTS] == pytest.approx(shard, rel=0.01)


def test_experts_are_computed_again_by_torchtitan():
    # mlc-ai/pith-train issue 79: torchtitan on 8 B200, its loss in chunks; 141.79 GiB.
    model, where = preset("qwen3-30b-a3b", 8192), cluster("dgx-b200")
    plan = {"dp": 8, "micro_batch_size": 8, "zero_stage": 3, "recompute": "selective"}
    found = parts(model, where, FRAMEWORKS["torchtitan-chunked"], **plan)
    assert sum(found.values()) == pytest.approx(141.79, rel=0.04)
    assert found[MemoryPart.ACTIVATIONS] == pytest.approx(69, rel=0.12)
    # What was sent to experts and came back is kept: two copies of a token for each that it asks.
    even = replace(TORCHTITAN, routing=Routing.EVEN)
    one, other = (
        layer_bytes(model, even, columns_of([Plan(dp=8, ep=ep, recompute="selective")]))[0].kept for ep in (1, 8)
    )
    assert other - one == pytest.approx(8192 * 2 * 2 * model.top_k * model.hidden)


def test_16_bit_states_take_8_bytes_a_weight():
    # huggingface/trl pull 6869: 34 GB on each of 8 H100, ep 8, one sequence of 2,048.
    plan = {"dp": 8, "ep": 8, "zero_stage": 3, "recompute": "full"}
    model = preset("qwen3-30b-a3b", 2048)
    found = parts(model, cluster("dgx-h100"), FSDP_PURE_BF16, **plan)
    states = sum(found[part] for part in (MemoryPart.WEIGHTS, MemoryPart.GRADIENTS, MemoryPart.OPTIMIZER))
    assert states == pytest.approx(8 * model.parameters / 8 / GIB, rel=0.01)
    assert sum(found.values()) == pytest.approx(34e9 / GIB, rel=0.12)
    assert gib(model, cluster("dgx-h100"), FSDP, **plan) > 55


def test_a_logit_costs_what_the_code_of_its_loss_holds():
    model, where = preset("qwen3-8b", 4096), cluster("dgx-h100")
    plan = {"dp": 8, "micro_batch_size": 4, "zero_stage": 3, "recompute": "full"}
    logits = 4 * 4096 * model.vocab * DEFAULTS.activation_factor / GIB
    found = {one.name: parts(model, where, one, **plan)[MemoryPart.LOGITS] for one in (FSDP, TORCHTITAN_COMPILED)}
    assert [found[one] for one in found] == pytest.approx([14 * logits, 4 * logits], rel=0.01)
    assert gib(model, where, FRAMEWORKS["fsdp-fused-loss"], **plan) < gib(model, where, FSDP, **plan) - 10 * logits


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_buckets_of_deepspeed_are_gigabytes_apart(stage):
    plan = {"dp": 8, "zero_stage": stage, "recompute": "full"}
    sized = (replace(DEEPSPEED, bucket_weights=size) for size in (5e7, 1e9))
    small, large = (gib(preset("llama3-8b", 4096), cluster("dgx-h100"), one, **plan) for one in sized)
    assert large - small == pytest.approx(2 * (1e9 - 5e7) / GIB)


def test_buckets_that_overlap_are_two_but_in_zero_3():
    overlaps = replace(DEEPSPEED, overlapped_gradients=True)
    for stage, more in ((2, 1), (3, 0)):
        plan = {"dp": 8, "zero_stage": stage, "recompute": "full"}
        one, two = (gib(preset("llama3-8b", 4096), cluster("dgx-h100"), code, **plan) for code in (DEEPSPEED, overlaps))
        assert two - one == pytest.approx(more * 2 * DEEPSPEED.bucket_weights / GIB)


def test_zero_3_of_deepspeed_may_leave_a_billion_weights_gathered():
    model, where = preset("llama3-8b", 4096), cluster("dgx-h100")
    plan = {"dp": 8, "zero_stage": 3, "recompute": "full"}
    none, more = (
        parts(model, where, replace(DEEPSPEED, live_weights=live, bucket_weights=0), **plan)[MemoryPart.GATHERED]
        for live in (0, 3e9)
    )
    assert none < more
    assert more == pytest.approx(2 * 3e9 / GIB)


def test_the_gradient_of_a_tied_head_waits_for_the_embeddings():
    # Without logits a layer's backward pass is the fullest. The untied model gathers its head beside, as many bytes.
    tied, code = replace(preset("llama3.2-3b", 2048), tied_head=True), replace(FSDP, logit_bytes=0.001)
    plan = {"dp": 8, "zero_stage": 3, "micro_batch_size": 4, "recompute": "full"}
    models = (tied, replace(tied, tied_head=False))
    waits, both = (parts(one, cluster("dgx-h100"), code, **plan)[MemoryPart.GATHERED] for one in models)
    assert waits == pytest.approx(both, rel=0.01)


def test_a_process_holds_more_than_its_allocator_and_that_more_than_its_tensors():
    model, where = preset("llama3-8b", 4096), cluster("dgx-h100", 2)
    plan = {"tp": 2, "pp": 2, "dp": 4, "zero_stage": 1, "grad_accum_steps": 4, "recompute": "full"}
    tensors, allocator, process = (
        parts(model, where, replace(MEGATRON_DEEPSPEED, reports=one), **plan)
        for one in (Reports.ALLOCATED, Reports.RESERVED, Reports.PROCESS)
    )
    copies = allocator[MemoryPart.BUFFERS] - tensors[MemoryPart.BUFFERS]
    assert copies == pytest.approx(tensors[MemoryPart.WEIGHTS] + 0.75 * DEFAULTS.memory_offset_bytes / GIB)
    libraries = process[MemoryPart.BUFFERS] - allocator[MemoryPart.BUFFERS]
    assert libraries == pytest.approx((8e8 + 2 * COMMUNICATOR_BYTES[CUDA]) / GIB)


@pytest.mark.parametrize(
    ("plan", "communicators"), [({"dp": 8}, 2), ({"dp": 8, "ep": 2}, 3), ({"cp": 2, "dp": 4, "ep": 2}, 4)]
)
def test_communicators_grow_with_the_kinds_of_groups(plan, communicators):
    here, bare = (
        gib(preset("mixtral-8x7b", 4096), cluster("dgx-h100"), replace(TRAINER_BFLOAT16, reports=one), **plan)
        for one in (Reports.PROCESS, Reports.RESERVED)
    )
    assert here - bare == pytest.approx((8e8 + communicators * COMMUNICATOR_BYTES[CUDA]) / GIB)


@pytest.mark.parametrize(("seq_len", "ranks"), [(8192, {"dp": 128}), (131072, {"cp": 16, "dp": 8})], ids=["8K", "128K"])
def test_llama_3_405b_fits_in_its_own_setting(seq_len, ranks):
    # Dubey et al. 2024, table 4 and 3.3.2: 16,384 H100 of 80 GB, tp 8, pp 16, 16 micro-batches, no recomputation; a
    # layer in each of eight chunks, but none beside the embedding and none beside the head; gradients add up in
    # float32, and FSDP shards them and the optimizer. swiglu_values: xformers' SwiGLU, Meta's own.
    plan = {"tp": 8, "pp": 16, "vpp": 8, "schedule": "interleaved", "grad_accum_steps": 16, "zero_stage": 2, **ranks}
    plan |= {"first_stage_less_layers": 1, "last_stage_less_layers": 1}
    code = MEGATRON_CORE["bfloat16"]
    own = replace(code, kept=replace(code.kept, swiglu_values=2))
    fits = []
    for each in (own, code):
        training = Training(preset("llama3-405b", seq_len), cluster("dgx-h100", 2048), each)
        estimate = estimate_memory(training, columns_of([Plan(**plan)]))
        fits.append(float(estimate.fits(usable_bytes(training))[0]))
    assert fits[0] > 0.8
    assert 0.5 < fits[1] < 0.6


def test_kimi_k2_counts_a_trillion_weights():
    # Its report says 1.04e12; the shapes of its config.json count 1.026e12.
    assert preset("kimi-k2", 4096).parameters == pytest.approx(1.04e12, rel=0.015)


def test_hosts_hold_an_offloaded_optimizer_and_whole_checkpoints():
    model, where = preset("llama3-8b", 4096), cluster("dgx-h100", 2)
    columns = columns_of([Plan(dp=16, zero_stage=1), Plan(dp=16, zero_stage=3), Plan(tp=2, dp=8, zero_stage=1)])
    offloading = Training(model, where, replace(DEEPSPEED, host_optimizer=True))
    # Masters, moments and the masters' gradients of half of the model, on each of two nodes.
    assert offloaded_bytes(offloading, columns) == pytest.approx(np.full(3, 16 * model.parameters / 2), rel=0.01)
    assert not offloaded_bytes(Training(model, where, DEEPSPEED), columns).any()
    assert loaded_bytes(Training(model, where, FSDP)) == 8 * 4 * model.parameters
    assert loaded_bytes(Training(model, where, TORCHTITAN)) == 0
