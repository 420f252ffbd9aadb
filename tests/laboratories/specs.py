"""Specs of campaigns, as documents; the keys that a test gives are laid over them."""

from __future__ import annotations

from typing import Any


def tiny(**over: Any) -> dict[str, Any]:
    """A model that trains in seconds on one core of this machine."""
    return {
        "name": "tiny",
        "model": {"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq_len": 16},
        "cluster": {"preset": "local-cpu", "devices_per_node": 1},
        "global_batch_size": 8,
        "search": "random",
        "confirm": 0,
        **over,
    }


def simulated(**over: Any) -> dict[str, Any]:
    """A model on a node of GPUs, of which every trial ends at once. What random search tries does not depend on when
    the results of a busy machine arrive."""
    return {
        "name": "simulated",
        "model": "gpt-micro",
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "global_batch_size": 16,
        "workload": "simulated",
        "runner": "simulated",
        "search": "random",
        **over,
    }
