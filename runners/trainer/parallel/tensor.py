"""Tensor parallelism as in Megatron (Shoeybi et al. 2019), with sequence parallelism (Korthikanti et al. 2022) or not.

Between blocks and stages, activations are local tensors: split along the sequence, or whole on every rank. Logits are
split along the vocabulary. A mixture of experts is cut inside of every expert."""

from __future__ import annotations

from typing import Any

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

from meshtune.runners.trainer.blocks import Mixture
from meshtune.runners.trainer.model import Layer, Transformer
from meshtune.search_spaces.model import Activation


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
