"""Specs of simulated campaigns that a client starts: one that takes a second or two, and one that takes longer."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "name": "client",
    "model": "gpt-micro",
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "global_batch_size": 32,
    "workload": "simulated",
    "runner": {"kind": "simulated", "seconds_per_trial": 0.05},
    "search": "random",
    "baseline": {"tp": 1},
    "budget": {"trials": 8},
    "confirm": 1,
}
SLOW = SPEC | {"name": "slow", "runner": {"kind": "simulated", "seconds_per_trial": 0.3}, "budget": {"trials": 20}}
