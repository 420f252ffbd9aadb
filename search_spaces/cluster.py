"""ClusterSpec: what the job would run on: devices, their speed and memory, and the links between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from search_spaces.checks import CLOSED, Checks


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
        object.__setattr__(self, "kind", DeviceKind(self.kind))
        checks = Checks()
        checks.at_least(1, memory_bytes=self.memory_bytes)
        for dtype, rate in self.peak_flops.items():
            checks.require(rate > 0, f"peak_flops.{dtype}", f"must be positive, not {rate}")
        if self.memory_bandwidth_bytes_per_s is not None:
            checks.require(
                self.memory_bandwidth_bytes_per_s > 0,
                "memory_bandwidth_bytes_per_s",
                f"must be positive, not {self.memory_bandwidth_bytes_per_s}",
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
        checks.at_least(0, latency_s=self.latency_s)
        checks.require(
            self.bandwidth_bytes_per_s > 0,
            "bandwidth_bytes_per_s",
            f"must be positive, not {self.bandwidth_bytes_per_s}",
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
        checks.at_least(1, nodes=self.nodes, devices_per_node=self.devices_per_node)
        checks.done()

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node
