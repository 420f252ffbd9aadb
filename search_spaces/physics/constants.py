"""The constants of the physics: what a data sheet does not say. Each has a default, and how far it may be from it.

All are positive, and calibration moves their logarithms: a prior is a log-normal with the default as its median. How
the defaults were found is told in docs/explanation/physics.md; they hold for no cluster in particular.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from meshtune.search_spaces.checks import Checks


def _time(default: float, log_sd: float) -> Any:
    return field(default=default, metadata={"log_sd": log_sd, "of": "time"})


def _memory(default: float, log_sd: float) -> Any:
    return field(default=default, metadata={"log_sd": log_sd, "of": "memory"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Time. matmul_efficiency: of the sustained FLOP/s, reached in training. attention_efficiency: of the peak, by
    fused attention. narrow_rows: a product whose sides are a and b takes 1 + narrow_rows (1/a + 1/b) times as long.
    memory_efficiency: of the memory's bandwidth, by everything that is no matrix product. launch_factor: on the
    framework's own time to launch a layer. node_efficiency, network_efficiency: of the links' bandwidth.
    collective_overhead_s: of each collective, beside its latency. congestion: the network's bandwidth is divided by
    1 + congestion log2(nodes of the group). network_latency_factor: on the latency between nodes. send_overhead_s: of
    each transfer between stages. exposed_reduction: share of an overlapped collective that still lengthens the step.
    step_overhead_s: once per step.

    Memory. memory_factor: on everything. memory_offset_bytes: workspaces and small tensors that no formula counts.
    activation_factor: on activations and logits, for what the allocator rounds up and cannot use again. late_buffers:
    how many gathered hidden states wait for a stream at once, where the framework has such
    (`search_spaces.physics.memory`).
    """

    matmul_efficiency: float = _time(0.92, 0.1)
    attention_efficiency: float = _time(0.35, 0.2)
    narrow_rows: float = _time(50.0, 0.5)
    memory_efficiency: float = _time(0.8, 0.2)
    launch_factor: float = _time(1.0, 0.25)
    node_efficiency: float = _time(0.7, 0.25)
    network_efficiency: float = _time(0.6, 0.35)
    collective_overhead_s: float = _time(5e-05, 0.5)
    congestion: float = _time(0.15, 0.5)
    network_latency_factor: float = _time(2.0, 0.5)
    send_overhead_s: float = _time(0.0005, 0.9)
    exposed_reduction: float = _time(0.4, 0.35)
    step_overhead_s: float = _time(0.012, 0.7)
    memory_factor: float = _memory(1.0, 0.05)
    memory_offset_bytes: float = _memory(3e8, 0.4)
    activation_factor: float = _memory(1.1, 0.06)
    late_buffers: float = _memory(35.0, 0.3)

    def __post_init__(self) -> None:
        checks = Checks()
        for name in CONSTANTS:
            value = getattr(self, name)
            checks.require(value > 0, name, f"must be positive, not {value}")
        checks.done()


CONSTANTS: tuple[str, ...] = tuple(field.name for field in fields(Constants))
TIME_CONSTANTS: tuple[str, ...] = tuple(field.name for field in fields(Constants) if field.metadata["of"] == "time")
MEMORY_CONSTANTS: tuple[str, ...] = tuple(field.name for field in fields(Constants) if field.metadata["of"] == "memory")
PRIOR_LOG_SD: Mapping[str, float] = {field.name: field.metadata["log_sd"] for field in fields(Constants)}
DEFAULTS = Constants()


def stacked(variants: Sequence[Constants], plans: int) -> Constants:
    """The variants as one value whose fields are columns: each variant's value `plans` times, one after the other.

    The formulas are arithmetic on columns, so they take it as they take single numbers: with as many copies of the
    plans they evaluate all variants at once.
    """
    columns = object.__new__(Constants)  # not checked again: every variant was
    for name in CONSTANTS:
        column = np.repeat([getattr(variant, name) for variant in variants], plans)
        object.__setattr__(columns, name, column)
    return columns
