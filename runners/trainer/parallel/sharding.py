"""Shards a chunk of the model over its replicas, then gives every shard its part of the whole. Order matters: meta
device, tensor parallelism, replicas, storage, numbers; so no rank ever holds more than its shards and one parameter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.distributed._composable.replicate_with_fsdp import replicate  # FSDP2's twin; the public one is DDP's
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from meshtune.runners.trainer.job import Job
from meshtune.runners.trainer.model import Transformer, initial_values
from meshtune.runners.trainer.parallel.mesh import Mesh
from meshtune.search_spaces.checks import StrEnum
from meshtune.search_spaces.cluster import DeviceKind


class Sharding(StrEnum):
    """How the replicas are kept equal. FLAT is this trainer's own optimizer, the other two are torch's FSDP2."""

    FLAT = "flat"
    REPLICATE = "replicate"
    FULLY_SHARD = "fully_shard"


def choose_sharding(job: Job) -> Sharding:
    """Stage 0 on CPU goes flat as well: 247 against 320 ms a step at 4 layers of 128 (2 ranks, gloo). On CUDA
    replicate() overlaps its all-reduces with the backward pass, which the flat optimizer does not."""
    if job.plan.dp * job.plan.cp == 1 or job.plan.zero_stage == 1:
        return Sharding.FLAT
    if job.plan.zero_stage == 0:
        return Sharding.FLAT if job.device is DeviceKind.CPU else Sharding.REPLICATE
    return Sharding.FULLY_SHARD


def shard_replicas(model: Transformer, mesh: Mesh, job: Job, sharding: Sharding) -> None:
    """Wrap every layer, then the rest, with FSDP2; its experts first, over their own replicas. Every reduction is a
    sum."""
    mixed = MixedPrecisionPolicy(param_dtype=getattr(torch, job.dtype), reduce_dtype=torch.float32)
    wrap: Callable[..., object] = partial(fully_shard, mp_policy=mixed, reshard_after_forward=job.plan.zero_stage == 3)
    if sharding is Sharding.REPLICATE:
        wrap = partial(replicate, mp_policy=mixed)
    if job.plan.ep > 1:
        for mixture in model.mixtures():
            wrap(mixture.experts, mesh=mesh.expert_replicas)
    for layer in model.layer_list():
        wrap(layer, mesh=mesh.replicas)
    wrap(model, mesh=mesh.replicas)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # gloo has no PREMUL_SUM, which a divide factor alone would ask for.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


@torch.no_grad()
def materialize(model: Transformer, device: torch.device, seed: int) -> None:
    model.to_empty(device=device)
    model.tie()
    for name, parameter in model.named_parameters():
        whole = initial_values(model.spec, name, parameter.shape, seed, device)
        local(parameter).copy_(own_part(whole, parameter))


def own_part(whole: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of `whole`, cut as `parameter` is. FSDP2 cuts what tensor parallelism left, so tp goes first
    although it is the inner axis of the mesh."""
    if not isinstance(parameter, DTensor):
        return whole
    mesh = parameter.device_mesh
    names = mesh.mesh_dim_names or ()
    for axis in sorted(names, key=lambda name: name != "tp"):
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
    """The local part of `gradient`, cut as `parameter` is. It may come as partial sums over tp (norms under sequence
    parallelism): without this the step is wrong by a little and says nothing."""
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        gradient = gradient.redistribute(placements=parameter.placements)
    return local(gradient)
