"""The training codes behind the published results, each field that differs from its base with the reason."""

from __future__ import annotations

from dataclasses import replace

from meshtune.search_spaces.physics.framework_profiles import MEGATRON_DEEPSPEED, FrameworkProfile, Kept

# Dates are of NVIDIA/Megatron-LM's history. The table of results was committed on 2021-04-08; the asynchronous
# all-reduce of the backward pass (--no-async-tensor-model-parallel-allreduce) on 2021-09-02, and products that add up
# their gradients (--no-gradient-accumulation-fusion) on 2022-02-13. The optimizer's bytes are 12, and 4 while it steps:
# its README of core_r0.8.0 counts 20 bytes a weight with float16 weights and gradients, of which 16 are sharded.
MEGATRON_2021 = replace(MEGATRON_DEEPSPEED, name="Megatron-LM of 2021, fp16", overlaps_tensor=False)
# `DDP=torch` in run_table_1.sh: torch's buckets are reduced beside the last backward pass.
MEGATRON_2021_TORCH = replace(MEGATRON_2021, name="Megatron-LM of 2021, fp16, torch DDP", overlapped_gradients=True)
# The fusion is on by default, but until 2022-09-27 only for gradients that add up in float32 (arguments.py at 83b1e42f
# turns it off otherwise); that the runs had such gradients is assumed.
MEGATRON_2022 = replace(
    MEGATRON_DEEPSPEED,
    name="Megatron-LM of 2022, fp16, float32 gradients",
    gradient_bytes=4,
    step_bytes=0,
    reduce_bytes=4,
    fused_accumulation=True,
)
# DeepSpeed's ZeRO 1 gathers after the optimizer; Apex' fused kernel is taken not to have been built for ROCm.
FRONTIER = replace(MEGATRON_DEEPSPEED, name="Megatron-DeepSpeed, fp16, FlashAttention-2", fused_attention=True)
# README of core_r0.8.0: 6 bytes a weight and 12 that are sharded; --overlap-grad-reduce, --overlap-param-gather,
# --tp-comm-overlap, and transfers of interleaved chunks beside others by default. Gradients add up in float32 in the
# product (arguments.py: on by default). Kernels are fused as in MEGATRON_DEEPSPEED; logits are cast to
# float32 and softmax is taken of a copy, as in nanotron.
MEGATRON_CORE = FrameworkProfile(
    name="Megatron-Core r0.8, bf16",
    dtype="bfloat16",
    weight_bytes=2,
    gradient_bytes=4,
    optimizer_bytes=12,
    activation_bytes=2,
    transfer_bytes=2,
    reduce_bytes=4,
    gather_bytes=2,
    logit_bytes=10,
    reduces_every_micro_batch=False,
    overlaps_tensor=True,
    overlaps_tensor_forward=True,
    overlaps_sends=True,
    overlapped_gathers=True,
    fused_accumulation=True,
    hidden_passes=10,
    kept=Kept(dropout=True, swiglu_values=3),
)
# From memory of Dubey et al. 2024, section 3.3: gradients add up and are reduced in float32; FSDP shards optimizer and
# gradients and does not shard the weights again after the forward pass (ZeRO 2); it gathers weights ahead, beside the
# forward pass; the first and the last stage hold a layer less. Whether tensor parallelism overlaps and whether products
# add up their gradients is not known: taken for not. swiglu_values: as of xformers' SwiGLU (ops/swiglu_op.py), which is
# Meta's, too.
LLAMA = replace(
    MEGATRON_CORE,
    name="Meta's code for Llama 3, bf16",
    overlaps_tensor=False,
    overlaps_tensor_forward=False,
    overlaps_sends=False,
    fused_accumulation=False,
    balances_head=True,
    kept=Kept(swiglu_values=2),
)
