"""Clusters and models of tests for which any will do."""

from __future__ import annotations

from typing import Any

from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec, LinkSpec
from meshtune.search_spaces.model import ModelSpec

TINY = ModelSpec(name="tiny", layers=2, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=128, seq_len=16)
# Of a device that simulated jobs run on.
SPEEDS = {"memory_bytes": 64 * 2**30, "peak_flops": {"float16": 1e14}, "memory_bandwidth_bytes_per_s": 1e12}


def cluster(
    nodes: int = 1, devices: int = 1, kind: str = DeviceKind.CPU, link: LinkSpec | None = None, **device: Any
) -> ClusterSpec:
    """Of devices of 1 GiB, but for what `device` says. link: in a node and between nodes."""
    spec = DeviceSpec(**{"name": "d", "kind": DeviceKind(kind), "memory_bytes": 2**30} | device)
    return ClusterSpec(name="c", nodes=nodes, devices_per_node=devices, device=spec, node_link=link, network_link=link)
