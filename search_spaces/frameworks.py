"""The training codes that are known by name, each number with its source."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.framework import Framework, Kept

# The built-in trainer's, as its exact estimate counts it (docs/physics-memory.md): torch's modules save their inputs,
# gathered ones included; the norm is the CPU's, in float32 steps (CUDA's fused one keeps no norm_bytes); attention's
# answer is copied where heads were rotated; the head's product, cross entropy's cast, softmax and gradient.
_TRAINER = Kept(
    norm_bytes=4,
    attention_copies=1,
    gathered_inputs=True,
    selective_products=True,
    split_logit_bytes=4,
    torch_pipeline=True,
)
TRAINER_FLOAT32 = Framework(
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
    kept=_TRAINER,
)
# runners/trainer/optimizer.py keeps float32 masters and gradients beside 16-bit weights.
TRAINER_BFLOAT16 = Framework(
    name="meshtune trainer, bf16",
    dtype="bfloat16",
    weight_bytes=2,
    gradient_bytes=4,
    optimizer_bytes=12,
    activation_bytes=2,
    transfer_bytes=2,
    reduce_bytes=4,
    gather_bytes=2,
    logit_bytes=12,
    kept=replace(_TRAINER, norm_bytes=6, master_is_shard=True),
)
TRAINER_FLOAT16 = replace(TRAINER_BFLOAT16, name="meshtune trainer, fp16", dtype="float16")
# Megatron-DeepSpeed in mixed precision: 2 + 2 bytes of weights and gradients, 12 of master and moments
# (Rajbhandari et al. 2020, section 3.1) and 4 of the master's own gradient (DeepSpeed's autotuner.py counts 16),
# unfused attention before FlashAttention, one reduction at the end.
MEGATRON_DEEPSPEED = Framework(
    name="Megatron-DeepSpeed, fp16",
    dtype="float16",
    weight_bytes=2,
    gradient_bytes=2,
    optimizer_bytes=16,
    activation_bytes=2,
    transfer_bytes=2,
    reduce_bytes=2,
    gather_bytes=2,
    logit_bytes=6,
    fused_attention=False,
    overlapped_gradients=False,
    overlaps_tensor=True,
    hidden_passes=10,
    kept=Kept(dropout=True),
)
# nanotron: bf16 with float32 gradient accumulation (the accumulated gradients are what is reduced). gradient_bytes: 4
# in optim/gradient_accumulator.py, and 2 of the backward pass's own, which go only after it (or into DDP's buckets,
# with ZeRO 0). logit_bytes: models/llama.py casts to float32 (2 + 4), parallel/tensor_parallel/functional.py subtracts
# the maximum into a copy (4). Keys and values: attention keeps them rotated, and the product they were cut from stays.
NANOTRON = Framework(
    name="nanotron, bf16",
    dtype="bfloat16",
    weight_bytes=2,
    gradient_bytes=6,
    optimizer_bytes=12,
    activation_bytes=2,
    transfer_bytes=2,
    reduce_bytes=4,
    gather_bytes=2,
    logit_bytes=10,
    overlapped_gradients=False,
    layer_launch_s=1.7e-3,
    hidden_passes=20,
    pipeline_hop_s=2.1e-4,
    balances_head=True,
    kept=Kept(key_value_copies=1, late_buffers=True),
)
# torch FSDP as Composer uses it: float32 shards, bf16 compute and communication, gradients reduced every micro-batch.
FSDP = Framework(
    name="torch FSDP, bf16",
    dtype="bfloat16",
    weight_bytes=4,
    gradient_bytes=4,
    optimizer_bytes=8,
    activation_bytes=2,
    transfer_bytes=2,
    reduce_bytes=2,
    gather_bytes=2,
    logit_bytes=10,
    hidden_passes=20,
)
