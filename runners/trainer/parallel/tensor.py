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
from meshtune.runners.trainer.model import Attention, Cut, Layer, Transformer, is_of_norm, joined_weights

SEQUENCE = 1
_COLLECTIVES = torch.ops._c10d_functional


def _gather(part: Tensor, group: str, size: int, axis: int) -> Tensor:
    """The parts of all ranks, joined along the axis. Split and join are the form in which inductor's pass for
    asynchronous tensor parallelism (torch/_inductor/fx_passes/micro_pipeline_tp.py) knows a gather."""
    rows = _COLLECTIVES.all_gather_into_tensor.default(part.contiguous(), size, group)
    rows = _COLLECTIVES.wait_tensor.default(rows)
    if _lies_in_order(part, axis):
        in_order: Tensor = rows.view(*part.shape[:axis], -1, *part.shape[axis + 1 :])
        return in_order
    return torch.cat(torch.split(rows, part.shape[0]), axis)


def _sum_parts(whole: Tensor, group: str, size: int, axis: int) -> Tensor:
    """This rank's part, along the axis, of the sum over all ranks; in the form that the same pass knows."""
    if _lies_in_order(whole, axis):
        rows = whole.contiguous().view(size * whole.shape[0], -1, *whole.shape[axis + 1 :])
    else:
        rows = torch.cat(torch.split(whole, whole.shape[axis] // size, axis))
    rows = _COLLECTIVES.reduce_scatter_tensor.default(rows, "sum", size, group)
    part: Tensor = _COLLECTIVES.wait_tensor.default(rows)
    return part


def _lies_in_order(x: Tensor, axis: int) -> bool:
    """Whether parts along the axis lie one after the other in memory: no copy. The compiler leaves out its own."""
    return axis == 1 and x.shape[0] == 1 and not torch.compiler.is_compiling()


# In these, arguments and what the context keeps are tensors, names and numbers: all that the compiler follows.
class _Moved(torch.autograd.Function):
    """A gather, or the sum of parts: each is what takes the other's gradients back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gathers: bool, *how: Any) -> Tensor:
        ctx.gathers, ctx.how = gathers, how
        return _gather(x, *how) if gathers else _sum_parts(x, *how)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        back = _sum_parts if ctx.gathers else _gather
        return back(gradients[0], *ctx.how), None, None, None, None


class _Summed(torch.autograd.Function):
    """The sum over the ranks, or `x` itself, whose gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shared: bool, group: str) -> Tensor:
        ctx.group, ctx.shared = group, shared
        return x.view_as(x) if shared else sum_over(group, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return sum_over(ctx.group, gradients[0]) if ctx.shared else gradients[0], None, None


def cross(x: Tensor, enters: bool, group: dist.ProcessGroup, *, sequence_parallel: bool) -> Tensor:
    """Into a block all tokens, for weights that are cut; out of it the sum of what the ranks' parts of weights made, in
    the layout between blocks."""
    if sequence_parallel:
        moved: Tensor = _Moved.apply(x, enters, group.group_name, group.size(), SEQUENCE)  # type: ignore[no-untyped-call]
        return moved
    out: Tensor = _Summed.apply(x, enters, group.group_name)  # type: ignore[no-untyped-call]
    return out


class SharedLinear(nn.Module):
    """A whole weight for all tokens, of which this rank computes with some rows."""

    def __init__(self, weight: Tensor, rows: slice) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self._rows = rows

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight[self._rows])


class VocabularyEmbedding(nn.Module):
    """Of the rows of the vocabulary that this rank holds."""

    def __init__(self, embedding: nn.Embedding, group: dist.ProcessGroup, *, sequence_parallel: bool) -> None:
        super().__init__()
        self.weight = embedding.weight
        self._first = _first_row(embedding.num_embeddings, group)
        self._leave = partial(cross, enters=False, group=group, sequence_parallel=sequence_parallel)

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
        return F.embedding(places.chunk(self._group.size())[self._group.rank()], self.weight)


def _first_row(rows: int, group: dist.ProcessGroup) -> int:
    """As `Tensor.chunk` cuts them."""
    return group.rank() * -(-rows // group.size())


def shard_tensors(model: Transformer, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Keep this rank's part of every weight, and let the blocks communicate. Notes the cuts in `model.cuts`."""
    group = mesh.get_group()
    cut = partial(_cut, model, group)
    how: dict[str, Any] = {"group": group, "sequence_parallel": sequence_parallel}
    if model.embedding is not None:
        cut("embedding.weight", 0)
        model.embedding = VocabularyEmbedding(model.embedding, **how)  # type: ignore[arg-type]  # an nn.Embedding
    if model.position is not None and sequence_parallel:
        model.position = SequencePositions(model.position, group)  # type: ignore[arg-type]  # an nn.Embedding
        model.partial_gradients.add("position.weight")
    if model.head is not None:
        cut("head.weight", 0)
        model.head.group, model.head.first_row = group, _first_row(model.head.out_features, group)
        model.head.register_forward_pre_hook(lambda _, inputs: (cross(inputs[0], True, **how), *inputs[1:]))
    for index, layer in zip(model.layers, model.layer_list(), strict=True):
        model.partial_gradients |= _shard_layer(layer, f"layers.{index}", cut, group, model.spec.kv_heads)
        layer.enter, layer.leave = partial(cross, enters=True, **how), partial(cross, enters=False, **how)
    if sequence_parallel:
        model.partial_gradients |= {name for name, _ in model.named_parameters() if is_of_norm(name)}
    model.tie()


def _cut(model: Transformer, group: dist.ProcessGroup, name: str, axis: int) -> None:
    """Keep this rank's part of one weight."""
    owner, _, kind = name.rpartition(".")
    whole = model.get_parameter(name)
    sections = tuple(joined_weights(model.spec, name).values())
    model.cuts[name] = Cut(whole.shape, axis, group.rank(), group.size(), sections)
    setattr(model.get_submodule(owner), kind, nn.Parameter(model.cuts[name].part(whole.detach()).contiguous()))


def fold_experts(model: Transformer, tp: DeviceMesh, etp: DeviceMesh) -> None:
    """Cut the experts over etp, and let each rank send the tokens that it holds between blocks. Before
    `shard_tensors`."""
    for index, layer in zip(model.layers, model.layer_list(), strict=True):
        if isinstance(layer.feed_forward, Mixture):
            layer.folded = True
            layer.feed_forward.part = tp.get_local_rank(), tp.size()
            layer.feed_forward.gatherers = etp.get_group() if etp.size() > 1 else None
            _cut_experts(layer.feed_forward, f"layers.{index}", partial(_cut, model, etp.get_group()))


def _cut_experts(mixture: Mixture, layer: str, cut: Callable[[str, int], None]) -> None:
    for projection, _ in list(mixture.experts.named_parameters()):
        cut(f"{layer}.feed_forward.experts.{projection}", 1)


def _share_keys(attention: Attention, group: dist.ProcessGroup) -> None:
    """Take query, key and value apart again, and compute one of the heads of key and value."""
    heads, width = attention.heads, attention.head_dim
    own = group.rank() * heads[1] // group.size() * width
    whole = attention.get_parameter("query_key_value.weight").detach()
    del attention.query_key_value
    names = ("query", "key", "value")
    for name, weight in zip(names, torch.split(whole, [count * width for count in heads]), strict=True):
        rows = slice(None) if name == "query" else slice(own, own + width)
        setattr(attention, name, SharedLinear(weight, rows))
    for name in attention.adapters.keys() & {"k", "v"}:
        attention.adapters[name].rows = slice(own, own + width)
    attention.query_key_value = lambda x: torch.cat([attention.get_submodule(name)(x) for name in names], -1)


def _shard_layer(
    layer: Layer, name: str, cut: Callable[[str, int], None], group: dist.ProcessGroup, kv_heads: int
) -> set[str]:
    """Also returned: the weights that stay whole, and have another part of their gradient on each rank."""
    whole: set[str] = set()
    attention, size = layer.attention, group.size()
    if kv_heads >= size:
        cut(f"{name}.attention.query_key_value.weight", 0)
    else:  # fewer heads than ranks: each rank needs one, of weights that stay whole, unlike the query's
        _share_keys(attention, group)
        whole |= {f"{name}.attention.{projection}.weight" for projection in ("key", "value")}
        cut(f"{name}.attention.query.weight", 0)
    for target in layer.adapters:
        # Of the factors, one is cut as the product is; of the other each rank's gradient is a part.
        by_rows, shared = target in ("o", "down"), target in ("k", "v") and kv_heads < size
        factors = {f"{name}.adapters.{target}.{factor}" for factor in "ab"}
        own = set() if shared else {f"{name}.adapters.{target}.{'a' if by_rows else 'b'}"}
        for factor in own:
            cut(factor, int(by_rows))
        whole |= factors - own
    attention.heads = [max(1, heads // size) for heads in attention.heads]
    cut(f"{name}.attention.output.weight", 1)
    if isinstance(layer.feed_forward, Mixture):
        whole.add(f"{name}.feed_forward.router.weight")
        if not layer.folded:
            _cut_experts(layer.feed_forward, name, cut)
    else:
        for projection, _ in layer.feed_forward.named_children():
            cut(f"{name}.feed_forward.{projection}.weight", int(projection == "down"))
    return whole
