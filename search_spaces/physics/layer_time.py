"""Seconds of one micro-batch in one layer, and in the head, of one rank, by kind of work, for columns of plans.

A roofline with an efficiency that depends on the shapes a rank sees: matrix products at a share of the sustained rate
that falls as their sides get narrow, everything else at a share of the memory's bandwidth, and collectives over the
links. Launching is counted beside it: a layer cannot be faster than the host that launches it. Of ranks that share the
experts the fullest one counts, for all wait for it. Not modelled: congestion beyond a constant, other jobs.

Collectives follow the alpha-beta model over the tiers of a cluster. Ranks are laid out with tp fastest, then cp, dp and
pp (as Megatron-LM and the built-in trainer do), so a group of n ranks `stride` apart has some members in a node and the
rest elsewhere. Over several nodes they are hierarchical: inside the node first, then every member with the share of the
network that is its own, so groups of a node that work at once share its NICs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshtune.search_spaces.cluster import ClusterSpec, DeviceSpec, LinkSpec
from meshtune.search_spaces.columns import CONTEXTS, RECOMPUTES, FloatColumn
from meshtune.search_spaces.physics.activations import expert_load
from meshtune.search_spaces.physics.constants import Constants
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import ContextParallel, Recompute

# What a long, well-shaped matrix product reaches of the peak where the device's description does not say.
SUSTAINED_SHARE = 0.8
# Values of the feed-forward width are read and written once each by the activation.
FFN_PASSES = 2
# Over the scores where attention is not fused: product, mask, softmax, dropout, product (Dao et al. 2022, section 2.2).
SCORE_PASSES = 7
# Over the logits, in all their copies: cast, maximum, exponentials, sums, and the gradient's own.
LOGIT_PASSES = 5
# A backward pass has twice the products of a forward pass, but autograd launches it from C++.
BACKWARD_LAUNCHES = 1.5
# Fused attention computes its scores again in the backward pass: 2.5 forward passes (Dao 2023, section 3.1).
FUSED_BACKWARD = 2.5
# The launching host and the device overlap: the longer one decides. A high power is a maximum with a rounded corner.
CORNER = 8
# Where a cluster names no link, a group costs nothing: `search_spaces.physics.training` says what is missing.
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
        inner, outer, near_alpha, near_bandwidth, far_alpha, far_bandwidth = self._tiers(n, stride)
        near = (inner - 1) / inner * size_bytes / near_bandwidth
        hop = np.where(outer > 1, far_alpha * self.constants.network_latency_factor, near_alpha)
        far = (outer - 1) / outer * size_bytes / (inner * far_bandwidth) + (n - 1) * hop
        result: FloatColumn = near + far + self.constants.collective_overhead_s * (np.asarray(n) > 1)
        return result

    def all_to_all_s(self, size_bytes: Number, n: Number, stride: Number) -> FloatColumn:
        """Seconds until every rank has sent its `size_bytes`, an equal part to each of the `n` ranks."""
        inner, outer, near_alpha, near_bandwidth, far_alpha, far_bandwidth = self._tiers(n, stride)
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

    def _tiers(self, n: Number, stride: Number) -> tuple[FloatColumn, ...]:
        """The members, see `_members`, and latency and bandwidth inside a node and beyond."""
        inner, outer = self._members(n, stride)
        return (inner, outer, *self._near(inner, stride), *self._far(outer, n * stride))

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


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of one micro-batch in one layer of one rank, forward and backward. compute holds the wait for launches.
    weights: the share of it that the gradients of weights take, which zero-bubble schedules move."""

    compute: FloatColumn
    weights: FloatColumn
    recompute: FloatColumn
    tp: FloatColumn
    cp: FloatColumn
    ep: FloatColumn

    @property
    def total(self) -> FloatColumn:
        return self.compute + self.recompute + self.tp + self.cp + self.ep


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's share of the work. columns: the plans' columns, as floats."""

    training: Training
    columns: Mapping[str, FloatColumn]
    constants: Constants
    network: Network

    @property
    def device(self) -> DeviceSpec:
        return self.training.cluster.device

    @property
    def tokens(self) -> FloatColumn:
        """Tokens of one micro-batch on one rank."""
        return self.columns["micro_batch_size"] * self.training.model.seq_len / self.columns["cp"]

    @property
    def routed(self) -> FloatColumn:
        """Copies of tokens of one micro-batch in the feed-forward block, on the fullest rank of ep."""
        load = expert_load(self.training.model, self.training.framework, self.columns["ep"])
        return self.tokens * max(1, self.training.model.top_k) * load

    @property
    def split(self) -> FloatColumn:
        """Over how many ranks the tokens between the blocks are split."""
        return np.where(self.columns["sequence_parallel"] > 0, self.columns["tp"], 1.0)

    @property
    def products_per_s(self) -> float:
        dtype = self.training.framework.dtype
        sustained = self.device.sustained_flops.get(dtype, SUSTAINED_SHARE * self.device.peak_flops[dtype])
        return sustained * self.constants.matmul_efficiency

    @property
    def bytes_per_s(self) -> float:
        """Memory bandwidth that elementwise work reaches."""
        assert self.device.memory_bandwidth_bytes_per_s is not None  # `training.missing` was asked
        return self.device.memory_bandwidth_bytes_per_s * self.constants.memory_efficiency

    @property
    def layer_weights(self) -> FloatColumn:
        return self.dense_weights + self.expert_weights

    @property
    def dense_weights(self) -> FloatColumn:
        """Weights of one layer's attention and, without experts, feed-forward block."""
        model = self.training.model
        block = 0 if model.experts else model.feed_forward_parameters
        return (model.attention_parameters + block) / self.columns["tp"] + model.hidden * model.experts

    @property
    def expert_weights(self) -> FloatColumn:
        """Weights of one layer's experts on one rank."""
        model, c = self.training.model, self.columns
        return model.experts * model.feed_forward_parameters / (c["ep"] * c["tp"])

    def head_s(self) -> FloatColumn:
        """Forward and backward through the output projection and the loss, on the last stage."""
        model = self.training.model
        logits = self.tokens * model.vocab / self.columns["tp"]
        traffic = LOGIT_PASSES * logits * self.training.framework.logit_bytes
        return 3 * 2 * logits * model.hidden / self.products_per_s + traffic / self.bytes_per_s

    def layer(self) -> LayerTime:
        c, framework, constants = self.columns, self.training.framework, self.constants
        full = (c["recompute"] == RECOMPUTES.index(Recompute.FULL)) / c["recompute_interval"]
        selective = (c["recompute"] == RECOMPUTES.index(Recompute.SELECTIVE)) / c["recompute_interval"]
        products, other = self._products_s(), self._elementwise_s()
        attention = self._attention_s()
        backward = FUSED_BACKWARD if framework.fused_attention else 2.0
        traffic = self.layer_weights * 2 * (framework.weight_bytes + framework.gradient_bytes) / self.bytes_per_s
        gradients = 0.0 if framework.fused_accumulation else traffic
        compute = 3 * (products + other) + (1 + backward) * attention + gradients
        recompute = full * (products + other + attention) + selective * attention
        tp, cp, ep = self._tensor_s(full), self._context_s(attention, full, selective), self._experts_s(full)
        busy = compute + recompute + tp + cp + ep
        launching = constants.launch_factor * (
            framework.layer_launch_s * (1 + BACKWARD_LAUNCHES + full) + self._stalled_s(full)
        )
        waiting = (busy**CORNER + launching**CORNER) ** (1 / CORNER) - busy
        return LayerTime(compute + waiting, products + gradients, recompute, tp, cp, ep)

    def _products_s(self) -> FloatColumn:
        """Forward, the matrix products with weights."""
        model, c, narrow = self.training.model, self.columns, self.constants.narrow_rows
        attention = 2 * self.tokens * model.attention_parameters / c["tp"]
        attention = attention * (1 + narrow * (1 / self.tokens + c["tp"] / model.hidden))
        routed = self.routed
        rows = routed * c["ep"] / model.experts if model.experts else routed  # that meet one weight at once
        block = 2 * routed * model.feed_forward_parameters / c["tp"]
        block = block * (1 + narrow * (1 / rows + c["tp"] / model.hidden))
        router = 2 * self.tokens * model.hidden * model.experts
        return (attention + block + router) / self.products_per_s

    def _elementwise_s(self) -> FloatColumn:
        """Forward, the traffic of norms, residuals, activations, and of reading the weights."""
        model, framework, c = self.training.model, self.training.framework, self.columns
        block = FFN_PASSES * model.activation.matrices * self.routed * model.ffn / c["tp"]
        values = self.tokens * framework.hidden_passes * model.hidden / self.split + block
        traffic = values * framework.activation_bytes + self.layer_weights * framework.transfer_bytes
        return traffic / self.bytes_per_s

    def _attention_s(self) -> FloatColumn:
        """Forward, the products with the scores. Causal masking halves them only where they are fused."""
        model, c = self.training.model, self.columns
        flops = 4 * self.tokens * model.seq_len * model.hidden / c["tp"]
        if self.training.framework.fused_attention:
            peak = self.device.peak_flops[self.training.framework.dtype]
            return flops / 2 / (peak * self.constants.attention_efficiency)
        scores = self.tokens * model.seq_len * model.heads / c["tp"]
        traffic = SCORE_PASSES * scores * self.training.framework.activation_bytes
        return flops / self.products_per_s + traffic / self.bytes_per_s

    def _tensor_s(self, full: FloatColumn) -> FloatColumn:
        """Two all-reduces forward and two backward (Shoeybi et al. 2019), two more where the forward pass is repeated.
        With sequence parallelism each is a gather and a scatter of the same bytes, and the backward pass gathers each
        block's input once more (Korthikanti et al. 2022, 4.2.2)."""
        framework = self.training.framework
        size = self.tokens * self.training.model.hidden * framework.transfer_bytes
        half = self.network.gather_s(size, self.columns["tp"], 1.0)
        shown = np.minimum(self.constants.exposed_reduction, 1.0) if framework.overlaps_tensor else 1.0
        halves = 2 * (2 + 2 * shown + 2 * full) + np.where(self.split > 1, 2.0, 0.0)
        return np.where(self.columns["tp"] > 1, halves * half, 0.0)

    def _context_s(self, attention: FloatColumn, full: FloatColumn, selective: FloatColumn) -> FloatColumn:
        """Keys and values of all ranks, gathered forward and backward, and their gradients scattered; the ring hides
        what it can behind attention; Ulysses exchanges heads for sequence (Jacobs et al. 2023). A forward pass that is
        repeated repeats its own, and selective recomputation the gathers as well."""
        model, c, width = self.training.model, self.columns, self.training.framework.transfer_bytes
        kept = 2 * self.tokens * c["cp"] * model.kv_width / c["tp"] * width
        gather = (3 + full + selective) * self.network.gather_s(kept, c["cp"], c["tp"])
        ring = self.exposed_s(gather, (1 + FUSED_BACKWARD) * attention)
        moved = self.tokens * 2 * (model.hidden + model.kv_width) / c["tp"] * width
        exchange = (2 + full) * self.network.all_to_all_s(moved, c["cp"], c["tp"])
        kinds = {ContextParallel.ALL_GATHER: gather, ContextParallel.ULYSSES: exchange, ContextParallel.RING: ring}
        chosen = np.select([c["context"] == CONTEXTS.index(kind) for kind in kinds], list(kinds.values()))
        return np.where(c["cp"] > 1, chosen, 0.0)

    def _experts_s(self, full: FloatColumn) -> FloatColumn:
        """All-to-all before and after the experts, forward and backward (Lepikhin et al. 2020)."""
        model, c = self.training.model, self.columns
        size = self.routed * model.hidden * self.training.framework.transfer_bytes / self.split
        one = self.network.all_to_all_s(size, c["ep"], c["tp"] * c["cp"])
        return np.where(c["ep"] > 1, (4 + 2 * full) * one, 0.0)

    def _stalled_s(self, full: FloatColumn) -> FloatColumn:
        """Delay of a layer's collectives, hop by hop, while transfers of a pipeline between nodes are under way."""
        c = self.columns
        devices = c["tp"] * c["cp"] * c["dp"] * c["pp"]
        stalls = (c["tp"] > 1) & (c["pp"] > 1) & (devices > self.training.cluster.devices_per_node)
        hops = (10 + 4 * full) * c["tp"]
        return np.where(stalls, hops * self.training.framework.pipeline_hop_s, 0.0)

    def exposed_s(self, transfer: FloatColumn, window: FloatColumn) -> FloatColumn:
        """Seconds that a transfer beside `window` seconds of work adds: a share, and the excess over the window."""
        shown = np.minimum(self.constants.exposed_reduction, 1.0)
        result: FloatColumn = shown * transfer + np.maximum(0.0, (1 - shown) * transfer - window)
        return result
