"""The feed-forward block of a layer: up, perhaps a gate, down."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshtune.search_spaces.model import Activation, ModelSpec


class _SwiGLU(torch.autograd.Function):
    """Keeps its two inputs alone, as Megatron's fused kernel; autograd would keep SiLU's answer as well."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gate, up = ctx.saved_tensors
        gate_gradient = torch.ops.aten.silu_backward(gradients[0] * up, gate)
        return gate_gradient, F.silu(gate).mul_(gradients[0])


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    out: Tensor = _SwiGLU.apply(gate, up)  # type: ignore[no-untyped-call]
    return out


class FeedForward(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.up = nn.Linear(spec.hidden, spec.ffn, bias=False)
        gated = spec.activation is Activation.SWIGLU
        self.gate = nn.Linear(spec.hidden, spec.ffn, bias=False) if gated else None
        self.down = nn.Linear(spec.ffn, spec.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.up(x)) if self.gate is None else swiglu(self.gate(x), self.up(x))
        out: Tensor = self.down(inner)
        return out
