"""Context parallelism: each rank holds a slice of the sequence, and attention alone looks beyond it.

Ring attention (Liu et al. 2023) uses torch's own kernels, for CUDA alone, by an API that is private in torch 2.13. It
has not run on CUDA devices: tests drive it over gloo with a CPU kernel. Plans that want it on CPU are refused."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from meshtune.runners.trainer.blocks import Attend, Places, attend_causally, place_tensor
from meshtune.runners.trainer.model import Transformer
from meshtune.runners.trainer.parallel.mesh import exchange
from meshtune.search_spaces.plan import ContextParallel, Plan


def places_of(plan: Plan, context_rank: int, seq_len: int) -> Places:
    """The places of the sequence that a rank of cp holds: one slice; in a ring one from the front and the matching one
    from the back, for equal work under the causal mask (Dubey et al. 2024, section 3.3.2)."""
    if plan.cp == 1 or plan.context is not ContextParallel.RING:
        return (_slice(context_rank, plan.cp, seq_len),)
    return tuple(_slice(part, 2 * plan.cp, seq_len) for part in (context_rank, 2 * plan.cp - 1 - context_rank))


def _slice(index: int, parts: int, length: int) -> range:
    return range(index * length // parts, (index + 1) * length // parts)


def spread_attention(model: Transformer, mesh: DeviceMesh, kind: ContextParallel) -> None:
    for layer in model.layer_list():
        layer.attention.attend = _build_attend(model.places, mesh, kind)


def _build_attend(places: Places, mesh: DeviceMesh, kind: ContextParallel) -> Attend:
    if kind is ContextParallel.ALL_GATHER:
        return GatheredAttention(places, mesh)
    if kind is ContextParallel.ULYSSES:
        return UlyssesAttention(mesh.get_group())
    return RingAttention(places, mesh)


class GatheredAttention:
    """Own queries against everybody's keys and values, gathered (Dubey et al. 2024). The mask is a tensor, so torch's
    flash kernel does not apply."""

    def __init__(self, places: Places, mesh: DeviceMesh) -> None:
        self._places, self._mesh = places, mesh

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = self._gather(key), self._gather(value)
        own, every = (place_tensor(p, query.device) for p in (self._places, (range(key.shape[2]),)))
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=own[:, None] >= every, enable_gqa=query.shape[1] != key.shape[1]
        )

    def _gather(self, heads: Tensor) -> Tensor:
        """The whole sequence. Its gradient is a sum over the ranks."""
        cut = DTensor.from_local(heads.contiguous(), self._mesh, [Shard(2)], run_check=False)
        whole: Tensor = cut.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return whole


class UlyssesAttention:
    """All-to-all from slices of the sequence to slices of the heads, and back (Jacobs et al. 2023,
    DeepSpeed-Ulysses)."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        whole = (self._swap(heads, cut=1, join=2) for heads in (query, key, value))
        return self._swap(attend_causally(*whole), cut=2, join=1)

    def _swap(self, x: Tensor, cut: int, join: int) -> Tensor:
        """Send the i-th part along `cut` to rank i; what arrives is put together along `join`."""
        parts = torch.stack(x.chunk(self._group.size(), cut))
        arrived = exchange(parts.flatten(0, 1), self._group).view_as(parts)
        return torch.cat(arrived.unbind(0), join)


class _Core(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend_causally(query, key, value)


class RingAttention:
    """Keys and values pass around the ring. Grouped key/value heads are repeated first, as torch's ring needs."""

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
