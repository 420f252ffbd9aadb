"""The constants of the physics, numbers that no data sheet has, and their calibration for a cluster.

All are positive, and calibration moves their logarithms: a prior is a log-normal with the default as its median. How
the defaults were found is in docs/explanation/physics.md; they hold for no cluster in particular.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.checks import Checks


def _time(default: float, log_sd: float, of: str = "time") -> Any:
    return field(default=default, metadata={"log_sd": log_sd, "of": of})


def _memory(default: float, log_sd: float) -> Any:
    return field(default=default, metadata={"log_sd": log_sd, "of": "memory"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Each declared with its default and the standard deviation of its logarithm."""

    # Shares of the sustained FLOP/s of matrix products, and of fused attention's kernel, that training reaches.
    matmul_efficiency: float = _time(0.89, 0.2)
    attention_efficiency: float = _time(0.8, 0.3)
    # A product of sides a, b and c takes 1 + narrow_rows (1/a + 1/b + 1/c) times as long.
    narrow_rows: float = _time(60.0, 0.7)
    # Share of the memory's bandwidth that everything but matrix products reaches.
    memory_efficiency: float = _time(0.82, 0.25)
    # Factor on the framework's time to launch a layer.
    launch_factor: float = _time(1.0, 0.25)
    # Share of the links' bandwidth.
    node_efficiency: float = _time(0.72, 0.45)
    network_efficiency: float = _time(0.85, 0.4)
    # Seconds of each collective beside its latency.
    collective_overhead_s: float = _time(6e-05, 1.0)
    # The network's bandwidth is divided by 1 + congestion log2(nodes of the group).
    congestion: float = _time(0.1, 0.6)
    # Factor on the latency between nodes.
    network_latency_factor: float = _time(1.0, 0.5)
    # Seconds of each transfer between stages beside its latency.
    send_overhead_s: float = _time(0.001, 1.2)
    # Share of an overlapped collective by which the computation beside it gets longer.
    exposed_reduction: float = _time(0.27, 0.7)
    # Standard deviation of the replicas' times in their passes, as a share of them.
    straggling: float = _time(0.015, 1.0)
    # Seconds once per step.
    step_overhead_s: float = _time(0.013, 0.7)
    # Standard deviation of the loads of a layer's experts over their mean, where a loss or a bias keeps a learnt router
    # near balance: 0.29 at the start and 0.18 soon after (marin-community/marin issue 7668: the busiest of 64 ranks
    # with 4 experts each got 1.34 and 1.21 times the mean), 0.04 of 8 large experts (shawntan/scattermoe issue 10).
    router_spread: float = _time(0.2, 1.0, of="time, memory")
    # Factor on all memory.
    memory_factor: float = _memory(1.0, 0.08)
    # Workspaces and small tensors that no formula counts.
    memory_offset_bytes: float = _memory(4.5e8, 0.8)
    # Factor on activations and logits: what the allocator rounds up and cannot use again.
    activation_factor: float = _memory(1.02, 0.12)
    # Gathered hidden states that wait for a stream at once, where the framework has such.
    late_buffers: float = _memory(35.0, 0.25)

    def __post_init__(self) -> None:
        checks = Checks()
        for name in CONSTANTS:
            value = getattr(self, name)
            checks.require(value > 0, name, f"must be positive, not {value}")
        checks.done()


CONSTANTS: tuple[str, ...] = tuple(field.name for field in fields(Constants))
TIME_CONSTANTS: tuple[str, ...] = tuple(field.name for field in fields(Constants) if "time" in field.metadata["of"])
MEMORY_CONSTANTS: tuple[str, ...] = tuple(field.name for field in fields(Constants) if "memory" in field.metadata["of"])
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


@dataclass(frozen=True, slots=True)
class Calibration:
    """The constants, the covariance of their logarithms (in the order of CONSTANTS), and the standard deviations of
    log(real / expected) around the formulas, from plan to plan. times, memories, ooms: how many were learnt from."""

    constants: Constants
    covariance: npt.NDArray[np.float64]
    time_log_sd: float = 0.15
    memory_log_sd: float = 0.12
    times: int = 0
    memories: int = 0
    ooms: int = 0

    def away(self, by: npt.NDArray[np.float64]) -> Constants:
        """Constants so far from these, in units of their doubt (a factor of the covariance)."""
        logs = np.log([getattr(self.constants, name) for name in CONSTANTS]) + np.linalg.cholesky(self.covariance) @ by
        return Constants(**dict(zip(CONSTANTS, np.exp(logs).tolist(), strict=True)))

    def log_sd(self, name: str) -> float:
        return float(np.sqrt(self.covariance[CONSTANTS.index(name), CONSTANTS.index(name)]))


UNCALIBRATED = Calibration(DEFAULTS, np.diag([PRIOR_LOG_SD[name] ** 2 for name in CONSTANTS]))
