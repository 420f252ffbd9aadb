"""FrameworkProfile: what two training codes do differently under the same Plan: number formats, kernels, overlap.

Numbers that are counted per weight or per value; how fast anything runs is the business of
`search_spaces.physics.constants`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from meshtune.search_spaces.checks import CLOSED, Checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a training code holds beyond what the formulas of `search_spaces.physics.activations` need, tensor by
    tensor.

    norm_bytes: per value of an RMSNorm, beside its input and output. key_value_copies, attention_copies: further copies
    of keys and values, and of attention's answer. gathered_inputs: with sequence parallelism the gathered input of a
    block is kept; else its shard, gathered again (Korthikanti et al. 2022, 4.2.2). dropout: masks of it.
    selective_products: selective recomputation keeps all matrix products' results; else all but attention's scores.
    split_logit_bytes: per logit, more than logit_bytes, where tp splits them. torch_pipeline: torch's runtime, which
    has receive buffers for all micro-batches at once and holds the last stage's results. late_buffers: collectives of
    tensor parallelism run on a stream of their own, whose buffers the allocator gets back late. master_is_shard: ZeRO 3
    shards the float32 weights and has no other copy.
    """

    __pydantic_config__: ClassVar[Any] = CLOSED

    norm_bytes: float = 0.0
    key_value_copies: int = 0
    attention_copies: int = 0
    gathered_inputs: bool = False
    dropout: bool = False
    selective_products: bool = False
    split_logit_bytes: float = 0.0
    torch_pipeline: bool = False
    late_buffers: bool = False
    master_is_shard: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkProfile:
    """One training code and its settings.

    dtype: of the matrix products, by which a device's peak is looked up. Bytes per weight: weight_bytes of the copy
    that computes, gradient_bytes of what gradients add up in, optimizer_bytes of AdamW's state with the float32 master
    copy where there is one. activation_bytes: per value kept for the backward pass. transfer_bytes: per value sent by
    tensor, context, expert and pipeline parallelism. reduce_bytes: per gradient reduced over data parallel ranks.
    gather_bytes: per weight gathered by ZeRO. logit_bytes: per logit held at the loss's peak, all copies together.
    fused_attention: the matrix of scores is never kept (Dao et al. 2022). overlapped_gradients: the reduction of
    gradients runs beside the backward pass. reduces_every_micro_batch: ZeRO 2 and 3 without a pipeline reduce the
    gradients of every micro-batch. overlaps_tensor: the backward pass's tensor-parallel all-reduces run beside
    products. overlapped_gathers: weights that ZeRO 1 and 2 gather arrive beside the forward pass. fused_accumulation:
    products add their gradients up themselves. layer_launch_s: time of the host to launch a layer's forward pass.
    hidden_passes: how often a layer's forward pass reads or writes values of the hidden width outside of products; few
    where kernels are fused. pipeline_hop_s: what each hop of a collective waits while transfers of a pipeline between
    nodes are under way. balances_head: pipeline stages share the layers out with the head's work counted.
    """

    __pydantic_config__: ClassVar[Any] = CLOSED

    name: str
    dtype: str
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    transfer_bytes: float
    reduce_bytes: float
    gather_bytes: float
    logit_bytes: float
    fused_attention: bool = True
    overlapped_gradients: bool = True
    reduces_every_micro_batch: bool = True
    layer_launch_s: float = 1e-3
    pipeline_hop_s: float = 0.0
    hidden_passes: float = 14
    overlaps_tensor: bool = False
    overlapped_gathers: bool = False
    fused_accumulation: bool = False
    balances_head: bool = False
    kept: Kept = Kept()

    def __post_init__(self) -> None:
        checks = Checks()
        numbers = {field.name: getattr(self, field.name) for field in fields(self) if field.type == "float"}
        checks.at_least(0, **numbers)
        checks.done()
