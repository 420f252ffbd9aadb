"""What must be known of a cluster before a step's time can be predicted: the one place that says so.

Memory needs none of it: what a device holds is in every description.
"""

from __future__ import annotations

from search_spaces.checks import Problem
from search_spaces.estimates import Training

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
