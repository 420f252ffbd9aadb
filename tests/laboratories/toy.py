"""A made-up cluster of which the physics knows everything, and a spec of a simulated campaign on it."""

from __future__ import annotations

from typing import Any

LINK = {"latency_s": 1e-6, "bandwidth_bytes_per_s": 1e11}
DEVICE = {
    "name": "toy",
    "kind": "cuda",
    "memory_bytes": 2**36,
    "peak_flops": {"float16": 1e14, "float32": 1e12},
    "memory_bandwidth_bytes_per_s": 1e12,
}
CLUSTER = {
    "name": "hpc",
    "nodes": 2,
    "devices_per_node": 4,
    "device": DEVICE,
    "node_link": LINK,
    "network_link": LINK,
}
SPEC: dict[str, Any] = {
    "name": "toy",
    "model": {"preset": "gpt-micro", "layers": 16, "hidden": 2048, "ffn": 8192},
    "cluster": CLUSTER,
    "global_batch_size": 64,
    "space": {"micro_batch_size": [1, 2, 4], "zero_stage": [0, 1]},
    "workload": {"kind": "simulated", "framework": "megatron-deepspeed"},
    "runner": {"kind": "simulated", "seed": 1},
    "search": "random",
    "budget": {"trials": 6},
    "trial": {"time_limit_s": 21600},
}
