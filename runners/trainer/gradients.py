"""The sum of one parameter's gradients over the micro-batches of a step, in float32 whatever the weights are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Of a 16-bit product that is added in float32 where no kernel does both: the rows that exist at a time.
_ROWS_AT_ONCE = 1024


@dataclass(eq=False, slots=True)
class GradientSum:
    """total: of the parameter's shape, in float32. empty: of nothing yet, so that the first gradient overwrites it."""

    total: Tensor
    empty: bool = True

    def add(self, gradient: Tensor) -> None:
        if self.empty:
            self.total.copy_(gradient)
        else:
            self.total.add_(gradient)
        self.empty = False

    def add_product(self, left: Tensor, right: Tensor, factor: float) -> None:
        """Add factor * left^T right, of (tokens, rows) and (tokens, columns), both in the weights' format. On CUDA one
        kernel adds in float32, as Megatron's fused accumulation; elsewhere the product of a call is rounded first."""
        beta = int(not self.empty)
        if left.dtype is torch.float32:
            self.total.addmm_(left.T, right, beta=beta, alpha=factor)
        elif left.is_cuda and torch.version.hip is None:
            torch.addmm(self.total, left.T, right, torch.float32, beta=beta, alpha=factor, out=self.total)
        else:
            if self.empty:
                self.total.zero_()
            parts = torch.split(self.total, _ROWS_AT_ONCE), torch.split(left, _ROWS_AT_ONCE, 1)
            for part, rows in zip(*parts, strict=True):
                part.add_(rows.T @ right, alpha=factor)
        self.empty = False
