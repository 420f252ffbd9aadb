"""Dynamic loss scaling of float16, in which small gradients would be 0 (Micikevicius et al. 2018)."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

# As torch.amp.GradScaler's. Megatron begins at 2**32 and comes down.
INITIAL_FACTOR = 2.0**16
GROWTH, BACKOFF = 2.0, 0.5
GROWTH_INTERVAL = 2000


class LossScaler:
    """factor: what the loss is multiplied by for the backward pass, equal on all ranks. Halved after a step whose
    gradients are not finite, doubled after 2000 in a row whose gradients are. skipped: how many moved no weight."""

    def __init__(self, device: torch.device) -> None:
        self.factor, self.skipped = INITIAL_FACTOR, 0
        self._device, self._finite_in_a_row = device, 0

    def unscale(self, gradients: list[Tensor]) -> bool:
        """Divide the gradients by the factor in place; return whether those of all ranks are finite, else the step must
        be skipped. Then adjust the factor. Collective over all ranks, and waits for the device, as Megatron does."""
        found = torch.zeros((), device=self._device)
        reciprocal = torch.full((), 1 / self.factor, device=self._device)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, reciprocal)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        if found.item():
            self.skipped += 1
            self.factor, self._finite_in_a_row = self.factor * BACKOFF, 0
            return False
        self._finite_in_a_row += 1
        if self._finite_in_a_row == GROWTH_INTERVAL:
            self.factor, self._finite_in_a_row = self.factor * GROWTH, 0
        return True
