"""The training that an estimate is of: the memory that a rank can use, and the speeds that are unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshtune.search_spaces.checks import Problem
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, LinkSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.framework_profiles import FrameworkProfile, Reports
from meshtune.search_spaces.recipe import PLAIN, Recipe

# What PyTorch's allocator can fill of a rank's device: the rest is what it cannot use, and what is outside of it. A CPU
# rank has its cap. See docs/explanation/physics-memory.md.
USABLE_SHARE = {DeviceKind.CPU: 1.0, DeviceKind.CUDA: 0.95, DeviceKind.XPU: 0.95}
# What a rank holds outside of that allocator: the driver's context (0.71 GB on an H100, docs/gpu.md), and with other
# ranks communicators of all of them and of tensor or data parallelism. NCCL's has some 24 channels on NVLink, each with
# a connection in a ring and two in a tree, of 10 MiB where it receives and 2 where it sends (NVIDIA/nccl issue 1685
# counts these allocations, issue 864 saw 1.6 GB with the context); more ranks take no more (issue 986).
OUTSIDE_BYTES = {DeviceKind.CPU: 0.0, DeviceKind.CUDA: 8e8, DeviceKind.XPU: 8e8}
COMMUNICATOR_BYTES = {DeviceKind.CPU: 0.0, DeviceKind.CUDA: 24 * 3 * 12 * 2**20, DeviceKind.XPU: 0.0}
MODEL_UNKNOWN = "is not named: speed and memory are learnt from trials alone; a preset or hf_config gives predictions"
REMEDY = "run `meshtune cluster probe`, or take a preset that has it"


@dataclass(frozen=True, slots=True)
class Training:
    """The subject of an estimate beside the plan: one model, trained by one code on one cluster. framework: the
    code's profile under the recipe (`with_recipe`)."""

    model: ModelSpec
    cluster: ClusterSpec
    framework: FrameworkProfile
    recipe: Recipe = PLAIN


def outside_bytes(training: Training) -> float:
    """The part of the peak outside of PyTorch's allocator; none where the code's jobs report the allocator's alone."""
    cluster = training.cluster
    outside = OUTSIDE_BYTES[cluster.device.kind] + 2 * (cluster.devices > 1) * COMMUNICATOR_BYTES[cluster.device.kind]
    return outside if training.framework.reports is Reports.PROCESS else 0.0


def usable_bytes(training: Training) -> float:
    """The memory that a rank can use, a bound of its peak."""
    device = training.cluster.device
    return min(device.memory_bytes, device.memory_bytes * USABLE_SHARE[device.kind] + outside_bytes(training))


def missing(training: Training) -> list[Problem]:
    """Every fact that the time of a step depends on and the cluster's description leaves out, by its path in a spec.

    Empty when times can be predicted; memory needs the model. One device needs no link, one module none beyond its own,
    one node no network; between racks the network's link stands in for theirs.
    """
    cluster, device, dtype = training.cluster, training.cluster.device, training.framework.dtype
    if not training.model.known:
        return [Problem("model", MODEL_UNKNOWN)]
    problems: list[Problem] = []
    if dtype not in device.peak_flops:
        known = ", ".join(sorted(device.peak_flops)) or "no format"
        problem = f"is not known: the device {device.name} has a peak for {known}; {REMEDY}"
        problems.append(Problem(f"cluster.device.peak_flops.{dtype}", problem))
    if device.memory_bandwidth_bytes_per_s is None:
        problems.append(Problem("cluster.device.memory_bandwidth_bytes_per_s", f"is not known; {REMEDY}"))
    one_module = cluster.module_link is not None and cluster.devices_per_node == cluster.devices_per_module
    if cluster.devices_per_node > 1 and cluster.node_link is None and not one_module:
        problem = f"is not known, but a node has {cluster.devices_per_node} devices; {REMEDY}"
        problems.append(Problem("cluster.node_link", problem))
    if cluster.nodes > 1 and cluster.network_link is None:
        problem = f"is not known, but the cluster has {cluster.nodes} nodes; {REMEDY}"
        problems.append(Problem("cluster.network_link", problem))
    return problems


def _link(latency_s: float, bandwidth_bytes_per_s: float) -> LinkSpec:
    return LinkSpec(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth_bytes_per_s)


# Orders of magnitude: FLOP/s of any format, bytes per second of memory, and the links in a node and between nodes. CPU:
# a probe of four ranks on two cores (benchmarks/log.md), and 10-gigabit Ethernet. CUDA: an A100 with NVLink and one
# 200-gigabit port a device. XPU: a tile of Aurora, in round numbers of its preset.
USUAL: Mapping[DeviceKind, tuple[float, float, LinkSpec, LinkSpec]] = {
    DeviceKind.CPU: (5e10, 1.8e10, _link(8e-4, 2.6e9), _link(1e-3, 1.2e9)),
    DeviceKind.CUDA: (3.12e14, 2e12, _link(3e-6, 3e11), _link(5e-6, 2.5e10)),
    DeviceKind.XPU: (2.5e14, 1.6e12, _link(3e-6, 9e10), _link(1.4e-5, 1.7e10)),
}


def with_usual_speeds(training: Training) -> Training:
    """The training with a usual speed for each that is unknown: enough to say which plan to try first, since a search
    learns how wrong that is; never to be shown as a prediction."""
    cluster, device, dtype = training.cluster, training.cluster.device, training.framework.dtype
    peak_flops, bytes_per_s, node_link, network_link = USUAL[device.kind]
    known = replace(
        device,
        peak_flops={dtype: peak_flops} | device.peak_flops,
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s or bytes_per_s,
    )
    node_link, network_link = cluster.node_link or node_link, cluster.network_link or network_link
    return replace(training, cluster=replace(cluster, device=known, node_link=node_link, network_link=network_link))
