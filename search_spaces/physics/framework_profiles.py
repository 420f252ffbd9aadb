"""The profiles of the known training codes, each number with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshtune.search_spaces.physics.framework_profile import FrameworkProfile, Kept

# The built-in trainer, as its exact estimate counts it (docs/explanation/physics-memory.md): torch's modules save
# their inputs, gathered ones included; the norm is the CPU's, in float32 steps (CUDA's fused one keeps no norm_bytes);
# attention's answer is copied where heads were rotated; the head's product, cross entropy's cast, softmax and gradient.
TRAINER_FLOAT32 = FrameworkProfile(
    name="meshtune trainer, float32",
    dtype="float32",
    weight_bytes=4,
    gradient_bytes=4,
    optimizer_bytes=8,
    activation_bytes=4,
    transfer_bytes=4,
    reduce_bytes=4,
    gather_bytes=4,
    logit_bytes=12,
    kept=Kept(
        norm_bytes=4,
        attention_copies=1,
        gathered_inputs=True,
        selective_products=True,
        split_logit_bytes=4,
        torch_pipeline=True,
    ),
)
# runners/trainer/parallel/sharding.py keeps float32 masters and gradients beside 16-bit weights.
TRAINER_BFLOAT16 = replace(
    TRAINER_FLOAT32,
    name="meshtune trainer, bf16",
    dtype="bfloat16",
    weight_bytes=2,
    optimizer_bytes=12,
    activation_bytes=2,
    transfer_bytes=2,
    gather_bytes=2,
    kept=replace(TRAINER_FLOAT32.kept, norm_bytes=6, master_is_shard=True),
)
TRAINER_FLOAT16 = replace(TRAINER_BFLOAT16, name="meshtune trainer, fp16", dtype="float16")
# Megatron-Core with its distributed optimizer. bf16: 18 bytes per weight, of which 12 are the optimizer's and are
# sharded (megatron/training/theoretical_memory_usage.py: 18, or 6 + 12 / data-parallel size): weights 2, gradients 4,
# which add up and are reduced in float32 (megatron/training/arguments.py, validate_args), masters and moments 12.
# logit_bytes: 2 of the product and 4 of cross entropy's float32 copy, which softmax and gradient reuse
# (megatron/core/tensor_parallel/cross_entropy.py). Attention is fused and products add their gradients up themselves,
# unless switched off. hidden_passes as for Megatron-DeepSpeed, whose fused kernels these grew from.
_MEGATRON_CORE_BFLOAT16 = replace(
    TRAINER_BFLOAT16,
    name="Megatron-Core, bf16",
    logit_bytes=6,
    overlaps_tensor=True,
    fused_accumulation=True,
    hidden_passes=10,
    kept=Kept(),
)
# fp16: gradients in 2 bytes, and a float32 copy of them beside the optimizer's 12 (Float16OptimizerWithFloat16Params in
# megatron/core/optimizer/optimizer.py). float32: no copies at all, of logits neither.
MEGATRON_CORE: Mapping[str, FrameworkProfile] = {
    "bfloat16": _MEGATRON_CORE_BFLOAT16,
    "float16": replace(
        _MEGATRON_CORE_BFLOAT16,
        name="Megatron-Core, fp16",
        dtype="float16",
        gradient_bytes=2,
        optimizer_bytes=16,
        reduce_bytes=2,
    ),
    "float32": replace(
        _MEGATRON_CORE_BFLOAT16,
        name="Megatron-Core, float32",
        dtype="float32",
        weight_bytes=4,
        optimizer_bytes=8,
        activation_bytes=4,
        transfer_bytes=4,
        gather_bytes=4,
        logit_bytes=4,
    ),
}
# Megatron-DeepSpeed in mixed precision: 2 + 2 bytes of weights and gradients, 12 of master and moments
# (Rajbhandari et al. 2020, section 3.1) and 4 of the master's own gradient (DeepSpeed's autotuner.py counts 16),
# unfused attention before FlashAttention, one reduction at the end.
MEGATRON_DEEPSPEED = replace(
    MEGATRON_CORE["float16"],
    name="Megatron-DeepSpeed, fp16",
    fused_attention=False,
    overlapped_gradients=False,
    fused_accumulation=False,
    kept=Kept(dropout=True),
)
# nanotron: bf16 with float32 gradient accumulation (the accumulated gradients are what is reduced). gradient_bytes: 4
# in optim/gradient_accumulator.py, and 2 of the backward pass's own, which go only after it (or into DDP's buckets,
# with ZeRO 0). logit_bytes: models/llama.py casts to float32 (2 + 4), parallel/tensor_parallel/functional.py subtracts
# the maximum into a copy (4). Keys and values: attention keeps them rotated, and the product they were cut from stays.
NANOTRON = replace(
    TRAINER_BFLOAT16,
    name="nanotron, bf16",
    gradient_bytes=6,
    logit_bytes=10,
    overlapped_gradients=False,
    layer_launch_s=1.7e-3,
    hidden_passes=20,
    pipeline_hop_s=2.1e-4,
    balances_head=True,
    kept=Kept(key_value_copies=1, late_buffers=True),
)
# torch FSDP as Composer uses it: float32 shards, bf16 compute and communication, gradients reduced every micro-batch.
FSDP = replace(
    TRAINER_BFLOAT16,
    name="torch FSDP, bf16",
    weight_bytes=4,
    optimizer_bytes=8,
    reduce_bytes=2,
    logit_bytes=10,
    hidden_passes=20,
    kept=Kept(),
)
# DeepSpeed's own ZeRO in bf16: gradients add up and are reduced in the weights' format (runtime/engine.py at 0.19.8,
# get_data_types and communication_data_type), beside them the float32 master, moments and, while it steps, gradient
# (runtime/zero/stage_1_and_2.py); reductions overlap with stage 3 only (zero/config.py, overlap_comm). Models are taken
# to be transformers', whose loss casts the logits: 2 + 4, and their gradient 4.
DEEPSPEED = replace(
    FSDP,
    name="DeepSpeed, bf16",
    weight_bytes=2,
    gradient_bytes=2,
    optimizer_bytes=16,
    overlapped_gradients=False,
)
# torchtitan: FSDP2 with float32 shards, gradients reduced in float32 (mixed_precision_reduce), torch's pipelines;
# its selective recomputation keeps products' results, every second one (distributed/activation_checkpoint.py at 0.3.0).
TORCHTITAN = replace(
    FSDP,
    name="torchtitan FSDP2, bf16",
    reduce_bytes=4,
    kept=Kept(torch_pipeline=True, selective_products=True),
)
