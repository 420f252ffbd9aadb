"""Fused attention kernels as pairs of calls, forward and backward, whose answers over parts of the keys can be merged.

A kernel returns with its answer the logarithm of the softmax's sum, by which two answers over different keys are
weighed; its backward pass, given the merged answer and sum, returns the gradients of one part (Liu et al. 2023). Keys
and values may have fewer heads than queries. Dropout is none, scores are divided by sqrt(head_dim). The two for CUDA
have run on no GPU yet: tests check their shapes on torch's meta device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention

_ATEN = torch.ops.aten
# What the efficient kernel wants the sums of a head padded to (`kAlignLSE` in ATen's kernel_backward.h).
_EFFICIENT_ALIGNMENT = 32


# Of query, key and value.
Gradients = tuple[Tensor, Tensor, Tensor]


class AttentionAnswer(NamedTuple):
    """An answer with what it is of. state: see Kernel."""

    query: Tensor
    key: Tensor
    value: Tensor
    out: Tensor
    sums: Tensor
    state: Any


class Kernel(ABC):
    """All tensors are (batch, heads, length, head_dim), sums (batch, heads, length) in float32.

    lower_right: with more keys than queries, causal means that the last query sees the last key; else such a call is
    not causal attention. state: what forward returns third, of any part: backward takes it, and without dropout reads
    nothing from it."""

    lower_right = False

    @abstractmethod
    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> tuple[Tensor, Tensor, Any]:
        """The answer, its sums, and the state."""

    @abstractmethod
    def backward(self, grad: Tensor, answer: AttentionAnswer, *, causal: bool) -> Gradients:
        """The gradients by one part of the keys, of an answer over all of them."""


class FlashOnCpu(Kernel):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> tuple[Tensor, Tensor, Any]:
        return *_ATEN._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal), None

    def backward(self, grad: Tensor, answer: AttentionAnswer, *, causal: bool) -> Gradients:
        gradients: Gradients = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, *answer[:5], 0.0, causal
        )
        return gradients


class Flash(Kernel):
    """CUDA's (Dao 2023), for 16 bits."""

    lower_right = True

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> tuple[Tensor, Tensor, Any]:
        out, sums, *rest = _ATEN._scaled_dot_product_flash_attention(query, key, value, 0.0, causal)
        return out, sums, rest[4:6]

    def backward(self, grad: Tensor, answer: AttentionAnswer, *, causal: bool) -> Gradients:
        query, key, value, out, sums, state = answer
        lengths = query.shape[2], key.shape[2]
        # The kernel takes the sums as they would lie by themselves (torch's own ring copies them for this as well).
        gradients: Gradients = _ATEN._scaled_dot_product_flash_attention_backward(
            grad, query, key, value, out, sums.contiguous(), None, None, *lengths, 0.0, causal, *state
        )
        return gradients


class Efficient(Kernel):
    """CUDA's (Rabe and Staats 2021), for float32 and devices without flash attention: heads are repeated."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> tuple[Tensor, Tensor, Any]:
        key, value = (_repeat(heads, query) for heads in (key, value))
        out, sums, *state = _ATEN._scaled_dot_product_efficient_attention(query, key, value, None, True, 0.0, causal)
        return out, sums[..., : query.shape[2]], state

    def backward(self, grad: Tensor, answer: AttentionAnswer, *, causal: bool) -> Gradients:
        query, key, value, out, sums, state = answer
        heads = key.shape[1]
        # The forward kernel pads so, with what makes the exponential of a score 0.
        sums = F.pad(sums, (0, -sums.shape[-1] % _EFFICIENT_ALIGNMENT), value=torch.inf)
        wanted = [True, True, True, False]
        of_query, of_key, of_value, _ = _ATEN._scaled_dot_product_efficient_attention_backward(
            grad, query, _repeat(key, query), _repeat(value, query), None, out, sums, *state, 0.0, wanted, causal
        )
        return of_query, *(gradient.unflatten(1, (heads, -1)).sum(2) for gradient in (of_key, of_value))


def _repeat(heads: Tensor, query: Tensor) -> Tensor:
    return heads.repeat_interleave(query.shape[1] // heads.shape[1], 1)


def choose_kernel(query: Tensor, key: Tensor, value: Tensor) -> Kernel:
    """The fastest that takes such tensors."""
    if query.device.type == "cpu":
        return FlashOnCpu()
    # Other head sizes torch pads before the kernel.
    fits = query.shape[-1] % 8 == 0
    return (
        Flash()
        if fits and can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, False, True))
        else Efficient()
    )


def merge(out: Tensor, sums: Tensor, more: Tensor, more_sums: Tensor) -> None:
    """Let the answer `out`, in float32, with its sums also have been over the keys of `more`; in place."""
    out.lerp_(more.to(out.dtype), torch.sigmoid(more_sums - sums).unsqueeze(-1))
    sums.copy_(torch.logaddexp(sums, more_sums))
