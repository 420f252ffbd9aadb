"""Ring attention (Liu et al. 2023) by torch's own context-parallel kernels, which exist for CUDA alone.

The API is private in torch 2.13. This project has had no CUDA devices to run it on: tests drive it over gloo with a
CPU kernel in the place of CUDA's, so NCCL and the real kernels are not verified. Plans that want it on CPU are refused.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from meshtune.runners.trainer.attention import Places, attend_causally, place_tensor


class _Core(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend_causally(query, key, value)


class RingAttention:
    """Keys and values pass around the ring. Grouped key/value heads are repeated first: torch's ring needs as many
    as there are query heads, so a ring carries more than the model strictly asks for."""

    def __init__(self, places: Places, mesh: DeviceMesh) -> None:
        from torch.distributed.tensor.experimental._attention import (
            _context_parallel_shard,
            _ContextParallel,
            _enable_context_parallel_dispatcher,
        )
        from torch.distributed.tensor.experimental._context_parallel._load_balancer import _HeadTailLoadBalancer

        device = torch.device(mesh.device_type)
        length = mesh.size() * sum(map(len, places))
        balancer = _HeadTailLoadBalancer(length, mesh.size(), device)
        # This call also switches torch's global options to this mode and balance.
        (theirs,) = _context_parallel_shard(mesh, [torch.arange(length, device=device)], [0], balancer)
        if not isinstance(theirs, Tensor) or not torch.equal(theirs, place_tensor(places, device)):
            raise RuntimeError(f"torch gives this rank other places of the sequence than {places}")
        _enable_context_parallel_dispatcher()
        style = _ContextParallel(seq_dim=2, attention_type=_ContextParallel.AttentionType.SDPA)
        self._core = style._apply(_Core(), mesh)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        repeats = query.shape[1] // key.shape[1]
        key, value = (heads.repeat_interleave(repeats, 1) for heads in (key, value))
        mixed: Tensor = self._core(query, key, value)
        return mixed
