"""Seconds of collectives: the alpha-beta model over the tiers of a cluster, for groups of ranks as columns.

Ranks are laid out with tp fastest, then cp, dp and pp (as Megatron-LM and the built-in trainer do), so a group of n
ranks `stride` apart has some members in a node and the rest elsewhere. Collectives over several nodes are
hierarchical: inside the node first, then every member with the share of the network that is its own, so groups of a
node that work at once share its NICs. Congestion beyond that, and other jobs, are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshtune.search_spaces.cluster import ClusterSpec, LinkSpec
from meshtune.search_spaces.columns import FloatColumn
from meshtune.search_spaces.physics.constants import Constants

# Where a cluster names no link, a group costs nothing: `search_spaces.physics.unknown_speeds` says what is missing.
FREE = LinkSpec(latency_s=0.0, bandwidth_bytes_per_s=1e30)
Number = Any  # a float or a FloatColumn


@dataclass(frozen=True, slots=True)
class Network:
    """The links of a cluster as far as a training code gets to use them."""

    cluster: ClusterSpec
    constants: Constants

    def all_reduce_s(self, size_bytes: Number, n: Number, stride: Number) -> FloatColumn:
        """Seconds to sum `size_bytes` over groups of `n` ranks `stride` apart, each rank then holding all."""
        return 2.0 * self.gather_s(size_bytes, n, stride)

    def gather_s(self, size_bytes: Number, n: Number, stride: Number) -> FloatColumn:
        """Seconds of an all-gather, or of a reduce-scatter, of `size_bytes` in all.

        A ring (Thakur et al. 2005): (n - 1) alpha + (n - 1) / n * S / B, all hops as slow as those between nodes where
        there are such. Bytes go over both tiers: inside a node as in a ring of its members, between nodes as in one of
        the nodes with S / members bytes each.
        """
        inner, outer = self._members(n, stride)
        near_alpha, near_bandwidth = self._near(inner, stride)
        far_alpha, far_bandwidth = self._far(outer, n * stride)
        near = (inner - 1) / inner * size_bytes / near_bandwidth
        hop = np.where(outer > 1, far_alpha * self.constants.network_latency_factor, near_alpha)
        far = (outer - 1) / outer * size_bytes / (inner * far_bandwidth) + (n - 1) * hop
        result: FloatColumn = near + far + self.constants.collective_overhead_s * (np.asarray(n) > 1)
        return result

    def all_to_all_s(self, size_bytes: Number, n: Number, stride: Number) -> FloatColumn:
        """Seconds until every rank has sent its `size_bytes`, an equal part to each of the `n` ranks."""
        inner, outer = self._members(n, stride)
        near_alpha, near_bandwidth = self._near(inner, stride)
        far_alpha, far_bandwidth = self._far(outer, n * stride)
        near = (inner - 1) * near_alpha + (inner - 1) / n * size_bytes / near_bandwidth
        far = (outer - 1) * far_alpha + (n - inner) / n * size_bytes / far_bandwidth
        result: FloatColumn = near + far + self.constants.collective_overhead_s * (np.asarray(n) > 1)
        return result

    def send_s(self, size_bytes: Number, stages: Number, stride: Number) -> FloatColumn:
        """Seconds to send `size_bytes` to the next of `stages` pipeline stages, whose ranks lie `stride` apart. The
        slowest boundary counts: between nodes as soon as the stages do not fit one node."""
        inside = stages * stride <= self.cluster.devices_per_node
        near_alpha, near_bandwidth = self._near(stages, stride)
        far_alpha, far_bandwidth = self._far(self._members(stages, stride)[1], stages * stride)
        near = near_alpha + size_bytes / near_bandwidth
        far = far_alpha * self.constants.network_latency_factor + size_bytes / far_bandwidth
        result: FloatColumn = np.where(inside, near, far)
        return result

    def _members(self, n: Number, stride: Number) -> tuple[FloatColumn, FloatColumn]:
        """The ranks of a group that share a node, and the nodes that the group spreads over."""
        inner = np.clip(self.cluster.devices_per_node // np.asarray(stride), 1, n).astype(np.float64)
        return inner, n / inner

    def _near(self, n: Number, stride: Number) -> tuple[FloatColumn, FloatColumn]:
        """Latency and bandwidth inside a node: of the module's link where the group fits a module."""
        node = self.cluster.node_link or FREE
        module = self.cluster.module_link or node
        within = np.asarray(n * stride) <= self.cluster.devices_per_module
        alpha = np.where(within, module.latency_s, node.latency_s)
        bandwidth = np.where(within, module.bandwidth_bytes_per_s, node.bandwidth_bytes_per_s)
        return alpha, bandwidth * self.constants.node_efficiency

    def _far(self, nodes: Number, span: Number) -> tuple[FloatColumn, FloatColumn]:
        """Latency and bandwidth per device between `nodes`: of the rack's link where the group, over `span` devices
        from its first to its last, leaves a rack."""
        network = self.cluster.network_link or FREE
        rack = self.cluster.rack_link or network
        in_rack = self.cluster.nodes_per_rack * self.cluster.devices_per_node
        leaves = (np.asarray(span) > in_rack) & (in_rack > 0)
        crowd = 1 + self.constants.congestion * np.log2(np.maximum(nodes, 1))
        alpha = np.where(leaves, rack.latency_s, network.latency_s)
        bandwidth = np.where(leaves, rack.bandwidth_bytes_per_s, network.bandwidth_bytes_per_s)
        return alpha, bandwidth * self.constants.network_efficiency / crowd
