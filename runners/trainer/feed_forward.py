"""The feed-forward block of a layer: up, perhaps a gate, down."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshtune.search_spaces.model import Activation, ModelSpec


class _SwiGLU(torch.autograd.Function):
    """Keeps its input alone, as Megatron's fused kernel; autograd would keep SiLU's answer as well."""

    @staticmethod
    def forward(ctx: Any, gate_and_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_and_up)
        gate, up = gate_and_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gate_and_up,) = ctx.saved_tensors
        both = torch.empty_like(gate_and_up)
        (gate, up), (of_gate, of_up) = (x.chunk(2, -1) for x in (gate_and_up, both))
        torch.mul(gradients[0], up, out=of_gate)
        torch.ops.aten.silu_backward(of_gate, gate, grad_input=of_gate)
        torch.ops.aten.silu.out(gate, out=of_up).mul_(gradients[0])
        return both


def swiglu(gate_and_up: Tensor) -> Tensor:
    """The halves of the last axis are the products of the gate's and the up projection, whose weights are one."""
    if torch.compiler.is_compiling():  # it writes no halves in place, and decides itself what is kept
        gate, up = gate_and_up.chunk(2, -1)
        return F.silu(gate) * up
    out: Tensor = _SwiGLU.apply(gate_and_up)  # type: ignore[no-untyped-call]
    return out


class FeedForward(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        gated = spec.activation is Activation.SWIGLU
        self.up = nn.Linear(spec.hidden, spec.ffn * (1 + gated), bias=False)
        self.down = nn.Linear(spec.ffn, spec.hidden, bias=False)
        self._activate = swiglu if gated else F.gelu

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self._activate(self.up(x)))
        return out
