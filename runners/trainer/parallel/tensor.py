"""One layer over several ranks: tensor parallelism as in Megatron (Shoeybi et al. 2019), with sequence parallelism
(Korthikanti et al. 2022) or not.

Weights are this rank's parts, as plain tensors, and a block communicates where it begins and where it ends: torch's
DTensor, which decides for every operator anew, takes several times a layer's own host time. Between blocks and stages,
activations are split along the sequence, or whole on every rank. Logits are split along the vocabulary. A mixture of
experts is cut inside of every expert."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from meshtune.runners.trainer.head import own_rows, sum_over
from meshtune.runners.trainer.mixture import Mixture
from meshtune.runners.trainer.model import Cut, Layer, Transformer

SEQUENCE = 1
_COLLECTIVES = torch.ops._c10d_functional


def _gather(part: Tensor, group: dist.ProcessGroup, axis: int) -> Tensor:
    """The parts of all ranks, joined along the axis."""
    size = group.size()
    rows = _COLLECTIVES.wait_tensor.default(
        _COLLECTIVES.all_gather_into_tensor.default(part.contiguous(), size, group.group_name)
    )
    whole: Tensor = rows.view(size, -1, *rows.shape[1:]).movedim(0, axis).flatten(axis, axis + 1)
    return whole


def _sum_parts(whole: Tensor, group: dist.ProcessGroup, axis: int) -> Tensor:
    """This rank's part, along the axis, of the sum over all ranks."""
    size = group.size()
    parts = whole.reshape(*whole.shape[:axis], size, -1, *whole.shape[axis + 1 :])
    rows = parts.movedim(axis, 0).flatten(0, 1).contiguous()
    part: Tensor = _COLLECTIVES.wait_tensor.default(
        _COLLECTIVES.reduce_scatter_tensor.default(rows, "sum", size, group.group_name)
    )
    return part


class _Relayout(torch.autograd.Function):
    """`there` of a tensor, and `back` of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.back(gradients[0]), None, None


def _relayout(x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
    out: Tensor = _Relayout.apply(x, there, back)  # type: ignore[no-untyped-call]
    return out


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)


def shared(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """What is the same on all ranks, and has another part of its gradient on each."""
    return _relayout(x, _same, partial(sum_over, group))


def gathered(part: Tensor, group: dist.ProcessGroup, axis: int) -> Tensor:
    """All ranks' parts along the axis, each of which has another part of its gradient on each rank."""
    return _relayout(part, partial(_gather, group=group, axis=axis), partial(_sum_parts, group=group, axis=axis))


def enter(x: Tensor, group: dist.ProcessGroup, *, sequence_parallel: bool) -> Tensor:
    """All tokens, for weights that are cut."""
    return gathered(x, group, SEQUENCE) if sequence_parallel else shared(x, group)


def leave(x: Tensor, group: dist.ProcessGroup, *, sequence_parallel: bool) -> Tensor:
    """The sum of what the ranks' parts of weights made, in the layout between blocks."""
    if not sequence_parallel:
        return _relayout(x, partial(sum_over, group), _same)
    return _relayout(x, partial(_sum_parts, group=group, axis=SEQUENCE), partial(_gather, group=group, axis=SEQUENCE))


class SharedLinear(nn.Module):
    """A whole weight for all tokens: each rank computes with these rows of it, and uses its own part of the answers."""

    def __init__(self, linear: nn.Module, group: dist.ProcessGroup, rows: slice = slice(None)) -> None:
        super().__init__()
        self.weight = linear.get_parameter("weight")
        self._group, self._rows = group, rows

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, shared(self.weight, self._group)[self._rows])


