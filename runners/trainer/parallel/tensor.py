"""One layer over several ranks: tensor parallelism as in Megatron (Shoeybi et al. 2019), with sequence parallelism
(Korthikanti et al. 2022) or not; and context parallelism, whose ranks hold slices of the sequence.

Between blocks and stages, activations are local tensors: split along the sequence, or whole on every rank. Logits are
split along the vocabulary. A mixture of experts is cut inside of every expert."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from meshtune.runners.trainer.model import Attend, Layer, Mixture, Places, Transformer, attend_causally, place_tensor
from meshtune.runners.trainer.parallel.mesh import exchange
from meshtune.search_spaces.model import Activation
from meshtune.search_spaces.plan import ContextParallel, Plan


class SharedProjection(nn.Module):
    """A key or value projection of fewer heads than ranks: each rank computes the one head it needs, from a whole
    weight. The ranks' gradients are partial sums, for the weight as well as for the input."""

    def __init__(self, linear: nn.Linear, mesh: DeviceMesh, kv_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(linear.weight, mesh, [Replicate()]))
        head_dim = linear.out_features // kv_heads
        head = mesh.get_local_rank() * kv_heads // mesh.size()
        self._rows = slice(head * head_dim, (head + 1) * head_dim)

    def forward(self, x: DTensor) -> Tensor:
        weight = _local_weight(self.weight, Partial())[self._rows]
        return F.linear(x.to_local(grad_placements=[Partial()]), weight)


class LocalProjection(nn.Module):
    """A projection of local tensors with this rank's part of the weight, for modules that communicate at their ends. A
    whole weight gets partial sums as gradients."""

    def __init__(self, linear: nn.Linear, mesh: DeviceMesh, placement: Placement) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(linear.weight, mesh, [placement]))
        self._gradient = Partial() if placement.is_replicate() else placement

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, _local_weight(self.weight, self._gradient))


class PartialAnswers(ParallelStyle):
    """A module that sees all tokens as a local tensor and answers with its part of a sum over tp. layout: of
    activations outside of it."""

    def __init__(self, layout: Placement) -> None:
        super().__init__()
        self._layout = layout

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
            (x,) = inputs
            if not isinstance(x, DTensor):
                x = DTensor.from_local(x, device_mesh, [self._layout], run_check=False)
            return x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])

        def leave(_: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor:
            total = DTensor.from_local(out, device_mesh, [Partial()], run_check=False)
            return total.redistribute(placements=[self._layout]).to_local()

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)
        return module


def _local_weight(weight: Tensor, gradient: Placement) -> Tensor:
    if not isinstance(weight, DTensor):
        raise TypeError(f"the weight must be a DTensor, not {type(weight).__name__}")
    return weight.to_local(grad_placements=[gradient])


def shard_tensors(model: Transformer, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    layout: Placement = Shard(1) if sequence_parallel else Replicate()
    styles: dict[str, ParallelStyle] = {}
    if model.embedding is not None:
        styles["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=layout)
    if model.position is not None:
        # The places carry no batch axis, so the sequence is axis 0.
        places = Shard(0) if sequence_parallel else Replicate()
        styles["position"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=places)
    if model.head is not None:
        styles["head"] = ColwiseParallel(input_layouts=layout, output_layouts=Shard(-1))
    if model.head is not None and sequence_parallel:
        styles["norm"] = SequenceParallel()
    for index, layer in zip(model.layers, model.layer_list(), strict=True):
        for name, style in _layer_styles(layer, mesh, model, layout).items():
            styles[f"layers.{index}.{name}"] = style
    parallelize_module(model, mesh, styles)
    model.tie()


def _layer_styles(layer: Layer, mesh: DeviceMesh, model: Transformer, layout: Placement) -> dict[str, ParallelStyle]:
    """Parts that torch has no style for are replaced on the way."""
    grouped = model.spec.kv_heads < mesh.size()
    gated = model.spec.activation is Activation.SWIGLU
    styles: dict[str, ParallelStyle] = {}
    if layout.is_shard():
        styles |= {f"{block}_norm": SequenceParallel() for block in ("attention", "feed_forward")}
    if grouped:
        for name in ("key", "value"):
            linear = layer.attention.get_submodule(name)
            setattr(layer.attention, name, SharedProjection(linear, mesh, model.spec.kv_heads))  # type: ignore[arg-type]  # an nn.Linear
    blocks: list[tuple[str, tuple[str, ...], str]] = [
        ("attention", ("query",) if grouped else ("query", "key", "value"), "output")
    ]
    if isinstance(layer.feed_forward, Mixture):
        _cut_experts(layer.feed_forward, mesh)
        styles["feed_forward"] = PartialAnswers(layout)
    else:
        blocks.append(("feed_forward", ("up", "gate") if gated else ("up",), "down"))
    for block, enter, leave in blocks:
        styles[block] = PrepareModuleInput(input_layouts=(layout,), desired_input_layouts=(Replicate(),))
        styles |= {f"{block}.{name}": ColwiseParallel() for name in enter}
        styles[f"{block}.{leave}"] = RowwiseParallel(output_layouts=layout)
    return styles


def _cut_experts(mixture: Mixture, mesh: DeviceMesh) -> None:
    mixture.router = LocalProjection(mixture.router, mesh, Replicate())  # type: ignore[assignment]  # same call
    for expert in mixture.experts.children():
        for name, linear in list(expert.named_children()):
            placement = Shard(1) if name == "down" else Shard(0)
            setattr(expert, name, LocalProjection(linear, mesh, placement))  # type: ignore[arg-type]  # an nn.Linear


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
    """Ring attention (Liu et al. 2023) by torch's own kernels, for CUDA alone, and an API that is private in torch
    2.13. It has not run on CUDA devices: tests drive it over gloo with a CPU kernel. Grouped heads are repeated
    first."""

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
