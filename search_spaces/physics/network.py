"""Seconds of collectives over the links of a cluster, for columns of plans at once.

The alpha-beta model over the tiers module, node, network and rack, with the algorithms and protocols of NCCL where the
links are line rates of accelerators: the fastest one is taken, as NCCL's own cost model does (github.com/NVIDIA/nccl at
5067397c, src/graph/tuning.cc, ncclTopoTuneModel). A ring over several nodes is pipelined, so that its slowest tier
alone counts for the bytes: what leaves a domain (a node, a rack) leaves it once for all members inside, over the links
of all of them at once. Hops are counted tier by tier. Where the network's link is the node's own (trays of one NVLink
domain), the rack is the node.

Ranks are laid out with tp fastest, then cp, dp and pp (as Megatron-LM and the built-in trainer do), so a group of n
ranks `stride` apart has some members in a node and the rest elsewhere. The groups of a node work at once: each member
has the share of the network that is its own. Not modelled: collectives in network switches (SHARP over InfiniBand),
other jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshtune.search_spaces.checks import MAX_WHOLE
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, LinkSpec
from meshtune.search_spaces.columns import FloatColumn
from meshtune.search_spaces.physics.constants import DEFAULTS, Constants

Number = Any  # a float or a FloatColumn

# Where a cluster names no link, a group costs nothing: `search_spaces.physics.training` says what is missing.
FREE = LinkSpec(latency_s=0.0, bandwidth_bytes_per_s=1e30)


class NcclProtocol(NamedTuple):
    """One of NCCL's: how it trades bandwidth for latency, against the links' own figures, which are Simple's."""

    # Seconds of a collective beside its hops.
    base_s: float
    # Factors on the latency of a hop: in a node, between nodes, and there for groups with one member a node.
    near: float
    far: float
    alone: float
    # Of the bandwidth; and bytes per second that it cannot exceed between nodes.
    share: float
    far_most: float


# tuning.cc, ncclTunerConstantsDefaults: baseLatencies and hwLatencies of Ring in microseconds (Simple 8.4, 3.4, 14;
# LL128 14, 1.9, 4; LL 6.6, 0.6, 2.7), of Tree between nodes for one member a node (14, 8.5, 5), llMaxBws.
SIMPLE = NcclProtocol(8.4e-6, 1.0, 1.0, 1.0, 1.0, 1e30)
LL128 = NcclProtocol(14e-6, 1.9 / 3.4, 4.0 / 14, 8.5 / 14, 0.92, 1e30)
LL = NcclProtocol(6.6e-6, 0.6 / 3.4, 2.7 / 14, 5.0 / 14, 0.5, 20e9)
NCCL = (SIMPLE, LL128, LL)
# Links that were measured, and libraries of which nothing is known.
PLAIN = (NcclProtocol(0.0, 1.0, 1.0, 1.0, 1.0, 1e30),)
# A tree reaches this share of a ring's bandwidth (tuning.cc).
TREE_SHARE = 0.92
# Switches that add up what passes (NVLS): each device sends and receives the bytes once, at this share of its link;
# seconds of a hop in a node and between nodes (tuning.cc: nvlsEfficiency of Hopper, hwLatencies of NVLS and NVLSTree).
SWITCH_SHARE, SWITCH_NEAR_S, SWITCH_FAR_S = 0.85, 25e-6, 20.9e-6
# Messages of an all-to-all that are under way together (NCCL_MAX_DEV_WORK_P2P_PER_BATCH, src/include/device.h).
MESSAGES_AT_ONCE = 8


class _Group(NamedTuple):
    """The ranks of a collective, and what they get to use of the links."""

    # Ranks; those that share a node, and a rack; the nodes and the racks, 1 where there are none.
    ranks: FloatColumn
    inner: FloatColumn
    in_rack: FloatColumn
    outer: FloatColumn
    racks: Number
    # Seconds of a hop and bytes per second of a rank: in a node, between nodes, and between racks.
    near_s: FloatColumn
    near: FloatColumn
    far_s: FloatColumn
    far: FloatColumn
    rack_s: FloatColumn
    rack: FloatColumn


