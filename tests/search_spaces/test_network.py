"""Collectives by hand: alpha-beta costs over modules, nodes, the network and racks, and NCCL's choices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.runners.documents import read_value
from meshtune.search_spaces.cluster import ClusterSpec, DeviceSpec, LinkSpec
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.network import Network
from meshtune.search_spaces.presets import cluster_presets, described

MODULE = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=400e9)
NODE = LinkSpec(latency_s=2e-6, bandwidth_bytes_per_s=100e9)
NETWORK = LinkSpec(latency_s=10e-6, bandwidth_bytes_per_s=10e9)
RACK = LinkSpec(latency_s=30e-6, bandwidth_bytes_per_s=5e9)
FLAT = ClusterSpec(
    name="flat",
    nodes=8,
    devices_per_node=8,
    device=DeviceSpec(name="any", kind="xpu", memory_bytes=2**30),
    devices_per_module=2,
    module_link=MODULE,
    node_link=NODE,
    network_link=NETWORK,
)
RACKS = replace(FLAT, nodes_per_rack=2, rack_link=RACK)
# Line rates as they are, and nothing beside the links.
BARE = replace(
    DEFAULTS,
    node_efficiency=1.0,
    network_efficiency=1.0,
    collective_overhead_s=1e-30,
    congestion=1e-30,
    network_latency_factor=1.0,
)
S = 8e9


def network(cluster: ClusterSpec = FLAT, **constants: float) -> Network:
    return Network(cluster, replace(BARE, **constants))


@pytest.mark.parametrize(
    ("n", "stride", "expected"),
    [
        (8, 1, 7 * 2e-6 + 7 / 8 * S / 100e9),  # a node
        (4, 2, 3 * 2e-6 + 3 / 4 * S / 100e9),  # half of one
        (2, 1, 1e-6 + S / 2 / 400e9),  # a module
        # One hop of the ring leaves each node; the slower one of all members' network cards and a link counts.
        (16, 1, 14 * 2e-6 + 10e-6 + 15 / 16 * S / (8 * 10e9)),
        (4, 4, 2 * 2e-6 + 10e-6 + 3 / 4 * S / (2 * 10e9)),  # two in a node
        (4, 8, 3 * 10e-6 + 3 / 4 * S / 10e9),  # one in a node
        (4, 16, 3 * 10e-6 + 3 / 4 * S / 10e9),  # one in every second node
    ],
)
def test_a_gather_is_a_pipelined_ring_over_the_tiers(n, stride, expected):
    assert float(network().gather_s(S, n, stride)) == pytest.approx(expected)
    assert float(network().all_reduce_s(S, n, stride)) == pytest.approx(2 * expected)


def test_small_messages_are_summed_in_a_tree_of_the_nodes():
    assert float(network().all_reduce_s(8.0, 64, 1)) == pytest.approx(2 * (7 * 2e-6 + 3 * 10e-6), rel=1e-3)


def test_a_module_link_serves_only_groups_inside_one_module():
    by_group = {
        (n, stride): float(network(FLAT).gather_s(S, n, stride)) for n, stride in [(2, 1), (2, 2), (2, 4), (4, 1)]
    }
    without = replace(FLAT, module_link=None, devices_per_module=1)
    faster = {group: by_group[group] < float(network(without).gather_s(S, *group)) for group in by_group}
    assert faster == {(2, 1): True, (2, 2): False, (2, 4): False, (4, 1): False}


@pytest.mark.parametrize(
    ("n", "stride", "link"),
    [(2, 8, NETWORK), (4, 8, RACK), (2, 16, RACK), (8, 8, RACK)],
    ids=["two neighbours", "four nodes", "two nodes of two racks", "all nodes"],
)
def test_a_ring_leaves_each_rack_once_over_the_links_of_all_its_members(n, stride, link):
    racks = n * stride // 16 if n * stride > 16 else 1
    hops = (n - racks) * NETWORK.latency_s + (racks - 1) * RACK.latency_s
    leaving = min(NETWORK.bandwidth_bytes_per_s, n / racks * RACK.bandwidth_bytes_per_s if racks > 1 else 1e30)
    assert float(network(RACKS).gather_s(S, n, stride)) == pytest.approx(hops + (n - 1) / n * S / leaving)
    assert (racks > 1) == (link is RACK)


@pytest.mark.parametrize("n", [8, 64, 512])
def test_a_rack_of_one_nvlink_domain_costs_the_same_by_trays_as_whole(n):
    """512 devices leave a rack of 72 by the links of all of these at once."""
    presets = cluster_presets()
    whole, trays = (
        replace(read_value(ClusterSpec, described(presets[name])), nodes=nodes)
        for name, nodes in (("gb200-nvl72", 8), ("gb200-trays", 144))
    )
    for what in ("gather_s", "all_reduce_s", "all_to_all_s", "send_s"):
        seconds = [float(getattr(Network(one, DEFAULTS), what)(S, n, 1)) for one in (whole, trays)]
        assert seconds[0] == pytest.approx(seconds[1])
    one_link = S * 511 / 512 / (50e9 * DEFAULTS.network_efficiency)
    assert float(Network(trays, DEFAULTS).gather_s(S, 512, 1)) < one_link / 10


def test_copies_for_one_node_cross_the_network_together():
    plain, once = (float(network().all_to_all_s(S, 64, 1, copies)) for copies in (1, 8))
    assert once == pytest.approx(plain * 8 * (1 - (7 / 8) ** 8) / 8, rel=1e-3)
    assert float(network().all_to_all_s(S, 8, 1, 8)) == float(network().all_to_all_s(S, 8, 1))


def test_parts_that_are_broadcast_cost_as_many_rings_as_there_are_ranks():
    each = S / 64 / (8 * 10e9) + 56 * 2e-6 + 7 * 10e-6
    assert float(network().broadcasts_s(S, 64, 1)) == pytest.approx(64 * each)


def test_congestion_divides_the_network_by_the_doublings_of_its_nodes():
    crowded = network(congestion=0.5)
    assert float(crowded.gather_s(S, 4, 8)) == pytest.approx(3 * 10e-6 + 3 / 4 * S / (10e9 / (1 + 0.5 * 2)))
    assert crowded.gather_s(S, 8, 1) == network().gather_s(S, 8, 1)


@pytest.mark.parametrize(
    ("n", "stride", "expected"),
    [
        (8, 1, 7 * 2e-6 + 7 / 8 * S / 100e9),
        (2, 1, 1e-6 + S / 2 / 400e9),
        (16, 1, 8 * 10e-6 + 8 / 16 * S / 10e9),
        (4, 8, 3 * 10e-6 + 3 / 4 * S / 10e9),
    ],
    ids=["node", "module", "two nodes", "one in a node"],
)
def test_an_all_to_all_sends_each_peer_its_part_over_the_tier_between(n, stride, expected):
    assert float(network().all_to_all_s(S, n, stride)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("stages", "stride", "expected"),
    [
        (2, 1, 1e-6 + S / 400e9),
        (4, 2, 2e-6 + S / 100e9),
        (8, 1, 2e-6 + S / 100e9),
        (16, 1, 10e-6 + S / 10e9),
        (2, 8, 10e-6 + S / 10e9),
    ],
    ids=["module", "node", "whole node", "a boundary between nodes", "between nodes"],
)
def test_a_send_crosses_the_slowest_boundary_of_its_pipeline(stages, stride, expected):
    assert float(network().send_s(S, stages, stride)) == pytest.approx(expected)


@pytest.mark.parametrize("stride", [1, 8, 64])
def test_a_group_of_one_costs_nothing(stride):
    real = Network(RACKS, DEFAULTS)
    assert real.gather_s(S, 1, stride) == real.all_reduce_s(S, 1, stride) == real.all_to_all_s(S, 1, stride) == 0


def probed(link: LinkSpec) -> LinkSpec:
    return replace(link, measured=True)


def test_links_that_were_probed_are_not_discounted_again():
    fast = LinkSpec(latency_s=1e-4, bandwidth_bytes_per_s=46e9, measured=True)
    cluster = replace(FLAT, node_link=fast, network_link=probed(NETWORK))
    reached = Network(cluster, replace(DEFAULTS, collective_overhead_s=1e-30))
    assert 7 / 8 * S / (float(reached.gather_s(S, 8, 1)) - 7 * 1e-4) == pytest.approx(46e9)
    assert 3 / 4 * S / (float(reached.gather_s(S, 4, 8)) - 3 * 10e-6) == pytest.approx(10e9)
    # What is learnt of the cluster still moves them.
    slower = Network(cluster, replace(DEFAULTS, node_efficiency=DEFAULTS.node_efficiency / 2))
    assert float(slower.gather_s(S, 8, 1)) > 1.9 * float(reached.gather_s(S, 8, 1))


H100 = DeviceSpec(name="H100", kind="cuda", memory_bytes=80 * 2**30)
POD = replace(
    FLAT,
    nodes=64,
    device=H100,
    devices_per_module=1,
    module_link=None,
    node_link=LinkSpec(latency_s=3.4e-6, bandwidth_bytes_per_s=450e9),
    network_link=LinkSpec(latency_s=14e-6, bandwidth_bytes_per_s=50e9),
)


def test_a_large_ring_has_the_latency_of_nccls_own_formula():
    # tuning.cc, Simple: 8.4 us + 448 hops in nodes of 3.4 us + 63 between them of 14 us; LL: 6.6, 0.6 and 2.7 us.
    in_simple = 8.4e-6 + 448 * 3.4e-6 + 63 * 14e-6
    assert in_simple == pytest.approx(2.4e-3, rel=0.01)
    assert float(network(POD).gather_s(8.0, 512, 1)) == pytest.approx(6.6e-6 + 448 * 0.6e-6 + 63 * 2.7e-6)
    large = 100e9
    assert float(network(POD).gather_s(large, 512, 1)) == pytest.approx(in_simple + 511 / 512 * large / 400e9)


def test_eight_nodes_of_h100_reach_their_share_of_the_line_rate():
    cluster = replace(POD, nodes=8, rails=True)
    seconds = float(Network(cluster, DEFAULTS).all_reduce_s(S, 64, 1))
    # 8 cards of 50 GB/s: 400 GB/s at line rate, of which training reaches `network_efficiency`.
    assert 220e9 < 2 * 63 / 64 * S / seconds < 400e9


def test_switches_that_add_up_halve_the_bytes_of_an_all_reduce_in_a_node():
    adding = replace(POD, node_link=replace(POD.node_link, switch_adds=True))
    expected = 25e-6 + S / (0.85 * 450e9)
    assert float(network(adding).all_reduce_s(S, 8, 1)) == pytest.approx(expected)
    assert expected < float(network(POD).all_reduce_s(S, 8, 1))
    assert network(adding).gather_s(S, 8, 1) == network(POD).gather_s(S, 8, 1)


def test_rails_keep_rings_apart_and_not_what_goes_to_all_others():
    crowded, rails = (network(replace(FLAT, rails=rails), congestion=0.5) for rails in (False, True))
    assert rails.gather_s(S, 8, 8) == network().gather_s(S, 8, 8) < crowded.gather_s(S, 8, 8)
    assert rails.all_to_all_s(S, 16, 1) == crowded.all_to_all_s(S, 16, 1) > network().all_to_all_s(S, 16, 1)
