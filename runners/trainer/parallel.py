"""Shards a stage over its tensor-parallel group and its replicas, then gives every shard its part of the whole.

Order matters: build on the meta device, tensor parallelism, replicas, storage, numbers; so no rank ever holds more
than its own shards and one whole parameter. Which ZeRO stage takes which road is decided in `choose_sharding`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate  # FSDP2's twin; the public one is DDP's
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from runners.trainer.job import Job
from runners.trainer.model import Transformer, initial_values
from search_spaces.cluster import DeviceKind
from search_spaces.model import Activation


class Sharding(StrEnum):
    """How the replicas are kept equal. FLAT is this trainer's own optimizer, the other two are torch's FSDP2."""

    FLAT = "flat"
    REPLICATE = "replicate"
    FULLY_SHARD = "fully_shard"


def choose_sharding(job: Job) -> Sharding:
    """The road for the job's ZeRO stage.

    Stage 0 on CPU goes flat as well: it was the quicker one in every pair of runs, 247 against 320 ms a step at 4
    layers of 128, 77 against 100 ms at 4 layers of 64 (2 ranks, gloo, a busy 2-core machine). On CUDA replicate()
    overlaps its all-reduces with the backward pass, which the flat optimizer does not.
    """
    if job.plan.dp == 1 or job.plan.zero_stage == 1:
        return Sharding.FLAT
    if job.plan.zero_stage == 0:
        return Sharding.FLAT if job.device is DeviceKind.CPU else Sharding.REPLICATE
    return Sharding.FULLY_SHARD


class SharedProjection(nn.Module):
    """A key or value projection of fewer heads than tensor-parallel ranks: each rank computes the one head it needs.

    The weight stays whole on every rank. The ranks' gradients concern different parts of the layer's output, so they
    are partial sums, for the weight as well as for the input.
    """

    def __init__(self, linear: nn.Linear, mesh: DeviceMesh, kv_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(linear.weight, mesh, [Replicate()]))
        head_dim = linear.out_features // kv_heads
        head = mesh.get_local_rank() * kv_heads // mesh.size()
        self._rows = slice(head * head_dim, (head + 1) * head_dim)

    def forward(self, x: DTensor) -> Tensor:
        if not isinstance(self.weight, DTensor):
            raise TypeError(f"the weight must be a DTensor, not {type(self.weight).__name__}")
        weight = self.weight.to_local(grad_placements=[Partial()])[self._rows]
        return nn.functional.linear(x.to_local(grad_placements=[Partial()]), weight)


def shard_tensors(model: Transformer, mesh: DeviceMesh) -> None:
    """Megatron-style tensor parallelism with sequence parallelism (Korthikanti et al. 2022) over `mesh`.

    Between the blocks, and between the stages, activations are local tensors split along the sequence; logits are
    local tensors split along the vocabulary.
    """
    tokens, sequence, whole = Replicate(), Shard(1), Replicate()
    styles: dict[str, ParallelStyle] = {}
    if model.embedding is not None:
        styles["embedding"] = RowwiseParallel(input_layouts=tokens, output_layouts=sequence)
    if model.position is not None:
        # The places carry no batch axis, so the sequence is axis 0.
        styles["position"] = RowwiseParallel(input_layouts=tokens, output_layouts=Shard(0))
    if model.head is not None:
        styles["norm"] = SequenceParallel()
        styles["head"] = ColwiseParallel(input_layouts=sequence, output_layouts=Shard(-1))
    grouped = model.spec.kv_heads < mesh.size()
    gated = model.spec.activation is Activation.SWIGLU
    for index, layer in model.layers.items():
        prefix = f"layers.{index}"
        for block, enter, leave in (
            ("attention", ("query",) if grouped else ("query", "key", "value"), "output"),
            ("feed_forward", ("up", "gate") if gated else ("up",), "down"),
        ):
            styles[f"{prefix}.{block}_norm"] = SequenceParallel()
            styles[f"{prefix}.{block}"] = PrepareModuleInput(input_layouts=(sequence,), desired_input_layouts=(whole,))
            styles |= {f"{prefix}.{block}.{name}": ColwiseParallel() for name in enter}
            styles[f"{prefix}.{block}.{leave}"] = RowwiseParallel(output_layouts=sequence)
        if grouped:
            attention = layer.get_submodule("attention")
            for name in ("key", "value"):
                setattr(attention, name, SharedProjection(getattr(attention, name), mesh, model.spec.kv_heads))
    parallelize_module(model, mesh, styles)
    model.tie()


def shard_replicas(model: Transformer, mesh: DeviceMesh, job: Job, sharding: Sharding) -> None:
    """Wrap every layer, then the rest, with FSDP2. Every reduction becomes a sum: the loss is already divided."""
    mixed = MixedPrecisionPolicy(param_dtype=getattr(torch, job.dtype), reduce_dtype=torch.float32)
    wrap: Callable[[nn.Module], object] = partial(
        fully_shard, mesh=mesh, mp_policy=mixed, reshard_after_forward=job.plan.zero_stage == 3
    )
    if sharding is Sharding.REPLICATE:
        wrap = partial(replicate, mesh=mesh, mp_policy=mixed)
    for layer in model.layers.values():
        wrap(layer)
    wrap(model)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # gloo has no PREMUL_SUM, which a divide factor alone would ask for.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


@torch.no_grad()
def materialize(model: Transformer, device: torch.device, seed: int) -> None:
    """Give a model on the meta device its storage on `device` and its initial numbers."""
    model.to_empty(device=device)
    model.tie()
    for name, parameter in model.named_parameters():
        whole = initial_values(model.spec, name, parameter.shape, seed, device)
        local(parameter).copy_(own_part(whole, parameter))


def own_part(whole: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of `whole`, cut as `parameter` is.

    FSDP2 cuts what tensor parallelism left, so tp goes first although dp is the outer axis of the mesh.
    """
    if not isinstance(parameter, DTensor):
        return whole
    mesh = parameter.device_mesh
    names = mesh.mesh_dim_names or ()
    for axis in ("tp", "dp"):
        if axis not in names:
            continue
        placement = parameter.placements[names.index(axis)]
        if placement.is_replicate():
            continue
        cut: int = placement.dim  # type: ignore[attr-defined]  # Shard and _StridedShard have no common typed base
        parts = whole.chunk(mesh.size(names.index(axis)), cut)
        rank = mesh.get_local_rank(axis)
        whole = parts[rank] if rank < len(parts) else whole.narrow(cut, 0, 0)
    return whole


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies on this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def like_parameter(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The local part of `gradient`, cut as `parameter` is.

    Gradients may come as partial sums over tp (norms under sequence parallelism): without this the step is wrong by
    a little and says nothing.
    """
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        gradient = gradient.redistribute(placements=parameter.placements)
    return local(gradient)
