"""FrameworkProfile: the differences of training codes under the same Plan: number formats, kernels, overlap.

Bytes are per weight or per value; speeds are in `search_spaces.physics.constants`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from meshtune.search_spaces.checks import CLOSED, Checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Tensors that a training code keeps beyond the formulas of `search_spaces.physics.activations`."""

    __pydantic_config__: ClassVar[Any] = CLOSED

    # Bytes per value of an RMSNorm, beside its input and output.
    norm_bytes: float = 0.0
    # Further copies of keys and values, and of attention's answer.
    key_value_copies: int = 0
    attention_copies: int = 0
    # With sequence parallelism: the gathered input of a block; else its shard (Korthikanti et al. 2022, 4.2.2).
    gathered_inputs: bool = False
    # Masks of dropout.
    dropout: bool = False
    # Selective recomputation keeps the results of all matrix products; else everything but attention's scores.
    selective_products: bool = False
    # Bytes per logit above logit_bytes, where tp splits the logits.
    split_logit_bytes: float = 0.0
    # torch's pipeline runtime: receive buffers for all micro-batches at once, and the last stage's results.
    torch_pipeline: bool = False
    # Tensor-parallel collectives run on their own stream, whose buffers return to the allocator late.
    late_buffers: bool = False
    # ZeRO 3 shards the float32 weights and has no other copy.
    master_is_shard: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkProfile:
    """One training code with its settings."""

    __pydantic_config__: ClassVar[Any] = CLOSED

    name: str
    # Number format of the matrix products; selects the device's peak.
    dtype: str
    # Bytes per weight: of the computing copy; of accumulated gradients; of AdamW's state with a float32 master copy.
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    # Bytes per value kept for the backward pass.
    activation_bytes: float
    # Bytes per value sent by tensor, context, expert and pipeline parallelism.
    transfer_bytes: float
    # Bytes per gradient reduced over data-parallel ranks, and per weight gathered by ZeRO.
    reduce_bytes: float
    gather_bytes: float
    # Bytes per logit at the loss's peak, all copies together.
    logit_bytes: float
    # The matrix of attention scores is never kept (Dao et al. 2022).
    fused_attention: bool = True
    # The reduction of gradients runs beside the backward pass.
    overlapped_gradients: bool = True
    # ZeRO 2 and 3 without a pipeline reduce the gradients of every micro-batch.
    reduces_every_micro_batch: bool = True
    # Host time to launch a layer's forward pass.
    layer_launch_s: float = 1e-3
    # Delay of each hop of a collective while a pipeline's transfers between nodes are under way.
    pipeline_hop_s: float = 0.0
    # Reads or writes of the hidden width in a layer's forward pass outside of products; few with fused kernels.
    hidden_passes: float = 14
    # The backward pass's tensor-parallel all-reduces run beside products.
    overlaps_tensor: bool = False
    # Weights that ZeRO 1 and 2 gather arrive beside the forward pass.
    overlapped_gathers: bool = False
    # Products add their gradients up themselves.
    fused_accumulation: bool = False
    # Pipeline stages share the layers out with the head's work counted.
    balances_head: bool = False
    kept: Kept = Kept()

    def __post_init__(self) -> None:
        checks = Checks()
        numbers = {field.name: getattr(self, field.name) for field in fields(self) if field.type == "float"}
        checks.at_least(0, **numbers)
        checks.done()
