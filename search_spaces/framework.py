"""Framework: what two training codes do differently under the same Plan: number formats, kernels, overlap.

Numbers that are counted per weight or per value; how fast anything runs is the business of `search_spaces.constants`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from search_spaces.checks import CLOSED, Checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One training code and its settings.

    dtype: of the matrix products, by which a device's peak is looked up. Bytes per weight: weight_bytes of the copy
    that computes, gradient_bytes of what gradients add up in, optimizer_bytes of AdamW's state with the float32 master
    copy where there is one. activation_bytes: per value kept for the backward pass. transfer_bytes: per value sent by
    tensor, context, expert and pipeline parallelism. reduce_bytes: per gradient reduced over data parallel ranks.
    gather_bytes: per weight gathered by ZeRO. logit_bytes: per logit held at the loss's peak, all copies together.
    fused_attention: the matrix of scores is never kept (Dao et al. 2022). overlapped_gradients: the reduction of
    gradients runs beside the backward pass. reduces_every_micro_batch: ZeRO 2 and 3 without a pipeline reduce the
    gradients of every micro-batch.
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

    def __post_init__(self) -> None:
        checks = Checks()
        for name in ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "transfer_bytes"):
            checks.at_least(0, **{name: getattr(self, name)})
        for name in ("reduce_bytes", "gather_bytes", "logit_bytes"):
            checks.at_least(0, **{name: getattr(self, name)})
        checks.done()


# The built-in trainer's: runners/trainer/optimizer.py keeps float32 masters and gradients beside 16-bit weights.
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
)
# Megatron-DeepSpeed in mixed precision: 2 + 2 bytes of weights and gradients, 12 of master and moments
# (Rajbhandari et al. 2020, section 3.1), unfused attention before FlashAttention, one reduction at the end.
MEGATRON_DEEPSPEED = Framework(
    name="Megatron-DeepSpeed, fp16",
    dtype="float16",
    weight_bytes=2,
    gradient_bytes=2,
    optimizer_bytes=12,
    activation_bytes=2,
    transfer_bytes=2,
    reduce_bytes=2,
    gather_bytes=2,
    logit_bytes=6,
    fused_attention=False,
    overlapped_gradients=False,
)
# nanotron: bf16 with float32 gradient accumulation (the accumulated gradients are what is reduced).
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
)
