"""The profiles of the known training codes, each number with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from meshtune.search_spaces.checks import Checks, Closed, StrEnum
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.columns import FloatColumn, IntColumn
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import LOSS_CHUNKS, Selective
from meshtune.search_spaces.routing import Routing

# Of one chunk of the built-in trainer's loss (runners/trainer/head.py).
FEWEST_CHUNK_TOKENS = 1024
# Formats that the layers' products alone have (`FrameworkProfile.product_dtype`), and bytes of a value.
FEWER_BITS = {"float8": 1.0, "float4": 0.5}


class Reports(StrEnum):
    """The memory that a code's jobs report. ALLOCATED: tensors at one moment (torch.cuda.max_memory_allocated).
    RESERVED: what PyTorch's allocator took from the device and keeps, whatever moment needed it
    (max_memory_reserved). PROCESS: that with the context and the libraries' buffers (nvidia-smi)."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(Closed):
    """Tensors that a training code keeps beyond the formulas of `search_spaces.physics.activations`."""

    # Bytes per value of an RMSNorm, beside its input and output.
    norm_bytes: float = 0.0
    # Further copies of keys and values, and of attention's answer.
    key_value_copies: int = 0
    attention_copies: int = 0
    # Values as wide as the block that SwiGLU keeps: its two inputs, what its SiLU returns and what it returns itself; 3
    # where SiLU is computed again, 2 where both are.
    swiglu_values: int = 4
    # With sequence parallelism: the gathered input of a block; else its shard (Korthikanti et al. 2022, 4.2.2).
    gathered_inputs: bool = False
    # Masks of dropout.
    dropout: bool = False
    # What selective recomputation computes again.
    selective: Selective = Selective.ATTENTION
    # It computes all products of experts again.
    repeats_experts: bool = False
    # Queries, keys and values are one product, a gate and what it gates another: of the halves computed again.
    fused_products: bool = False
    # Of tokens, one having logits at a time; gradients of head and hidden states exist from the loss on. 0: no chunks.
    loss_chunks: int = 0
    # torch's pipeline runtime: receive buffers for all micro-batches at once, and the last stage's results.
    torch_pipeline: bool = False
    # Tensor-parallel collectives run on their own stream, whose buffers return to the allocator late.
    late_buffers: bool = False
    # torch's FSDP2: what a reduction of gradients reads is held until the next one, and layers are sharded again before
    # the loss.
    fsdp2: bool = False
    # ZeRO 3 shards the float32 weights and has no other copy.
    master_is_shard: bool = False
    # Where nothing is sharded (stage 0), torch's autocast casts float32 weights and inputs at each product, and keeps
    # the copies; what lies between the blocks stays float32.
    autocast: bool = False
    # Gradients are freed by the step (set_to_none): at the loss of a step's only micro-batch there are none.
    fresh_gradients: bool = False
    # Gradients are copied into the buckets that are reduced, two of them where that overlaps.
    copied_buckets: bool = False
    # Weights were copied into flat buffers when the optimizer was made, and the allocator keeps the room of the first.
    flat_copies: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkProfile(Closed):
    """One training code with its settings."""

    name: str
    # Number format of the computing copy; selects the device's peak.
    dtype: str
    # Bytes per weight: of the computing copy; of accumulated gradients; of AdamW's state with a float32 master copy.
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    # Of each of its two moments; and what the state of embedding, norms and head has more per weight.
    moment_bytes: float = 4.0
    more_end_bytes: float = 0.0
    # Of the gradient of that copy, which exists while the optimizer steps.
    step_bytes: float = 0.0
    # Bytes per value kept for the backward pass.
    activation_bytes: float
    # Bytes per value sent by tensor, context, expert and pipeline parallelism.
    transfer_bytes: float
    # Bytes per gradient reduced over data-parallel ranks, and per weight gathered by ZeRO.
    reduce_bytes: float
    gather_bytes: float
    # Bytes per logit at the loss's peak, all copies together; and where tp cuts the vocabulary, 0 being the same.
    logit_bytes: float
    parallel_logit_bytes: float = 0.0
    # Number format of the layers' products, such as float8 or float4, where the device has a rate for it; else `dtype`.
    product_dtype: str = ""
    # The matrix of attention scores is never kept (Dao et al. 2022).
    fused_attention: bool = True
    # By the first of these that was timed on the device (`DeviceSpec.attention`): as torch's attention and
    # TransformerEngine choose, cuDNN from Hopper on, FlashAttention-2 before.
    attention_kernels: tuple[str, ...] = ("cudnn", "flash2")
    # The reduction of gradients runs beside the backward pass.
    overlapped_gradients: bool = True
    # Weights whose gradients are reduced, and that are gathered, by one collective: at least so many, and at least so
    # many for each replica; 0: a layer's. ZeRO 3 goes by layers.
    bucket_weights: float = 0.0
    bucket_weights_per_rank: float = 0.0
    # ZeRO 1 and 2 sum whole gradients on every rank; each rank's part of the weights is sent by a broadcast of its own.
    whole_gradients: bool = False
    broadcasts_weights: bool = False
    # ZeRO 1 sums whole gradients on every rank, after the backward pass.
    late_whole_gradients: bool = False
    # ZeRO 2 and 3 without a pipeline reduce the gradients of every micro-batch.
    reduces_every_micro_batch: bool = True
    # Host time to launch a layer's forward pass; in such times, what the host does more where the layer recomputes.
    layer_launch_s: float = 1e-3
    full_launches: float = 1.0
    selective_launches: float = 0.0
    # Layers are compiled. probed: the code is the one that `meshtune cluster probe` times.
    compiled: bool = False
    probed: bool = False
    # Delay of each hop of a collective while a pipeline's transfers between nodes are under way.
    pipeline_hop_s: float = 0.0
    # Host time for each slice that ZeRO 1 cuts: a parameter's for one of the data-parallel ranks.
    slice_s: float = 0.0
    # Reads or writes outside of products, a third of those of a forward and a backward pass; few with fused kernels. Of
    # the hidden width in a layer, of its rotation of heads, and of the feed-forward width by the activation function,
    # with and without a gate; of a logit, in the format that `logit_bytes` has.
    hidden_passes: float = 14
    rotary_passes: float = 0
    gated_passes: float = 6
    plain_passes: float = 4
    logit_passes: float = 5
    # The same of the hidden width of a copy of a token for an expert: made, ordered by expert, weighed and added up.
    copy_passes: float = 6
    # The backward pass's tensor-parallel all-reduces run beside products; and, with sequence parallelism, all gathers
    # and scatters, piece by piece.
    overlaps_tensor: bool = False
    overlaps_tensor_forward: bool = False
    # Transfers between the stages of an interleaved pipeline run beside other chunks.
    overlaps_sends: bool = False
    # ZeRO shards what all ranks hold alike over all of them; else over dp / ep ranks, and each of the ep holds a copy.
    shards_over_experts: bool = True
    # The experts' all-to-alls run beside another micro-batch's work. Copies of a token cross the network once a node.
    overlaps_experts: bool = False
    dispatches_by_node: bool = False
    # Weights that ZeRO 1 and 2 gather arrive beside the forward pass.
    overlapped_gathers: bool = False
    # The optimizer's state lies in the host's memory, and its processors step (ZeRO-Offload, Ren et al. 2021).
    host_optimizer: bool = False
    # It lies on disks (ZeRO-Infinity, Rajbhandari et al. 2021), which hold what the host's memory else would.
    disk_optimizer: bool = False
    # A script may read a whole checkpoint on every rank before weights are sharded.
    loads_whole: bool = False
    # Products add their gradients up themselves.
    fused_accumulation: bool = False
    # Pipeline stages share the layers out with the head's work counted.
    balances_head: bool = False
    # The vocabulary is padded to a multiple of so many entries per tensor-parallel rank; 1: cut as it is, the fullest
    # rank having the most rows. ModelSpec.vocab_multiple overrides it.
    vocab_multiple: int = 1
    # What experts get (search_spaces/routing.py); the load of the busiest over the mean where it is set, else 1. An
    # expert takes at most capacity_factor times the mean, 0: any number; padded, always as much.
    routing: Routing = Routing.LEARNED
    imbalance: float = 1.0
    capacity_factor: float = 0.0
    pads_to_capacity: bool = False
    # Weights that ZeRO 3 may leave gathered.
    live_weights: float = 0.0
    reports: Reports = Reports.ALLOCATED
    kept: Kept = Kept()

    def _check(self, checks: Checks) -> None:
        numbers = {field.name: getattr(self, field.name) for field in fields(self) if field.type == "float"}
        checks.at_least(0, **numbers)
        checks.whole(1, vocab_multiple=self.vocab_multiple)

    @property
    def master_bytes(self) -> float:
        """Per trained weight, of the float32 copy that the optimizer has beside the computing one."""
        return self.optimizer_bytes - 2 * self.moment_bytes

    def padded_vocab(self, model: ModelSpec, tp: IntColumn | FloatColumn) -> FloatColumn:
        """Entries of embedding and head with the padding."""
        degrees = np.asarray(tp, dtype=np.float64)
        rows: FloatColumn = model.vocab_rows(degrees, self.vocab_multiple) * degrees
        return rows


