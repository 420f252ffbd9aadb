"""ClusterSpec: what the job would run on: devices, their speed and memory, and the links between them, tier by tier.

Tiers, innermost first: module (devices that share a package), node, rack (or dragonfly group), everything beyond.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from meshtune.search_spaces.checks import MAX_WHOLE, Checks, Closed, Count, Limit, Some, StrEnum, Whole

# FLOP/s or bytes/s, and seconds, of which every prediction is a finite number.
Rate = Annotated[float, Limit(1, 1e30)]
Duration = Annotated[float, Limit(above=0, high=10**9)]


class DeviceKind(StrEnum):
    """PyTorch's name of the device; ROCm devices are `cuda` there as well."""

    CPU = "cpu"
    CUDA = "cuda"
    XPU = "xpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRate(Closed):
    """FLOP/s of the product of (rows, inputs) with a weight of (inputs, outputs), and of both backward products."""

    inputs: Some
    outputs: Some
    rows: Some
    forward_flops: Rate
    backward_flops: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRate(Closed):
    """Bytes/s of a layer's work beside products and attention, in micro-batches of so many tokens."""

    tokens: Some
    bytes_per_s: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRate(Closed):
    """FLOP/s of causal attention in 16 bits by one kernel with heads of so many values, in sequences of 16,384 tokens.
    The rate at s tokens goes with s / (s + start_tokens): blocks that are half masked, and the start, cost as much."""

    kernel: str
    head_dim: Some
    forward_flops: Rate
    backward_flops: Rate
    start_tokens: Some


@dataclass(frozen=True, slots=True)
class LayerRun:
    """Seconds of a step of one micro-batch of the built-in trainer with the first `layers` of a model, on one rank
    alone: the median over the ranks of each one's median."""

    layers: int
    micro_batch_size: int
    compiled: bool
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRates(Closed):
    """What training reaches on a device in one number format, as `meshtune cluster probe` measures it by the built-in
    trainer: no efficiency is taken off. None, or empty: not measured. Bytes are those that the physics counts.

    attention_flops, attention_backward_flops: FLOP/s of fused causal attention. layer_bytes_per_s: by ascending
    tokens. loss_bytes_per_s: of what the head does beside its products.
    accumulated_per_s, updated_per_s: weights whose gradients are added up, and that the optimizer moves. layer_host_s:
    host time of a layer's forward and backward pass. compiled_*: the same by torch.compile. step_overhead_s: once per
    step.
    """

    products: tuple[ProductRate, ...] = ()
    attention_flops: Rate | None = None
    attention_backward_flops: Rate | None = None
    layer_bytes_per_s: tuple[LayerRate, ...] = ()
    compiled_layer_bytes_per_s: tuple[LayerRate, ...] = ()
    loss_bytes_per_s: Rate | None = None
    accumulated_per_s: Rate | None = None
    updated_per_s: Rate | None = None
    layer_host_s: Duration | None = None
    compiled_layer_host_s: Duration | None = None
    step_overhead_s: Duration | None = None