@dataclass(frozen=True, slots=True)
class Network:
    """The links of a cluster as far as a training code gets to use them."""

    cluster: ClusterSpec
    constants: Constants

    def gather_s(self, size_bytes: Number, n: Number, stride: Number) -> FloatColumn:
        """Seconds of an all-gather, or of a reduce-scatter, of `size_bytes` in all, over groups of `n` ranks `stride`
        apart. A ring: (n - 1) hops, (n - 1) / n of the bytes over each link (Thakur et al. 2005)."""
        group = self._group(n, stride)
        return self._started(group, self._fastest(lambda protocol: self._ring_s(group, protocol, size_bytes, 1)))

    def all_reduce_s(self, size_bytes: Number, n: Number, stride: Number) -> FloatColumn:
        """Seconds to sum `size_bytes` over groups of `n` ranks `stride` apart, each rank then holding all: a ring, a
        tree where there are several nodes, or the switches where these add up."""
        group = self._group(n, stride)
        fastest = self._fastest(lambda protocol: self._ring_s(group, protocol, size_bytes, 2))
        if np.any(group.outer > 1):
            tree = self._fastest(lambda protocol: self._tree_s(group, protocol, size_bytes))
            fastest = np.where(group.outer > 1, np.minimum(fastest, tree), fastest)
        if self.cluster.node_link is not None and self.cluster.node_link.switch_adds:
            switched = self._switched_s(group, size_bytes)
            fastest = np.where(group.inner > 2, np.minimum(fastest, switched), fastest)
        return self._started(group, fastest)

    def broadcasts_s(self, size_bytes: Number, n: Number, stride: Number) -> FloatColumn:
        """Seconds until each of `n` ranks has sent its equal part of `size_bytes` to all others, one after the other:
        each a ring with as many hops as a gather of all (InternEvo's hybrid_zero_optim.py, broadcast_params)."""
        group = self._group(n, stride)

        # A broadcast sends all of a part over each link, a ring of a gather (n - 1) / n of its bytes.
        part = size_bytes / np.maximum(1.0, group.ranks - 1)

        def each(protocol: NcclProtocol) -> FloatColumn:
            return self._ring_s(group, protocol, part, 1)

        return group.ranks * self._started(group, self._fastest(each))

    def all_to_all_s(self, size_bytes: Number, n: Number, stride: Number, copies: int = 1) -> FloatColumn:
        """Seconds until every rank has sent its `size_bytes`, an equal part to each of the `n` ranks: over all tiers at
        once, each with its own messages. Of `copies` of one value, to ranks by chance, those for one node cross the
        network together: of N nodes N (1 - (1 - 1/N)^copies) get some (DeepEP's way, github.com/deepseek-ai/DeepEP)."""
        group = self._group(n, stride, spread=True)
        together = MESSAGES_AT_ONCE if self._accelerated else 1
        once = group.outer * (1 - (1 - 1 / group.outer) ** copies) / copies
        tiers = (
            (group.inner - 1, 1.0, group.near_s, group.near),
            (group.in_rack - group.inner, once, group.far_s, group.far),
            (group.ranks - group.in_rack, once, group.rack_s, group.rack),
        )
        seconds = [
            np.ceil(others / together) * hop_s + others / group.ranks * size_bytes * share / reached
            for others, share, hop_s, reached in tiers
        ]
        return self._started(group, np.max(seconds, axis=0))

    def send_s(self, size_bytes: Number, stages: Number, stride: Number) -> FloatColumn:
        """Seconds to send `size_bytes` to the next of `stages` pipeline stages, whose ranks lie `stride` apart. The
        slowest boundary counts: between nodes as soon as the stages do not fit one node."""
        group, span = self._group(stages, stride), np.asarray(stages * stride)
        near = group.near_s + size_bytes / group.near
        far = group.far_s + size_bytes / group.far
        beyond = group.rack_s + size_bytes / group.rack
        devices, in_rack = self._domain
        result: FloatColumn = np.select([span <= devices, span <= in_rack], [near, far], beyond)
        return result

    def _started(self, group: _Group, seconds: FloatColumn) -> FloatColumn:
        """With what starts a collective; nothing for a group of one."""
        return np.where(group.ranks > 1, seconds + self.constants.collective_overhead_s, 0.0)

    @property
    def _accelerated(self) -> bool:
        """NCCL, or RCCL, which has its algorithms, drives the links."""
        return self.cluster.device.kind is DeviceKind.CUDA

    def _fastest(self, seconds: Callable[[NcclProtocol], FloatColumn]) -> FloatColumn:
        links = (self.cluster.node_link, self.cluster.network_link)
        protocols = PLAIN if not self._accelerated or any(link and link.measured for link in links) else NCCL
        result: FloatColumn = np.min([seconds(protocol) for protocol in protocols], axis=0)
        return result

    def _ring_s(self, group: _Group, protocol: NcclProtocol, size_bytes: Number, passes: int) -> FloatColumn:
        """passes: 1 for a gather or a scatter, 2 for both of them."""
        between = (group.outer - group.racks) * group.far_s
        if np.any(group.racks > 1):
            between = between + (group.racks - 1) * group.rack_s
        between = between * np.where(group.inner > 1, protocol.far, protocol.alone)
        hops = (group.ranks - group.outer) * group.near_s * protocol.near + between
        sent = (group.ranks - 1) / group.ranks * size_bytes / _slowest(group, protocol)
        result: FloatColumn = protocol.base_s + passes * (hops + sent)
        return result

    def _tree_s(self, group: _Group, protocol: NcclProtocol, size_bytes: Number) -> FloatColumn:
        """A chain in each node and a tree of the nodes, up and down."""
        between = np.log2(group.outer / group.racks) * group.far_s + np.log2(group.racks) * group.rack_s
        between = between * np.where(group.inner > 1, protocol.far, protocol.alone)
        hops = (group.inner - 1) * group.near_s * protocol.near + between
        result: FloatColumn = protocol.base_s + 2 * (hops + size_bytes / (TREE_SHARE * _slowest(group, protocol)))
        return result

    def _switched_s(self, group: _Group, size_bytes: Number) -> FloatColumn:
        """In the switches of each node, and between the nodes as in a tree, at the ring's bytes."""
        inside = size_bytes / (SWITCH_SHARE * group.near)
        between = 2 * (group.outer - 1) / group.outer * size_bytes / _leaving(group)
        hops = SWITCH_NEAR_S + 2 * np.log2(group.outer) * SWITCH_FAR_S
        result: FloatColumn = hops + np.maximum(inside, between)
        return result

    def _group(self, n: Number, stride: Number, *, spread: bool = False) -> _Group:
        """spread: members exchange with all others, also with those on other rails."""
        ranks, (devices, in_rack) = np.asarray(n, dtype=np.float64), self._domain
        inner = np.clip(np.floor(devices / np.asarray(stride)), 1.0, ranks)
        rack: FloatColumn = ranks
        racks: Number = 1.0
        if in_rack < MAX_WHOLE:
            rack = np.clip(np.floor(in_rack / np.asarray(stride)), 1.0, ranks)
            racks = ranks / rack
        # Inside a node: of the module's link where the group fits a module.
        node = self.cluster.node_link or FREE
        module = self.cluster.module_link or node
        within = np.asarray(inner * stride) <= self.cluster.devices_per_module
        near_s = np.where(within, module.latency_s, node.latency_s)
        near = np.where(within, self._near_reached(module), self._near_reached(node))
        outer = ranks / inner
        # What leads out of the domain's devices, and out of its racks.
        network = self.cluster.network_link or FREE
        beyond = self.cluster.rack_link or network
        links = (beyond if self.cluster.domain > self.cluster.devices_per_node else network, beyond)
        hops = (link.latency_s * self.constants.network_latency_factor for link in links)
        far_s, rack_s = (np.broadcast_to(hop, ranks.shape) for hop in hops)
        far, out = (self._far_reached(link, outer, spread=spread) for link in links)
        return _Group(ranks, inner, rack, outer, racks, near_s, near, far_s, far, rack_s, out)

    @property
    def _domain(self) -> tuple[int, int]:
        """Devices that the node's link joins, and those of a rack; all of them where there are no racks."""
        cluster = self.cluster
        rack = cluster.nodes_per_rack * cluster.devices_per_node
        return cluster.domain, rack if rack > cluster.domain else MAX_WHOLE

    def _near_reached(self, link: LinkSpec) -> FloatColumn:
        share = self.constants.node_efficiency
        share = share / DEFAULTS.node_efficiency if link.measured else share
        return np.asarray(link.bandwidth_bytes_per_s * share, dtype=np.float64)

    def _far_reached(self, link: LinkSpec, nodes: Number, *, spread: bool) -> FloatColumn:
        """Of a line rate, the share that collectives reach, less the more nodes meet in the switches. On a network of
        rails, rings and sends stay on their rail and meet nobody."""
        share = self.constants.network_efficiency
        if link.measured:
            share = share / DEFAULTS.network_efficiency
        elif spread or not self.cluster.rails:
            share = share / (1 + self.constants.congestion * np.log2(np.maximum(nodes, 1)))
        return np.asarray(link.bandwidth_bytes_per_s * share, dtype=np.float64)


def _slowest(group: _Group, protocol: NcclProtocol) -> FloatColumn:
    """Bytes per second of a pipelined ring: of a rank's link in the node, or of all members' shares between nodes."""
    near = group.near * protocol.share
    far = np.minimum(_leaving(group) * protocol.share, protocol.far_most)
    return np.where(group.outer > 1, np.where(group.inner > 1, np.minimum(near, far), far), near)


def _leaving(group: _Group) -> FloatColumn:
    """Bytes per second out of a node, by all its members, or out of a rack, by all of its, whichever are fewer."""
    leaving: FloatColumn = group.inner * group.far
    if np.any(group.racks > 1):
        leaving = np.where(group.racks > 1, np.minimum(leaving, group.in_rack * group.rack), leaving)
    return leaving