# Four bytes of everything, and no second copy of the weights.
_FOUR_BYTES = ("weight_bytes", "gradient_bytes", "activation_bytes", "transfer_bytes", "reduce_bytes", "gather_bytes")
FLOAT32: Mapping[str, Any] = {
    "dtype": "float32",
    **dict.fromkeys(_FOUR_BYTES, 4),
    "optimizer_bytes": 8,
    "step_bytes": 0,
}

# The built-in trainer, as its exact estimate counts it (docs/explanation/physics-memory.md): torch's modules save
# their inputs, gathered ones included; the norm is the CPU's, in float32 steps (`on_device` has CUDA's);
# SwiGLU and the rotation of heads keep no more than Megatron's fused kernels. logit_bytes: the head's product, which
# becomes the gradient, and beside it, unless it is float32 itself, the softmax. Host time: `benchmarks/host_time.py`
# has 0.95 ms a layer, forward and backward, on a virtual core of an EPYC, 0.65 compiled; a server's core at full clock
# is taken to be 1.75 times as fast, and to need 3 us for each kernel that it launches. full_launches,
# selective_launches: the same table; recomputing selectively, every operation of an uncompiled layer passes through
# Python twice. Passes, forward and backward, as the operations in runners/trainer/model.py read and write: norms 4 and
# 10, residuals 6 and 6, copies for experts 7 and 11, the cut of the product for queries, keys and values 0 and 6, or
# with its rotation, in float32 by halves, 24 and 24; SwiGLU 5 and 13, GELU 2 and 3; of the loss 26 bytes a logit.
# Uncompiled rotations run slower than their bytes on an H100, so that its layers were predicted 5 % too fast
# (docs/gpu.md).
TRAINER_FLOAT32 = FrameworkProfile(
    name="meshtune trainer, float32",
    **FLOAT32,
    logit_bytes=4,
    layer_launch_s=2.5e-4,
    hidden_passes=32 / 3,
    rotary_passes=14,
    gated_passes=6,
    plain_passes=5 / 3,
    logit_passes=13 / 3,
    full_launches=3.5,
    selective_launches=10.0,
    probed=True,
    overlapped_gathers=True,
    bucket_weights=4e7,
    reports=Reports.PROCESS,
    kept=Kept(
        norm_bytes=4,
        swiglu_values=3,
        gathered_inputs=True,
        fused_products=True,
        selective=Selective.PRODUCTS,
        loss_chunks=LOSS_CHUNKS,
        fsdp2=True,
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
    logit_bytes=6,
    kept=replace(TRAINER_FLOAT32.kept, norm_bytes=6, master_is_shard=True),
)
TRAINER_FLOAT16 = replace(TRAINER_BFLOAT16, name="meshtune trainer, fp16", dtype="float16")
TRAINER: Mapping[str, FrameworkProfile] = {
    profile.dtype: profile for profile in (TRAINER_FLOAT32, TRAINER_BFLOAT16, TRAINER_FLOAT16)
}
_COMPILED_LAYERS: Mapping[str, Any] = {"hidden_passes": 23 / 3, "rotary_passes": 2, "gated_passes": 8 / 3}


def compiled(profile: FrameworkProfile) -> FrameworkProfile:
    """The built-in trainer's with compiled layers, another code, whose trials teach nothing of the uncompiled one. Host
    time: as above. A recomputation is part of the compiled graph. Passes, forward and backward, with one kernel for all
    between two products: norms and residuals 9 and 8, the cut 0 and 6, or with the rotation 6 and 6; SwiGLU 3 and 5; of
    the loss 10 bytes a logit."""
    return replace(
        profile,
        name=f"{profile.name}, compiled",
        compiled=True,
        layer_launch_s=1.6e-4,
        full_launches=0.8,
        selective_launches=0.3,
        logit_passes=5 / 3,
        **_COMPILED_LAYERS,
    )


def on_device(profile: FrameworkProfile, kind: DeviceKind) -> FrameworkProfile:
    """The profile of the same code there: CUDA's norm of torch is one kernel, which keeps its input and output alone;
    the built-in trainer's is torch's."""
    one_kernel = kind is DeviceKind.CUDA and profile.probed
    return replace(profile, kept=replace(profile.kept, norm_bytes=0.0)) if one_kernel else profile


# What the other codes have in common with it: 16 bits; not its host time, nor its weights' way.
_OTHER_BFLOAT16 = replace(
    TRAINER_BFLOAT16,
    overlapped_gathers=False,
    layer_launch_s=1e-3,
    hidden_passes=14,
    rotary_passes=0,
    plain_passes=4,
    logit_passes=5,
    full_launches=1.0,
    selective_launches=0.0,
    probed=False,
    bucket_weights=0,
    reports=Reports.ALLOCATED,
)
# Megatron-Core with its distributed optimizer. bf16: 18 bytes per weight, of which 12 are the optimizer's and are
# sharded (megatron/training/theoretical_memory_usage.py: 18, or 6 + 12 / data-parallel size): weights 2, gradients 4,
# which add up and are reduced in float32 (megatron/training/arguments.py, validate_args), masters and moments 12.
# copy_passes: index_select and scatter_add, 5 and 5, and the weighing in float32 (core/transformer/moe/moe_utils.py).
# logit_bytes: 2 of the product and 4 of cross entropy's float32 copy, which softmax and gradient reuse
# (megatron/core/tensor_parallel/cross_entropy.py). Attention is fused and products add their gradients up themselves,
# unless switched off. swiglu_values: the fused SwiGLU keeps its input (core/fusions/fused_bias_swiglu.py), and the next
# product what it reads. hidden_passes as for Megatron-DeepSpeed, whose fused kernels these grew from. vocab_multiple:
# the default of --make-vocab-size-divisible-by (megatron/training/arguments.py at d98e8a64; Megatron-DeepSpeed and
# gpt-neox alike). nanotron's is 1 (config/config.py at 2411b022); torch's FSDP cuts none, its DTensor unevenly.
# bucket_weights: max(40,000,000, 1,000,000 * replicas) (megatron/core/distributed/distributed_data_parallel.py).
# overlaps_sends: the default where chunks interleave (megatron/training/arguments.py, overlap_p2p_comm).
_MEGATRON_CORE_BFLOAT16 = replace(
    _OTHER_BFLOAT16,
    name="Megatron-Core, bf16",
    logit_bytes=6,
    overlaps_tensor=True,
    overlaps_sends=True,
    fused_accumulation=True,
    hidden_passes=10,
    copy_passes=4,
    vocab_multiple=128,
    bucket_weights=4e7,
    bucket_weights_per_rank=1e6,
    kept=Kept(swiglu_values=3),
)
# fp16: gradients in 2 bytes, and while it steps a float32 copy of them beside the optimizer's 12
# (Float16OptimizerWithFloat16Params in megatron/core/optimizer/optimizer.py). float32: no copies at all, of logits
# neither.
MEGATRON_CORE: Mapping[str, FrameworkProfile] = {
    "bfloat16": _MEGATRON_CORE_BFLOAT16,
    "float16": replace(
        _MEGATRON_CORE_BFLOAT16,
        name="Megatron-Core, fp16",
        dtype="float16",
        gradient_bytes=2,
        step_bytes=4,
        reduce_bytes=2,
    ),
    "float32": replace(
        _MEGATRON_CORE_BFLOAT16,
        name="Megatron-Core, float32",
        **FLOAT32,
        logit_bytes=4,
    ),
}
# NVIDIA's containers run float32 products as TF32 (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE); fused attention takes 16 bits.
MEGATRON_CORE_TF32 = replace(
    MEGATRON_CORE["float32"], name="Megatron-Core, TF32", dtype="tensorfloat32", fused_attention=False
)
# Megatron-DeepSpeed in mixed precision: 2 + 2 bytes of weights and gradients, 12 of master and moments
# (Rajbhandari et al. 2020, section 3.1) and, while it steps, 4 of the master's own gradient, unfused attention before
# FlashAttention, one reduction at the end.
MEGATRON_DEEPSPEED = replace(
    MEGATRON_CORE["float16"],
    name="Megatron-DeepSpeed, fp16",
    fused_attention=False,
    overlapped_gradients=False,
    overlaps_sends=False,
    fused_accumulation=False,
    bucket_weights=5e8,
    bucket_weights_per_rank=0,
    kept=Kept(dropout=True, flat_copies=True),
)
# DeepSpeed's BF16_Optimizer adds gradients up in float32 beside the bf16 ones, and reduces the sums; they are what the
# optimizer reads.
MEGATRON_DEEPSPEED_BF16 = replace(
    MEGATRON_DEEPSPEED,
    name="Megatron-DeepSpeed, bf16",
    dtype="bfloat16",
    gradient_bytes=6,
    step_bytes=0,
    reduce_bytes=4,
)
# nanotron: bf16 with float32 gradient accumulation (the accumulated gradients are what is reduced). gradient_bytes: 4
# in optim/gradient_accumulator.py, and 2 of the backward pass's own, which go only after it (or into DDP's buckets,
# with ZeRO 0). late_whole_gradients: trainer.py calls sync_gradients_across_dp with reduce_scatter=False where ZeRO 1
# has taken the place of DDP. slice_s: all_gather_coalesced in distributed.py cuts every parameter in Python into a
# slice for each rank and copies each; these lines took 7.8 us a slice on a CPU (huggingface/nanotron at 2411b022).
# logit_bytes: models/llama.py casts to float32 (2 + 4), parallel/tensor_parallel/functional.py subtracts the maximum
# into a copy (4). Keys and values: attention keeps them rotated, and the product they were cut from stays.
NANOTRON = replace(
    _OTHER_BFLOAT16,
    name="nanotron, bf16",
    gradient_bytes=6,
    logit_bytes=10,
    late_whole_gradients=True,
    layer_launch_s=1.7e-3,
    hidden_passes=20,
    attention_kernels=("flash2",),
    pipeline_hop_s=2.1e-4,
    slice_s=7.8e-6,
    bucket_weights=6.55e6,
    balances_head=True,
    reports=Reports.RESERVED,
    kept=Kept(key_value_copies=1, late_buffers=True),
)
# torch FSDP as Composer uses it: float32 shards, bf16 compute and communication, gradients reduced every micro-batch.
# logit_bytes: transformers' loss (loss/loss_utils.py, ForCausalLMLoss) casts the logits, and its answer holds them (2);
# in the backward pass of torch's cross entropy there are the log-probabilities, and the gradients of them and of the
# cast logits (4 each). A compiled loss keeps the logits and two numbers of a row, and writes their gradient, 2 bytes
# each; it reads or writes 10. logit_passes: 50 bytes else. norm_bytes: transformers' RMSNorm (models/llama/
# modeling_llama.py) keeps its input in float32 in place of the input, and what it multiplies with its weight.
# copy_passes: of transformers' grouped products, copied, ordered, weighed, put back and summed, 9 and 15
# (integrations/moe.py).
COMPILED_LOSS: Mapping[str, Any] = {"logit_bytes": 4, "logit_passes": 2.5, "parallel_logit_bytes": 0}
FSDP = replace(
    _OTHER_BFLOAT16,
    name="torch FSDP, bf16",
    weight_bytes=4,
    optimizer_bytes=8,
    reduce_bytes=2,
    logit_bytes=14,
    logit_passes=50 / 14,
    hidden_passes=20,
    copy_passes=8,
    loads_whole=True,
    kept=Kept(norm_bytes=4, fresh_gradients=True, autocast=True),
)
# With a loss that computes head and cross entropy together, some tokens at a time (Liger-Kernel, ops/
# fused_linear_cross_entropy.py: hidden states' bytes at once, hence vocab / hidden chunks, some 32; cut cross entropy,
# Wijmans et al. 2024, arXiv 2411.09009, has no logits at all).
FSDP_FUSED_LOSS = replace(
    FSDP, name="torch FSDP, bf16, fused loss", **COMPILED_LOSS, kept=replace(FSDP.kept, loss_chunks=32)
)
# Weights, gradients and AdamW's moments in 16 bits, as of a script that loads the model in bfloat16 and makes torch's
# optimizer of it: 8 bytes a weight.
FSDP_PURE_BF16 = replace(
    FSDP,
    name="torch FSDP, bf16 alone",
    weight_bytes=2,
    gradient_bytes=2,
    optimizer_bytes=4,
    moment_bytes=2,
    kept=replace(FSDP.kept, autocast=False),
)
# DeepSpeed's own ZeRO in bf16: gradients add up and are reduced in the weights' format (runtime/engine.py at 0.19.8,
# get_data_types and communication_data_type), beside them the float32 master, moments and, while it steps, gradient
# (runtime/zero/stage_1_and_2.py); reductions overlap with stage 3 only (zero/config.py, overlap_comm). Models are taken
# to be transformers', with its loss. bucket_weights, live_weights: defaults of reduce_bucket_size and of
# stage3_max_live_parameters (zero/config.py).
DEEPSPEED = replace(
    FSDP,
    name="DeepSpeed, bf16",
    weight_bytes=2,
    gradient_bytes=2,
    optimizer_bytes=12,
    step_bytes=4,
    overlapped_gradients=False,
    bucket_weights=5e8,
    live_weights=1e9,
    kept=Kept(norm_bytes=4, copied_buckets=True),
)
# torchtitan: FSDP2 with float32 shards, gradients reduced in float32 (mixed_precision_reduce), torch's pipelines;
# its selective recomputation keeps every second product's result (distributed/activation_checkpoint.py at 0.3.0). Its
# jobs report max_memory_reserved (components/metrics.py), so that at the loss the room of the last step's gradients is
# counted. parallel_logit_bytes: the loss over tp is made of torch's operations (components/loss.py at b5bcd76c,
# _LossParallelCrossEntropy; torch/distributed/tensor/parallel/loss.py before): log-probabilities, zeros for the
# gradient, their sum with the exponentials, its product with the loss's gradient, 4 each, and the logits' room, 2.
# copy_passes: answers are weighed in float32, cast there and back, and gate and up have a gradient of a copy each
# (models/common/token_dispatcher.py and moe.py): 15 and 26, compiled or not: dispatch and combination stay out of the
# graphs (models/llama4/infra/parallelize.py at 05a6cb38, apply_compile).
TORCHTITAN = replace(
    FSDP,
    name="torchtitan FSDP2, bf16",
    reduce_bytes=4,
    parallel_logit_bytes=18,
    copy_passes=41 / 3,
    loads_whole=False,
    reports=Reports.RESERVED,
    kept=Kept(
        torch_pipeline=True,
        selective=Selective.HALF_PRODUCTS,
        repeats_experts=True,
        fsdp2=True,
        fresh_gradients=True,
    ),
)
# [compile] components = ["model", "loss"], each layer a graph like the built-in trainer's; and besides
# ChunkedLossWrapper with its eight chunks.
# swiglu_values: a compiled layer does not keep what its SiLU returns (as torch's min_cut_rematerialization_partition
# cuts it).
TORCHTITAN_COMPILED = replace(
    TORCHTITAN,
    name=f"{TORCHTITAN.name}, compiled",
    **_COMPILED_LAYERS,
    **COMPILED_LOSS,
    kept=replace(TORCHTITAN.kept, swiglu_values=3),
)
TORCHTITAN_CHUNKED = replace(
    TORCHTITAN_COMPILED,
    name=f"{TORCHTITAN.name}, compiled, loss in chunks",
    kept=replace(TORCHTITAN_COMPILED.kept, loss_chunks=8),
)
# InternEvo (InternLM/InternEvo at c628a8c): gradients are reduced over all data-parallel ranks beside the last backward
# pass, in buckets of 512 * 2^20 (configs/7B_internlm2.py); after the step each rank of a `zero1` group broadcasts its
# parameters (solver/optimizer/hybrid_zero_optim.py), of whose gradients it makes float32 copies. Its loss is
# flash-attention's, of float32 logits.
INTERNEVO = replace(
    _OTHER_BFLOAT16,
    name="InternEvo, bf16",
    gradient_bytes=2,
    step_bytes=4,
    reduce_bytes=2,
    logit_bytes=6,
    attention_kernels=("flash2",),
    whole_gradients=True,
    broadcasts_weights=True,
    reduces_every_micro_batch=False,
    bucket_weights=512 * 2**20,
    kept=Kept(),
)
# Optimus (arXiv 2604.00785): 2 + 2 bytes of weights and gradients, 4 of master, 8 of moments. optimus/optimizers.py
# (IntelLabs/Optimus-LM): all reduce-scatters after the backward pass, then a barrier. torch's modules: hidden_passes as
# FSDP's.
OPTIMUS = replace(
    _OTHER_BFLOAT16,
    name="Optimus, bf16",
    gradient_bytes=2,
    reduce_bytes=2,
    logit_bytes=10,
    overlapped_gradients=False,
    reduces_every_micro_batch=False,
    hidden_passes=20,
    kept=Kept(),
)
# Optimus with a plain sharded optimizer in place of its own, which is aware of experts (optimizers.py,
# ParamGroupShardedMixedPrecisionAdamW): every state is sharded over the ranks that hold the same experts.
OPTIMUS_EP_UNAWARE = replace(OPTIMUS, name="Optimus, bf16, sharding unaware of experts", shards_over_experts=False)
# As specs name them: "megatron-deepspeed", "fsdp", "megatron-core-bfloat16" ...
FRAMEWORKS: Mapping[str, FrameworkProfile] = {
    name.lower().replace("_", "-"): value
    for name, value in tuple(globals().items())
    if isinstance(value, FrameworkProfile) and not name.startswith("_")
} | {f"megatron-core-{dtype}": profile for dtype, profile in MEGATRON_CORE.items()}
