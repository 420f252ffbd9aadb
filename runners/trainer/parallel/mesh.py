"""Every rank finds its place in meshes of all ranks, pp outermost: in (dp, cp, tp), and for experts in (replicas, ep,
etp).

Ranks of one node are consecutive, so tensor parallelism stays inside a node (Narayanan et al. 2021, section 3). Dense
parameters have replicas over dp x cp, experts over what ep and etp leave of a stage's ranks (Singh et al. 2023,
DeepSpeed-TED; Liu et al. 2025, parallel folding)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from meshtune.runners.trainer.compat import grow_segments, register_gloo
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.plan import Plan

Value = TypeVar("Value")


# Which places of the sequence a rank holds, in the order it holds them.
Places = tuple[range, ...]


@lru_cache(maxsize=4)
def place_tensor(places: Places, device: torch.device) -> Tensor:
    return torch.cat([torch.arange(part.start, part.stop, device=device) for part in places])


@dataclass(frozen=True, slots=True)
class ExpertMesh:
    """The axes of experts. replicas: as of Mesh."""

    ep: DeviceMesh
    etp: DeviceMesh
    replicas: DeviceMesh


@dataclass(frozen=True, slots=True)
class Mesh:
    """The axes as this rank sees them. replicas: who holds the same parameters; one axis, or where ZeRO shards over
    groups two, the groups and the ranks of one. experts: None where they lie as all else."""

    pp: DeviceMesh
    dp: DeviceMesh
    cp: DeviceMesh
    tp: DeviceMesh
    replicas: DeviceMesh
    experts: ExpertMesh | None

    @property
    def pipeline_rank(self) -> int:
        return self.pp.get_local_rank()

    @property
    def replica(self) -> int:
        """Which part of the global batch is this rank's."""
        return self.dp.get_local_rank()


