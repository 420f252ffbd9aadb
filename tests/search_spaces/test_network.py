"""Collectives by hand: alpha-beta costs over modules, nodes, the network and racks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.search_spaces.cluster import ClusterSpec, DeviceSpec, LinkSpec
from meshtune.search_spaces.physics.constants import DEFAULTS
from meshtune.search_spaces.physics.layer_time import Network

MODULE = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=400e9)
NODE = LinkSpec(latency_s=2e-6, bandwidth_bytes_per_s=100e9)
NETWORK = LinkSpec(latency_s=10e-6, bandwidth_bytes_per_s=10e9)
RACK = LinkSpec(latency_s=30e-6, bandwidth_bytes_per_s=5e9)
FLAT = ClusterSpec(
    name="flat",
    nodes=8,
    devices_per_node=8,
    device=DeviceSpec(name="any", kind="cuda", memory_bytes=2**30),
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
        # Every hop of the ring is as slow as the network; a node sends its share over all its members' cards.
        (16, 1, 15 * 10e-6 + 7 / 8 * S / 100e9 + S / 2 / (8 * 10e9)),
        (4, 4, 3 * 10e-6 + S / 2 / 100e9 + S / 2 / (2 * 10e9)),  # two in a node
        (4, 8, 3 * 10e-6 + 3 / 4 * S / 10e9),  # one in a node
        (4, 16, 3 * 10e-6 + 3 / 4 * S / 10e9),  # one in every second node
    ],
)
def test_an_all_reduce_is_two_rings_over_the_tiers(n, stride, expected):
    assert float(network().gather_s(S, n, stride)) == pytest.approx(expected)
    assert float(network().all_reduce_s(S, n, stride)) == pytest.approx(2 * expected)


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
def test_a_group_that_leaves_its_rack_runs_at_the_racks_link(n, stride, link):
    expected = (n - 1) * link.latency_s + (n - 1) / n * S / link.bandwidth_bytes_per_s
    assert float(network(RACKS).gather_s(S, n, stride)) == pytest.approx(expected)


def test_congestion_divides_the_network_by_the_doublings_of_its_nodes():
    crowded = network(congestion=0.5)
    assert float(crowded.gather_s(S, 4, 8)) == pytest.approx(3 * 10e-6 + 3 / 4 * S / (10e9 / (1 + 0.5 * 2)))
    assert crowded.gather_s(S, 8, 1) == network().gather_s(S, 8, 1)


@pytest.mark.parametrize(
    ("n", "stride", "expected"),
    [
        (8, 1, 7 * 2e-6 + 7 / 8 * S / 100e9),
        (2, 1, 1e-6 + S / 2 / 400e9),
        (16, 1, 7 * 2e-6 + 7 / 16 * S / 100e9 + 10e-6 + 8 / 16 * S / 10e9),
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
