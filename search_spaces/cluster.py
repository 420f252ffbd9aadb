"""ClusterSpec: what the job would run on: devices, their speed and memory, and the links between them, tier by tier.

Tiers, innermost first: module (devices that share a package), node, rack (or dragonfly group), everything beyond. The
numbers are line rates; what collectives reach of them is not said here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshtune.search_spaces.checks import MAX_WHOLE, Amount, Checks, Closed, Count, Positive, Some, StrEnum, Whole


class DeviceKind(StrEnum):
    """PyTorch's name of the device; ROCm devices are `cuda` there as well."""

    CPU = "cpu"
    CUDA = "cuda"
    XPU = "xpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRate(Closed):
    """FLOP/s of the product of (rows, inputs) with a weight of (inputs, outputs), and of the two of its backward pass
    together."""

    inputs: Some
    outputs: Some
    rows: Some
    forward_flops: Positive
    backward_flops: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRate(Closed):
    """Bytes/s of a layer's work beside products and attention, in micro-batches of so many tokens."""

    tokens: Some
    bytes_per_s: Positive


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
    attention_flops: Positive | None = None
    attention_backward_flops: Positive | None = None
    layer_bytes_per_s: tuple[LayerRate, ...] = ()
    compiled_layer_bytes_per_s: tuple[LayerRate, ...] = ()
    loss_bytes_per_s: Positive | None = None
    accumulated_per_s: Positive | None = None
    updated_per_s: Positive | None = None
    layer_host_s: Positive | None = None
    compiled_layer_host_s: Positive | None = None
    step_overhead_s: Positive | None = None


UNMEASURED = MeasuredRates()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec(Closed):
    """One device: one rank runs on it. peak_flops: dense FLOP/s by dtype name ("float32", "bfloat16", "float8").
    sustained_flops: what large matrix products reach of it, attention_flops: what fused attention kernels reach, where
    somebody measured them. measured: what training reaches of each by dtype name, where it was probed.

    memory_bytes: what the device has, driver and context included; on CPU the share of the machine that a rank gets.
    """

    name: str
    kind: DeviceKind
    memory_bytes: Some
    peak_flops: dict[str, Positive] = field(default_factory=dict)
    sustained_flops: dict[str, Positive] = field(default_factory=dict)
    attention_flops: dict[str, Positive] = field(default_factory=dict)
    memory_bandwidth_bytes_per_s: Positive | None = None
    measured: dict[str, MeasuredRates] = field(default_factory=dict)

    def _check(self, checks: Checks) -> None:
        object.__setattr__(self, "kind", checks.member(DeviceKind, "kind", self.kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec(Closed):
    """One tier of the network, per device and direction: the alpha and beta of the alpha-beta model.

    latency_s: of one hop of a collective. bandwidth_bytes_per_s: what one device can send over the tier, in one
    direction, to all its peers there together. measured: both are what collectives reached, as `meshtune cluster probe`
    finds them; else they are line rates. switch_adds: the switches add up what devices send (NVLink SHARP).
    """

    latency_s: Amount
    bandwidth_bytes_per_s: Positive
    measured: bool = False
    switch_adds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec(Closed):
    """`nodes` equal nodes of `devices_per_node` equal devices. Links are None where nothing is known of them.

    devices_per_module: devices that share a package (2 in an MI250X or a PVC), module_link what joins them; 1: none do.
    node_link: between the devices of a node. network_link: between nodes, one device's share: the node's network
    cards divided by its devices, so a group with k members in a node may use k shares.
    nodes_per_rack: nodes of one rack or dragonfly group, rack_link one device's share of what leads out of it; 0: one
    flat network. rails: devices of the same place in their nodes share a switch (rail-optimised), so that rings do not
    meet there; else a fat tree. device_hour_price: what an hour of one device costs, in the user's currency; None where
    nobody says. Raises InvalidValue.
    """

    name: str
    nodes: Whole
    devices_per_node: Whole
    device: DeviceSpec
    devices_per_module: Whole = 1
    module_link: LinkSpec | None = None
    node_link: LinkSpec | None = None
    network_link: LinkSpec | None = None
    nodes_per_rack: Count = 0
    rack_link: LinkSpec | None = None
    rails: bool = False
    device_hour_price: Positive | None = None

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
