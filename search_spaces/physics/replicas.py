"""Seconds that the collectives of replicas add to a step: gradients' reduction and ZeRO's gathers, beside computation.

A model of events on two streams in place of sums. Gradients and weights travel in N equal units, buckets or layers, as
each training code cuts them. In a backward pass a unit is ready every b seconds and takes c on the stream of
collectives, one after the other. The last one is ready when the pass ends, so c + (N - 1) max(0, c - b) is left to wait
for (equal jobs on two machines in a row, Johnson 1954). A forward pass that needs gathered weights waits for the first
unit and then likewise. Units that are sharded by `zero_group` are summed once more over the groups, on other links: the
slower of both sets the pace, and the last unit takes both. While a transfer runs, the computation beside it slows down
by a share of the transfer's time (`Constants.exposed_reduction`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshtune.search_spaces.columns import FloatColumn, expert_replicas, expert_tp, sharding_ranks, zero_groups
from meshtune.search_spaces.physics.layer_time import Rank
from meshtune.search_spaces.physics.recipes import base_bytes

# All weights, and the trained ones.
_Both = tuple[FloatColumn, FloatColumn]


@dataclass(frozen=True, slots=True)
class Passes:
    """One micro-batch in the stage that decides: its layers, its weights that all replicas hold alike and experts', and
    the trained ones of both, and seconds of its passes forward and backward."""

    layers: FloatColumn
    weights: tuple[FloatColumn, FloatColumn]
    trained: tuple[FloatColumn, FloatColumn]
    forward_s: FloatColumn
    backward_s: FloatColumn


class _Unit(NamedTuple):
    """Seconds of the collectives of one unit of weights: whole gradients summed over all replicas; their parts made in
    a group and summed over the groups; and weights gathered in a group."""

    reduced: FloatColumn
    scattered: FloatColumn
    summed: FloatColumn
    gathered: FloatColumn


def replicas_s(rank: Rank, passes: Passes) -> FloatColumn:
    """Seconds per step (Rajbhandari et al. 2020, section 7). ZeRO 0 sums gradients; 1 and 2 scatter them and gather
    weights; 3 gathers weights forward and backward, and scatters gradients. Beside computing: what is reduced in the
    backward pass of the last micro-batch (of every one: ZeRO 2 and 3 without a pipeline), and ZeRO 3's gathers."""
    c, framework = rank.columns, rank.training.framework
    # Units: layers and the rest, or buckets.
    count = passes.layers + 1
    if framework.bucket_weights:
        bucket = np.maximum(framework.bucket_weights, framework.bucket_weights_per_rank * c["dp"] * c["cp"])
        buckets = np.maximum(1, np.ceil(sum(passes.trained) / bucket))
        count = np.where(c["zero_stage"] == 3, count, buckets)
    unit = _unit(rank, passes, count)
    share = np.minimum(rank.constants.exposed_reduction, 1.0)

    def shown(pace: FloatColumn, ends: FloatColumn, window: FloatColumn, beside: bool = True) -> FloatColumn:
        """pace, ends: seconds of a unit on the busiest stream, and of what lies before and after the pass, >= pace."""
        whole = (count - 1) * pace + ends
        late = (count - 1) * np.maximum(0.0, pace - window / count) + ends
        return late + share * (whole - late) if beside else whole

    overlaps = framework.overlapped_gradients
    forward, backward = passes.forward_s, passes.backward_s
    sharded = np.maximum(unit.scattered, unit.summed)
    scatter = shown(sharded, unit.scattered + unit.summed, backward, overlaps)
    reduce = shown(unit.reduced, unit.reduced, backward, overlaps)
    if framework.whole_gradients:
        scatter = reduce
    if framework.late_whole_gradients:
        scatter = _unit(rank, passes, np.ones_like(count)).reduced
    late = shown(unit.gathered, unit.gathered, forward, framework.overlapped_gathers)
    if framework.broadcasts_weights:
        late = _broadcasts_s(rank, passes)
    micro = c["grad_accum_steps"]
    rounds = np.where((c["pp"] > 1) | (not framework.reduces_every_micro_batch), 1.0, micro)
    gather = shown(unit.gathered, unit.gathered, forward)
    both = np.maximum(unit.gathered + unit.scattered, unit.summed)
    again = shown(unit.gathered, unit.gathered, backward)
    # The first unit's gather comes before the pass, the last one's parts are made after it.
    through = shown(both, unit.gathered + unit.scattered + unit.summed, backward)
    three = micro * gather + (micro - rounds) * again + rounds * through
    stages = [reduce, scatter + late, rounds * scatter + late, three]
    return np.select([c["zero_stage"] == stage for stage in range(4)], stages)


def _unit(rank: Rank, passes: Passes, count: FloatColumn) -> _Unit:
    c, framework = rank.columns, rank.training.framework
    dense, experts = ((every / count, own / count) for every, own in zip(passes.weights, passes.trained, strict=True))
    group, groups = sharding_ranks(c), zero_groups(c)
    if not rank.training.model.experts:
        return _of(rank, dense, group, c["tp"], groups)
    stride = expert_tp(c) * c["ep"]
    alike = _of(rank, dense, group, c["tp"], groups)
    if not framework.shards_over_experts:
        # Weights that each of the ep ranks has a copy of are summed among these, then scattered and gathered.
        among = rank.network.all_reduce_s(dense[1] * framework.reduce_bytes, c["ep"], expert_tp(c))
        apart = _of(rank, dense, group / c["ep"], stride, groups)
        alike = apart._replace(reduced=alike.reduced, scattered=apart.scattered + among)
    own = _of(rank, experts, expert_replicas(c) / groups, stride, groups)
    return _Unit(*(one + other for one, other in zip(alike, own, strict=True)))


def _of(rank: Rank, both: _Both, group: FloatColumn, stride: FloatColumn, groups: FloatColumn) -> _Unit:
    """Of the ranks that hold the same weights: `groups` groups of `group` ranks, `stride` apart."""
    (weights, trained), training, framework = both, rank.training, rank.training.framework
    network = rank.network
    gradients, nothing = trained * framework.reduce_bytes, np.zeros_like(weights)
    frozen = np.where(rank.columns["zero_stage"] == 3, base_bytes(training.recipe, framework)[0], 0.0)
    gathered = trained * framework.gather_bytes + np.maximum(0.0, weights - trained) * frozen
    whole = framework.whole_gradients or framework.late_whole_gradients or np.any(rank.columns["zero_stage"] == 0)
    scattered = network.gather_s(gradients, group, stride)
    alike = np.array_equal(weights, trained) and framework.gather_bytes == framework.reduce_bytes
    return _Unit(
        network.all_reduce_s(gradients, group * groups, stride) if whole else nothing,
        scattered,
        network.all_reduce_s(gradients / group, groups, stride * group) if np.any(groups > 1) else nothing,
        scattered if alike else network.gather_s(gathered, group, stride),
    )


def _broadcasts_s(rank: Rank, passes: Passes) -> FloatColumn:
    """Each rank of a group sends its part of the weights to all others, one rank after the other."""
    c, framework = rank.columns, rank.training.framework
    (dense, experts), groups = passes.trained, zero_groups(c)
    seconds = rank.network.broadcasts_s(dense * framework.gather_bytes, sharding_ranks(c), c["tp"])
    if not rank.training.model.experts:
        return seconds
    stride = expert_tp(c) * c["ep"]
    return seconds + rank.network.broadcasts_s(experts * framework.gather_bytes, expert_replicas(c) / groups, stride)