UNMEASURED = MeasuredRates()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec(Closed):
    """One device: one rank runs on it."""

    # Warm start compares it.
    name: str
    # PyTorch's name: `cuda` includes ROCm, `xpu` is Intel's.
    kind: DeviceKind
    # With driver and context; on a CPU the share of the machine that a rank gets, and the built-in trainer keeps to.
    memory_bytes: Some
    # It is the host's memory as well, so that nothing can be offloaded; a CPU's always is.
    shares_host_memory: bool = False
    # Dense peak in FLOP/s by number format, such as `{bfloat16: 9.89e14}`.
    peak_flops: dict[str, Rate] = field(default_factory=dict)
    # Measured FLOP/s of large matrix products by number format.
    sustained_flops: dict[str, Rate] = field(default_factory=dict)
    # Measured FLOP/s of fused attention by number format, whatever the kernel; goes before `attention`.
    attention_flops: dict[str, Rate] = field(default_factory=dict)
    # The same of codes that run kernels for this device's own architecture, where `attention` names none.
    own_attention_flops: dict[str, Rate] = field(default_factory=dict)
    # Of the kernels that were timed on it; a training code runs one of them.
    attention: tuple[AttentionRate, ...] = ()
    # Memory bandwidth; none: unknown.
    memory_bandwidth_bytes_per_s: Rate | None = None
    # Of the board, in W; none: unknown.
    power_w: Annotated[float, Limit(above=0, high=10**9)] | None = None
    # What `meshtune cluster probe` measures by number format: predictions take it for shares of peak and bandwidth.
    measured: dict[str, MeasuredRates] = field(default_factory=dict)

    def _check(self, checks: Checks) -> None:
        object.__setattr__(self, "kind", checks.member(DeviceKind, "kind", self.kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec(Closed):
    """One tier of the network, per device and direction: the alpha and beta of the alpha-beta model."""

    # Of one hop of a collective.
    latency_s: Annotated[float, Limit(0, 10**9)]
    # What one device can send over the tier, in one direction, to all its peers there together.
    bandwidth_bytes_per_s: Rate
    # Both are what collectives reached, as a probe finds them, and are not discounted; else they are line rates.
    measured: bool = False
    # The switches add up what devices send (NVLink SHARP).
    switch_adds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec(Closed):
    """`nodes` equal nodes of `devices_per_node` equal devices. Links are None where nothing is known of them.
    Raises InvalidValue."""

    # In results and in `meshtune recommend`; by default the preset's.
    name: str
    # Number of nodes.
    nodes: Whole
    # Devices of a node; one rank runs on each.
    devices_per_node: Whole
    # See below.
    device: DeviceSpec
    # Devices that share a package (2 in an MI250X or a PVC), which divide `devices_per_node`; 1: none do.
    devices_per_module: Whole = 1
    # Between the devices of a package; needs `devices_per_module` above 1.
    module_link: LinkSpec | None = None
    # Between the devices of a node.
    node_link: LinkSpec | None = None
    # Between nodes, one device's share: the node's network cards divided by its devices, so that a group with k members
    # in a node may use k shares.
    network_link: LinkSpec | None = None
    # Nodes of one rack or dragonfly group; 0: one flat network.
    nodes_per_rack: Count = 0
    # One device's share of what leads out of a rack; needs `nodes_per_rack`.
    rack_link: LinkSpec | None = None
    # Devices of the same place in their nodes share a switch, so that rings do not meet there; else a fat tree.
    rails: bool = False
    # What an hour of one device costs; the objective `cost` is then in that currency.
    device_hour_price: Annotated[float, Limit(above=0, high=1e30)] | None = None

    def _check(self, checks: Checks) -> None:
        sizes = f"nodes({self.nodes}) * devices_per_node({self.devices_per_node}) = {self.devices}"
        checks.require(self.devices <= MAX_WHOLE, "nodes", f"{sizes} must be at most {MAX_WHOLE}")
        checks.require(
            self.devices_per_node % self.devices_per_module == 0,
            "devices_per_module",
            f"devices_per_module({self.devices_per_module}) does not divide devices_per_node({self.devices_per_node})",
        )
        checks.require(
            self.module_link is None or self.devices_per_module != 1,
            "module_link",
            "joins the devices of a module, but devices_per_module is 1",
        )
        checks.require(
            self.rack_link is None or self.nodes_per_rack != 0,
            "rack_link",
            "leads out of a rack, but nodes_per_rack is 0: one flat network",
        )

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def domain(self) -> int:
        """Devices that the node's link joins: a node's, or a rack's where the network's link is the node's own (trays
        of one NVLink domain)."""
        joined = self.nodes_per_rack > 0 and self.node_link is not None and self.network_link == self.node_link
        return self.devices_per_node * (self.nodes_per_rack if joined else 1)
