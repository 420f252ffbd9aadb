"""ClusterSpec: what the job would run on: devices, their speed and memory, and the links between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any, ClassVar

from search_spaces.checks import CLOSED, MOST_WHOLE, Checks


class DeviceKind(StrEnum):
    """What PyTorch calls the device; ROCm devices are `cuda` there as well."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One device: one rank runs on it. peak_flops: dense FLOP/s by dtype name ("float32", "bfloat16").

    memory_bytes: what one rank may use; on CPU the share of the machine that a rank gets.
    """

    __pydantic_config__: ClassVar[Any] = CLOSED

    name: str
    kind: DeviceKind
    memory_bytes: int
    peak_flops: dict[str, float] = field(default_factory=dict)
    memory_bandwidth_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        checks = Checks()
        object.__setattr__(self, "kind", checks.member(DeviceKind, "kind", self.kind))
        checks.at_least(1, memory_bytes=self.memory_bytes)
        for dtype, rate in self.peak_flops.items():
            checks.require(0 < rate < inf, f"peak_flops.{dtype}", f"must be positive and finite, not {rate}")
        if self.memory_bandwidth_bytes_per_s is not None:
            checks.require(
                0 < self.memory_bandwidth_bytes_per_s < inf,
                "memory_bandwidth_bytes_per_s",
                f"must be positive and finite, not {self.memory_bandwidth_bytes_per_s}",
            )
        checks.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """One tier of the network, per device and direction: the alpha and beta of the alpha-beta model."""

    __pydantic_config__: ClassVar[Any] = CLOSED

    latency_s: float
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        checks = Checks()
        checks.require(0 <= self.latency_s < inf, "latency_s", f"must be finite, at least 0, not {self.latency_s}")
        checks.require(
            0 < self.bandwidth_bytes_per_s < inf,
            "bandwidth_bytes_per_s",
            f"must be positive and finite, not {self.bandwidth_bytes_per_s}",
        )
        checks.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """`nodes` equal nodes of `devices_per_node` equal devices. Links are None where nothing is known of them."""

    __pydantic_config__: ClassVar[Any] = CLOSED

    name: str
    nodes: int
    devices_per_node: int
    device: DeviceSpec
    node_link: LinkSpec | None = None
    network_link: LinkSpec | None = None

    def __post_init__(self) -> None:
        checks = Checks()
        if checks.whole(1, nodes=self.nodes, devices_per_node=self.devices_per_node):
            sizes = f"nodes({self.nodes}) * devices_per_node({self.devices_per_node}) = {self.devices}"
            checks.require(self.devices <= MOST_WHOLE, "nodes", f"{sizes} must be at most {MOST_WHOLE}")
        checks.done()

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node
