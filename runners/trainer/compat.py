"""The differences between the torch versions that the trainer runs under: 2.9 to 2.13, by the names they have.

Sites have their own builds of torch. `trainer.exact` replaces functions inside of torch, and needs 2.13 itself.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

# torch 2.13 calls them so; before, all_gather_into_tensor and reduce_scatter_tensor, which it deprecates.
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def skip_first_exchange(stage: PipelineStage) -> PipelineStage:
    """Before torch 2.11 a stage first sends its neighbours 8 bytes into a buffer of 4, on which gloo aborts; NCCL needs
    the exchange, to connect."""
    if stage.device.type == "cpu" and hasattr(stage, "_get_init_p2p_neighbors_ops"):
        stage._get_init_p2p_neighbors_ops = list
    return stage


def without_outputs(schedule: Any) -> dict[str, bool]:
    """Options of a schedule's `step` so that it does not keep and copy all micro-batches' logits; torch 2.9 cannot."""
    return {"return_outputs": False} if "return_outputs" in signature(schedule.step).parameters else {}