class SequenceNorm(nn.Module):
    """A norm of this rank's slice of the sequence."""

    def __init__(self, norm: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
            raise TypeError(f"a norm, not {type(norm).__name__}")
        self.weight = norm.weight
        self.bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
        self._layer = isinstance(norm, nn.LayerNorm)
        self._epsilon, self._group = norm.eps, group

    def forward(self, x: Tensor) -> Tensor:
        weight = shared(self.weight, self._group)
        if not self._layer:
            return F.rms_norm(x, weight.shape, weight, self._epsilon)
        bias = None if self.bias is None else shared(self.bias, self._group)
        return F.layer_norm(x, weight.shape, weight, bias, self._epsilon or 0.0)


class VocabularyEmbedding(nn.Module):
    """Of the rows of the vocabulary that this rank holds."""

    def __init__(self, embedding: nn.Embedding, group: dist.ProcessGroup, *, sequence_parallel: bool) -> None:
        super().__init__()
        self.weight = embedding.weight
        self._first = _first_row(embedding.num_embeddings, group)
        self._leave = partial(leave, group=group, sequence_parallel=sequence_parallel)

    def forward(self, tokens: Tensor) -> Tensor:
        rows, outside = own_rows(tokens, self._first, len(self.weight))
        return self._leave(F.embedding(rows, self.weight).masked_fill(outside[..., None], 0.0))


class SequencePositions(nn.Module):
    """Position embeddings of this rank's slice of the sequence, from a whole weight."""

    def __init__(self, embedding: nn.Embedding, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.weight = embedding.weight
        self._group = group

    def forward(self, places: Tensor) -> Tensor:
        own = places.chunk(self._group.size())[self._group.rank()]
        return F.embedding(own, shared(self.weight, self._group))


def _first_row(rows: int, group: dist.ProcessGroup) -> int:
    """As `Tensor.chunk` cuts them."""
    return group.rank() * -(-rows // group.size())


def shard_tensors(model: Transformer, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Keep this rank's part of every weight, and let the blocks communicate. Notes the cuts in `model.cuts`."""
    group = mesh.get_group()
    rank, size = group.rank(), group.size()
    how: dict[str, Any] = {"group": group, "sequence_parallel": sequence_parallel}

    def cut(name: str, axis: int) -> None:
        owner, _, kind = name.rpartition(".")
        whole = model.get_parameter(name)
        model.cuts[name] = Cut(whole.shape, axis, rank, size)
        setattr(model.get_submodule(owner), kind, nn.Parameter(model.cuts[name].part(whole.detach()).contiguous()))

    if model.embedding is not None:
        cut("embedding.weight", 0)
        model.embedding = VocabularyEmbedding(model.embedding, **how)  # type: ignore[arg-type]  # an nn.Embedding
    if model.position is not None and sequence_parallel:
        model.position = SequencePositions(model.position, group)  # type: ignore[arg-type]  # an nn.Embedding
    if model.head is not None:
        cut("head.weight", 0)
        model.head.group, model.head.first_row = group, _first_row(model.spec.vocab, group)
        _communicate(model.head, before=partial(enter, **how))
    if model.norm is not None and sequence_parallel:
        model.norm = SequenceNorm(model.norm, group)
    for index, layer in zip(model.layers, model.layer_list(), strict=True):
        _shard_layer(layer, f"layers.{index}", cut, group, model.spec.kv_heads)
        if sequence_parallel:
            layer.attention_norm = SequenceNorm(layer.attention_norm, group)
            layer.feed_forward_norm = SequenceNorm(layer.feed_forward_norm, group)
        for block in (layer.attention, layer.feed_forward):
            _communicate(block, before=partial(enter, **how), after=partial(leave, **how))
    model.tie()


def _shard_layer(
    layer: Layer, name: str, cut: Callable[[str, int], None], group: dist.ProcessGroup, kv_heads: int
) -> None:
    cut(f"{name}.attention.query.weight", 0)
    cut(f"{name}.attention.output.weight", 1)
    for projection in ("key", "value"):
        if kv_heads >= group.size():
            cut(f"{name}.attention.{projection}.weight", 0)
        else:  # fewer heads than ranks: each rank needs one
            head = group.rank() * kv_heads // group.size()
            rows = slice(head * layer.attention.head_dim, (head + 1) * layer.attention.head_dim)
            whole = layer.attention.get_submodule(projection)
            setattr(layer.attention, projection, SharedLinear(whole, group, rows))
    if isinstance(layer.feed_forward, Mixture):
        layer.feed_forward.router = SharedLinear(layer.feed_forward.router, group)  # type: ignore[assignment]  # same call
        for projection, _ in layer.feed_forward.experts.named_parameters():
            cut(f"{name}.feed_forward.experts.{projection}", 1)
    else:
        for projection, _ in layer.feed_forward.named_children():
            cut(f"{name}.feed_forward.{projection}.weight", int(projection == "down"))


def _communicate(
    module: nn.Module, *, before: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor] | None = None
) -> None:
    module.register_forward_pre_hook(lambda _, inputs: (before(inputs[0]), *inputs[1:]))
    if after is not None:
        module.register_forward_hook(lambda _, __, out: after(out))
