"""Layers' products in 8 bits: weights and activations in e4m3, gradients in e5m2 (Micikevicius et al. 2022), each
tensor scaled as it is cast so that its largest value is the format's largest. Head and attention stay as they are. It
has run on CPUs alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from meshtune.runners.trainer.model import Transformer
from meshtune.search_spaces.checks import InvalidValue, Problem

_VALUES, _GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2


class Float8Linear(nn.Linear):
    """A projection without a bias."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Projection.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return out


def compute_in_float8(model: Transformer, device: torch.device) -> None:
    """Turn the layers' projections into such. Raises InvalidValue where the device has no such products."""
    if device.type == "cuda" and (torch.version.hip or torch.cuda.get_device_capability(device) < (8, 9)):
        raise InvalidValue([Problem("float8", "needs an NVIDIA device of compute capability 8.9 or newer")])
    for module in model.layers.modules():
        if type(module) is nn.Linear:
            module.__class__ = Float8Linear


class _Projection(torch.autograd.Function):
    """Keeps what the product in 16 bits keeps, and casts it again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        out = _product(_cast(x.flatten(0, -2), _VALUES), _cast(weight.t(), _VALUES), x.dtype, quickly=True)
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        given, factor = _cast(gradients[0].flatten(0, -2), _GRADIENTS)
        of_x = _product((given, factor), _cast(weight, _VALUES), x.dtype)
        of_weight = _product((given.t(), factor), _cast(x.flatten(0, -2), _VALUES), weight.dtype)
        return of_x.view_as(x), of_weight


# A matrix in 8 bits, and by what it is to be multiplied, in float32.
Scaled = tuple[Tensor, Tensor]


def _cast(x: Tensor, dtype: torch.dtype) -> Scaled:
    most = torch.finfo(dtype).max
    factor = x.abs().amax().float().clamp(min=1e-12) / most  # of zeros alone there is no largest value
    return (x.float() / factor).clamp(-most, most).to(dtype), factor


def _product(left: Scaled, right: Scaled, dtype: torch.dtype, *, quickly: bool = False) -> Tensor:
    """(m, k) by (k, n). quickly: sums with fewer bits, which torchao allows forward alone."""
    # cuBLAS takes a row-major by a column-major matrix in 8 bits, and no other.
    rows, columns = left[0].contiguous(), right[0].t().contiguous().t()
    return torch._scaled_mm(rows, columns, left[1], right[1], out_dtype=dtype, use_fast_accum=quickly)
