"""Context parallelism: the ranks hold slices of the sequence, and attention sees all of it.

Gathered (Dubey et al. 2024, section 3.3.2) and in a ring (Liu et al. 2023) each rank holds two slices, the i-th from
the front and the i-th from the back, so that causal work is even, and runs fused kernels on blocks that are either
whole or causal: there is no mask of queries by keys. With Ulysses (Jacobs et al. 2023) it holds one. Only key and value
heads travel, not copies of them for the query heads of their group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from meshtune.runners.trainer.model import Transformer, attend_causally
from meshtune.runners.trainer.parallel.attention_kernels import AttentionAnswer, Gradients, Kernel, choose_kernel, merge
from meshtune.runners.trainer.parallel.mesh import Places, exchange
from meshtune.search_spaces.plan import ContextParallel, Plan

_COLLECTIVES = torch.ops._c10d_functional
_WHOLE = slice(None)


def places_of(plan: Plan, context_rank: int, seq_len: int) -> Places:
    """The places of the sequence that a rank of cp holds: one slice, or one from the front and the matching one from
    the back."""
    if plan.cp == 1 or plan.context is ContextParallel.ULYSSES:
        return (_slice(context_rank, plan.cp, seq_len),)
    return tuple(_slice(part, 2 * plan.cp, seq_len) for part in (context_rank, 2 * plan.cp - 1 - context_rank))


def _slice(index: int, parts: int, length: int) -> range:
    return range(index * length // parts, (index + 1) * length // parts)


def spread_attention(model: Transformer, mesh: DeviceMesh, kind: ContextParallel) -> None:
    group = mesh.get_group()
    for layer in model.layer_list():
        if kind is ContextParallel.ULYSSES:
            layer.attention.attend = UlyssesAttention(group)
        else:
            layer.attention.attend = (GatheredKeys if kind is ContextParallel.ALL_GATHER else RingOfKeys)(group)


class UlyssesAttention:
    """All-to-all from slices of the sequence to slices of the heads, and back."""

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


class KeyExchange(ABC):
    """How the keys and values of all ranks come to this one's queries. It keeps this rank's own for the backward pass,
    to which the others' come again. Every call is collective."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out: Tensor = _Blocks.apply(query, key, value, self)  # type: ignore[no-untyped-call]
        return out

    @abstractmethod
    def attend(self, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Any]:
        """The answer, its sums, and the kernel's state."""

    @abstractmethod
    def gradients(self, kernel: Kernel, grad: Tensor, answer: AttentionAnswer) -> Gradients: ...


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, way: KeyExchange) -> Tensor:
        ctx.way, ctx.kernel = way, choose_kernel(query, key, value)
        out, sums, ctx.state = way.attend(ctx.kernel, query, key, value)
        ctx.save_for_backward(query, key, value, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        answer = AttentionAnswer._make((*ctx.saved_tensors, ctx.state))
        return *ctx.way.gradients(ctx.kernel, gradients[0], answer), None


@dataclass(frozen=True, slots=True)
class Block:
    """Some of this rank's queries against some of the keys at hand."""

    queries: slice
    keys: slice
    causal: bool = False


class GatheredKeys(KeyExchange):
    """All keys and values at once."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._size = group.size()
        # Of the slices: in the order of the ranks that hold them, where each stands in the sequence; and back.
        held = [part for rank in range(self._size) for part in (rank, 2 * self._size - 1 - rank)]
        self._order = sorted(range(len(held)), key=held.__getitem__), held

    def attend(self, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Any]:
        keys, values = _heads(self._gather(key, value))
        out = torch.empty_like(query)
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        state = None
        for blocks in self._blocks(query.shape[2], lower_right=kernel.lower_right):
            own = blocks[0].queries
            mixed: Tensor | None = None
            for block in blocks:
                part, part_sums, state = kernel.forward(
                    query[:, :, own], keys[:, :, block.keys], values[:, :, block.keys], causal=block.causal
                )
                if mixed is None:
                    mixed = part if len(blocks) == 1 else part.to(torch.float32, copy=True)
                    sums[:, :, own] = part_sums
                else:
                    merge(mixed, sums[:, :, own], part, part_sums)
            assert mixed is not None
            out[:, :, own] = mixed
        return out, sums, state

    def gradients(self, kernel: Kernel, grad: Tensor, answer: AttentionAnswer) -> Gradients:
        query, key, value, out, sums, state = answer
        every = self._gather(key, value)
        of_query, of_every = torch.zeros_like(query), torch.zeros_like(every)
        (keys, values), (of_keys, of_values) = _heads(every), _heads(of_every)
        for blocks in self._blocks(query.shape[2], lower_right=kernel.lower_right):
            for block in blocks:
                own, theirs = (_WHOLE, _WHOLE, block.queries), (_WHOLE, _WHOLE, block.keys)
                part_of = AttentionAnswer(query[own], keys[theirs], values[theirs], out[own], sums[own], state)
                parts = kernel.backward(grad[own], part_of, causal=block.causal)
                for whole, where, part in zip(
                    (of_query, of_keys, of_values), (own, theirs, theirs), parts, strict=True
                ):
                    whole[where] += part
        del every, keys, values, part_of, parts, part  # before the sum makes its own copies
        return of_query, *self._sum(of_every)

    def _blocks(self, length: int, *, lower_right: bool) -> list[list[Block]]:
        """Of each of this rank's two slices: the keys before it, then its own; at once where the kernel can."""
        half, rank = length // 2, self._group.rank()
        every = []
        for index, part in enumerate((rank, 2 * self._size - 1 - rank)):
            own, first, last = slice(index * half, (index + 1) * half), part * half, (part + 1) * half
            if lower_right or first == 0:
                every.append([Block(own, slice(0, last), causal=True)])
            else:
                every.append([Block(own, slice(0, first)), Block(own, slice(first, last), causal=True)])
        return every

    def _gather(self, key: Tensor, value: Tensor) -> Tensor:
        """Those of all ranks, (length, 2, batch, heads, head_dim), in the order of the sequence."""
        own = torch.stack((key, value)).permute(3, 0, 1, 2, 4).contiguous()
        every = _COLLECTIVES.wait_tensor.default(
            _COLLECTIVES.all_gather_into_tensor.default(own, self._size, self._group.group_name)
        )
        return self._reorder(every, self._order[0])

    def _sum(self, every: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's slices of the sums over all ranks, of what lies as `_gather` returns it."""
        own = _COLLECTIVES.wait_tensor.default(
            _COLLECTIVES.reduce_scatter_tensor.default(
                self._reorder(every, self._order[1]), "sum", self._size, self._group.group_name
            )
        )
        return _heads(own)

    def _reorder(self, sequence: Tensor, order: list[int]) -> Tensor:
        """The slices of a sequence, which comes first in the shape, in this order; copied."""
        parts = sequence.chunk(2 * self._size)
        return torch.cat([parts[index] for index in order])


def _heads(pair: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values, (batch, heads, length, head_dim), of one tensor (length, 2, ...)."""
    keys, values = pair.permute(1, 2, 3, 0, 4)
    return keys, values


class RingOfKeys(KeyExchange):
    """Keys and values go from rank to rank, while this one attends to those at hand. In the backward pass their
    gradients follow them, a step behind, and come home with the last."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._rank, self._size, self._group = group.rank(), group.size(), group

    def attend(self, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Any]:
        others = self._others(self._pass_on(torch.stack((key, value))), query.shape[2])
        part, sums, state = kernel.forward(query, key, value, causal=True)
        # Copies: selective recomputation keeps what a kernel returned.
        mixed, sums = part.to(torch.float32, copy=True), sums.clone(memory_format=torch.contiguous_format)
        for here, own, theirs in others:
            merge(
                mixed[own], sums[own], *kernel.forward(query[own], here[0][theirs], here[1][theirs], causal=False)[:2]
            )
        return torch.empty_like(query).copy_(mixed), sums, state

    def gradients(self, kernel: Kernel, grad: Tensor, answer: AttentionAnswer) -> Gradients:
        query, key, value, out, sums, state = answer
        others = self._others(self._pass_on(torch.stack((key, value))), query.shape[2])
        first, *own_gradients = kernel.backward(grad, answer, causal=True)
        of_query, of_own, home = first.float(), torch.stack(own_gradients), None
        for here, own, theirs in others:
            part_of = AttentionAnswer(query[own], here[0][theirs], here[1][theirs], out[own], sums[own], state)
            part, *parts = kernel.backward(grad[own], part_of, causal=False)
            of_query[own] += part
            of_others = torch.zeros_like(here) if home is None else home.wait()
            for whole, part in zip(of_others, parts, strict=True):
                whole[theirs] += part
            home = self._pass_on(of_others)
        assert home is not None
        of_key, of_value = of_own + home.wait()
        return of_query.to(query.dtype), of_key, of_value

    def _others(self, coming: Arrival, length: int) -> Iterator[tuple[Tensor, tuple[slice, ...], tuple[slice, ...]]]:
        """Of each other rank its keys and values, as they come; which of this one's queries see them, and which of
        them these see. A rank before this one holds the front slice before both of this one's, and its back slice
        behind both; one behind has both its slices between this one's."""
        for step in range(1, self._size):
            here = coming.wait()
            if step + 1 < self._size:
                coming = self._pass_on(here)
            halves = slice(0, length // 2), slice(length // 2, length)
            queries, keys = (_WHOLE, halves[0]) if step <= self._rank else (halves[1], _WHOLE)
            yield here, (_WHOLE, _WHOLE, queries), (_WHOLE, _WHOLE, keys)

    def _pass_on(self, message: Tensor) -> Arrival:
        """To the next rank, from the one before. Through the all-to-all, by which breakdowns know activations."""
        arrived = torch.empty_like(message)
        send, receive = (
            [int(rank % self._size == peer) for peer in range(self._size)] for rank in (self._rank + 1, self._rank - 1)
        )
        work = dist.all_to_all_single(arrived[None], message[None], receive, send, group=self._group, async_op=True)
        return Arrival(arrived, message, work)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message under way. sent: must live until then."""

    arrived: Tensor
    sent: Tensor
    work: Any

    def wait(self) -> Tensor:
        self.work.wait()
        return self.arrived
