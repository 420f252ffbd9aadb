"""All-to-all over a group, as an operation that autograd and recomputation know."""

from __future__ import annotations

import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor


def exchange(
    rows: Tensor, group: dist.ProcessGroup, *, receive: list[int] | None = None, send: list[int] | None = None
) -> Tensor:
    """Send the next `send` rows to each rank in turn, and return the `receive` rows from each; None: equally many.

    Differentiable: gradients take the way back.
    """
    out: Tensor = functional.wait_tensor(functional.all_to_all_single_autograd(rows, receive, send, group))  # type: ignore[no-untyped-call]
    return out


def exchange_numbers(numbers: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The same for equally many integers to each rank, which have no gradient."""
    out: Tensor = functional.wait_tensor(functional.all_to_all_single(numbers, None, None, group))  # type: ignore[no-untyped-call]
    return out
