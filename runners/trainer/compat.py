"""The differences between the torch versions that the trainer runs under (2.9 to 2.13), and a way round a gloo bug.
`trainer.exact` needs 2.13 itself. Not mended: schedule zbv under torch 2.9 on CPU, where gloo loses a connection."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.pipelining import PipelineStage

# torch 2.13 calls them so; before, all_gather_into_tensor and reduce_scatter_tensor, which it deprecates.
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

# torch 2.10 made it public; torch 2.9 has it as well.
grouped_mm: Any = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm


def skip_first_exchange(stage: PipelineStage) -> PipelineStage:
    """Before torch 2.11 a stage first sends its neighbours 8 bytes into a buffer of 4, on which gloo aborts; NCCL needs
    it."""
    if stage.device.type == "cpu" and hasattr(stage, "_get_init_p2p_neighbors_ops"):
        setattr(stage, "_get_init_p2p_neighbors_ops", list)  # noqa: B010  # mypy: no method of this version
    return stage


# Settings of CUDA's allocator: the name since torch 2.9; CUDA's own and ROCm's, which torch reads as well. Which one
# wins differs between the versions, so none is set beside another.
_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def grow_segments() -> None:
    """Let CUDA's allocator grow its segments in place, against fragmentation, as production codes do; where the
    environment has settings, they hold alone. torch reads them when it first uses CUDA. Untested on a GPU."""
    if not any(name in os.environ for name in _ALLOCATOR_SETTINGS):
        os.environ[_ALLOCATOR_SETTINGS[0]] = "expandable_segments:True"


# torch's gloo backend with one worker thread per group, in place of its two. In torch 2.13 every worker notes the name
# of the collective that it finished, in one string of its group and without a lock (`ProcessGroupGloo::runLoop`,
# `lastCompletedWorkName`). Two workers that do so at once corrupt the heap as soon as one of the names does not fit
# into the string object: the rank dies by SIGABRT, at any later time. One worker runs a group's collectives in the
# order in which they were called, as NCCL does.
BACKEND = "gloo_in_order"


@cache
def register_gloo() -> str:
    """Make the backend known to torch; return its name. Groups made later inherit it."""
    dist.Backend.register_backend(BACKEND, _create, devices=["cpu"])
    return BACKEND


def _create(store: Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    kind: Any = dist.ProcessGroupGloo
    options = kind._Options()
    options._threads = 1
    options._timeout = timeout
    # As torch's own: the interfaces that the environment names, else the one of this host's name.
    names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    options._devices = [kind.create_device(interface=name) for name in names] or [kind.create_default_device()]
    group: dist.ProcessGroupGloo = kind(store, rank, size, options)
    return group