def build_mesh(plan: Plan, device_type: str) -> Mesh:
    """Collective: every rank of the job calls it, with the same plan."""

    def laid_out(**axes: int) -> DeviceMesh:
        return init_device_mesh(device_type, (plan.pp, *axes.values()), mesh_dim_names=("pp", *axes))

    def replicas(ranks: int, **inner: int) -> tuple[DeviceMesh, DeviceMesh]:
        """A mesh, and of it those that hold the same."""
        if groups == 1:
            mesh = laid_out(replicas=ranks, **inner)
            return mesh, mesh["replicas"]
        mesh = laid_out(groups=groups, shards=ranks // groups, **inner)
        return mesh, mesh["groups", "shards"]

    ranks = plan.dp * plan.cp
    groups = ranks // (plan.zero_group or ranks)
    whole = laid_out(dp=plan.dp, cp=plan.cp, tp=plan.tp)
    same = _join(whole, "dp", "cp") if groups == 1 else replicas(ranks, tp=plan.tp)[1]
    experts = None
    if plan.ep > 1 or plan.etp:
        width = plan.expert_tp
        mesh, own = replicas(ranks * plan.tp // (width * plan.ep), ep=plan.ep, etp=width)
        experts = ExpertMesh(mesh["ep"], mesh["etp"], own)
    return Mesh(whole["pp"], whole["dp"], whole["cp"], whole["tp"], same, experts)


def ep_rank(plan: Plan, rank: int) -> int:
    return rank // plan.expert_tp % plan.ep


def _join(whole: DeviceMesh, one: str, other: str) -> DeviceMesh:
    """One axis out of two; one of size 1 adds nothing."""
    if whole[one].size() > 1 < whole[other].size():
        joined: DeviceMesh = whole[one, other]._flatten(f"{one}_{other}")
        return joined
    return whole[other if whole[other].size() > 1 else one]


def build_tie_group(plan: Plan, mesh: Mesh) -> dist.ProcessGroup | None:
    """The group of the first and the last pipeline ranks that hold the same part of a tied weight; None between them.
    Collective."""
    if plan.pp == 2:
        return mesh.pp.get_group()
    per_stage = plan.world_size // plan.pp
    return own_group([[rank, (plan.pp - 1) * per_stage + rank] for rank in range(per_stage)])


def own_group(members: Iterable[Sequence[int]]) -> dist.ProcessGroup | None:
    """Of groups of these ranks the one that this rank is in, None for none. Collective."""
    groups = {tuple(ranks): dist.new_group(list(ranks)) for ranks in members}  # by every rank, in one order
    return next((group for ranks, group in groups.items() if dist.get_rank() in ranks), None)


def choose_device(kind: DeviceKind, local_rank: int, threads: int = 1) -> torch.device:
    """This rank's device, made the current one, and this thread bound to the CPUs beside it. threads: of operations on
    the CPU. Raises RuntimeError where there is no device for the rank."""
    torch.set_num_threads(threads)
    if kind is DeviceKind.CPU:
        return torch.device("cpu")
    grow_segments()
    built_for = torch.accelerator.current_accelerator()
    visible = torch.accelerator.device_count()
    if built_for is None or built_for.type != kind or visible == 0:
        seen = "is built for the CPU alone" if built_for is None else f"sees {visible} devices of kind {built_for.type}"
        raise RuntimeError(f"the job asks for {kind}, but torch {torch.__version__} {seen}")
    device = torch.device(built_for.type, device_index(local_rank, visible))
    torch.accelerator.set_device_index(device)
    bind_beside(torch.get_device_module(device).get_device_properties(device))
    return device


def device_index(local_rank: int, visible: int) -> int:
    """Which of the visible devices is this rank's. A scheduler may show each rank its own device alone; where it is
    not, but one that all ranks see, NCCL refuses. Raises RuntimeError where the rank would share a device."""
    if local_rank >= visible > 1:
        reason = f"local rank {local_rank} has no device of its own: torch sees {visible}"
        raise RuntimeError(f"{reason}; a rank needs to see all devices of its node's ranks, or its own alone")
    return local_rank if visible > 1 else 0


def meet(device: torch.device, rank: int, world_size: int, timeout: timedelta, file: Path | None) -> None:
    """Make the process group: over a file, where all ranks are on this machine (it cannot be in use, as a port can);
    without, at MASTER_ADDR."""
    # NCCL, which is RCCL in ROCm's build, or XCCL.
    backend = register_gloo() if device.type == "cpu" else dist.get_default_backend_for_device(device)
    if file is None:
        dist.init_process_group(backend, "env://", rank=rank, world_size=world_size, timeout=timeout)
        return
    # gloo would ask the host's name, which may not resolve.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(str(file), world_size)  # type: ignore[attr-defined]  # no __all__
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)


def slowest(elapsed_s: float, device: torch.device) -> float:
    """The largest of all ranks' numbers. Collective."""
    longest = torch.tensor(elapsed_s, dtype=torch.float64, device=device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(longest.item())


def gather(value: Value) -> list[Value]:
    """Every rank's value, in order of rank. Collective."""
    every: list[Value] = [value] * dist.get_world_size()
    dist.all_gather_object(every, value)
    return every


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given; a CPU always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def exchange(
    rows: Tensor, group: dist.ProcessGroup, *, receive: list[int] | None = None, send: list[int] | None = None
) -> Tensor:
    """Send the next `send` rows to each rank in turn, and return the `receive` rows from each; None: equally many.
    Differentiable."""
    out: Tensor = functional.wait_tensor(functional.all_to_all_single_autograd(rows, receive, send, group))  # type: ignore[no-untyped-call]
    return out


def exchange_numbers(numbers: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The same for equally many integers to each rank, which have no gradient."""
    out: Tensor = functional.wait_tensor(functional.all_to_all_single(numbers, None, None, group))  # type: ignore[no-untyped-call]
    return out


PCI_DEVICES = Path("/sys/bus/pci/devices")


def bind_beside(properties: Any, devices: Path = PCI_DEVICES) -> None:
    """Bind this thread and those that it starts to the CPUs beside the device: from those of another socket every
    launch and copy goes a longer way. properties: of the device, as torch gives them.

    For every launcher; torch's own (`torch.numa.binding`, by the same files) is torchrun's. Not for XPU, whose place on
    the bus torch does not tell. Not run on an accelerator."""
    allowed = os.sched_getaffinity(0)
    chosen = choose_cpus(allowed, cpus_beside(properties, devices))
    if chosen != allowed:
        os.sched_setaffinity(0, chosen)


def choose_cpus(allowed: AbstractSet[int], beside: AbstractSet[int]) -> AbstractSet[int]:
    """Of the allowed CPUs those beside the device. Whoever left the process no more CPUs than lie there, a scheduler or
    the user, has bound it already, and that stands."""
    chosen = allowed & beside
    return chosen if chosen and len(allowed) > len(beside) else allowed


def cpus_beside(properties: Any, devices: Path) -> frozenset[int]:
    """The CPUs of the device's NUMA node; of none all of the machine (the kernel's word), empty where nobody tells."""
    try:
        slot = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        cpus = (devices / slot / "local_cpulist").read_text(encoding="ascii").strip()
    except (AttributeError, OSError):
        return frozenset()
    ranges = (part.split("-") for part in cpus.split(",") if part)  # as "0-31,64-95"
    return frozenset(cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1))
