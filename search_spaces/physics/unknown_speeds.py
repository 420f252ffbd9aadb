"""The speeds of a cluster that a prediction of step times needs, and usual values in place of unknown ones.

Memory needs none of it: what a device holds is in every description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshtune.search_spaces.checks import Problem
from meshtune.search_spaces.cluster import DeviceKind, LinkSpec
from meshtune.search_spaces.physics.estimates import Training

REMEDY = "run `meshtune cluster probe`, or take a preset that has it"


def missing(training: Training) -> list[Problem]:
    """Every fact that the time of a step depends on and the cluster's description leaves out, by its path in a spec.

    Empty when times can be predicted. One device needs no link, one module none beyond its own, one node no network;
    between racks the network's link stands in for theirs.
    """
    cluster, device, dtype = training.cluster, training.cluster.device, training.framework.dtype
    problems: list[Problem] = []
    if dtype not in device.peak_flops:
        known = ", ".join(sorted(device.peak_flops)) or "no format"
        told = f"is not known: the device {device.name} has a peak for {known}; {REMEDY}"
        problems.append(Problem(f"cluster.device.peak_flops.{dtype}", told))
    if device.memory_bandwidth_bytes_per_s is None:
        problems.append(Problem("cluster.device.memory_bandwidth_bytes_per_s", f"is not known; {REMEDY}"))
    one_module = cluster.module_link is not None and cluster.devices_per_node == cluster.devices_per_module
    if cluster.devices_per_node > 1 and cluster.node_link is None and not one_module:
        told = f"is not known, but a node has {cluster.devices_per_node} devices; {REMEDY}"
        problems.append(Problem("cluster.node_link", told))
    if cluster.nodes > 1 and cluster.network_link is None:
        told = f"is not known, but the cluster has {cluster.nodes} nodes; {REMEDY}"
        problems.append(Problem("cluster.network_link", told))
    return problems


@dataclass(frozen=True, slots=True)
class UsualSpeeds:
    """Orders of magnitude. peak_flops: of any number format. memory_bandwidth: bytes per second."""

    peak_flops: float
    memory_bandwidth: float
    node_link: LinkSpec
    network_link: LinkSpec


# CPU: what `meshtune cluster probe` found for four ranks on two cores (docs/log.md), and 10-gigabit Ethernet. CUDA: an
# A100 with NVLink and one 200-gigabit port a device.
USUAL: Mapping[DeviceKind, UsualSpeeds] = {
    DeviceKind.CPU: UsualSpeeds(
        peak_flops=5e10,
        memory_bandwidth=1.8e10,
        node_link=LinkSpec(latency_s=8e-4, bandwidth_bytes_per_s=2.6e9),
        network_link=LinkSpec(latency_s=1e-3, bandwidth_bytes_per_s=1.2e9),
    ),
    DeviceKind.CUDA: UsualSpeeds(
        peak_flops=3.12e14,
        memory_bandwidth=2e12,
        node_link=LinkSpec(latency_s=3e-6, bandwidth_bytes_per_s=3e11),
        network_link=LinkSpec(latency_s=5e-6, bandwidth_bytes_per_s=2.5e10),
    ),
}


def with_usual_speeds(training: Training) -> Training:
    """The training with a usual speed for each that is unknown: enough to say which plan to try first, since a search
    learns how wrong that is; never to be shown as a prediction."""
    cluster, device, dtype = training.cluster, training.cluster.device, training.framework.dtype
    usual = USUAL[device.kind]
    known = replace(
        device,
        peak_flops={dtype: usual.peak_flops} | device.peak_flops,
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s or usual.memory_bandwidth,
    )
    node_link, network_link = cluster.node_link or usual.node_link, cluster.network_link or usual.network_link
    return replace(training, cluster=replace(cluster, device=known, node_link=node_link, network_link=network_link))
