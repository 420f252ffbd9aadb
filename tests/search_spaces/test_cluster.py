"""A cluster names its wrong numbers, tier by tier."""

from __future__ import annotations

from math import inf, nan

import pytest

from meshtune.runners.documents import read_value
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import ClusterSpec, DeviceSpec, LinkSpec

CPU = {"name": "cpu", "kind": "cpu", "memory_bytes": 1}
LINK = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=1e9)
EIGHT = {"nodes": 1, "devices_per_node": 8}


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (DeviceSpec, CPU | {"kind": "tpu"}, "^kind: must be one of cpu, cuda, xpu, not 'tpu'$"),
        (DeviceSpec, CPU | {"memory_bytes": 0}, "^memory_bytes: must be at least 1, not 0$"),
        (DeviceSpec, CPU | {"peak_flops": {"bf16": 0.0}}, "^peak_flops.bf16: must be at least 1, not 0.0$"),
        (DeviceSpec, CPU | {"peak_flops": {"bf16": nan}}, "^peak_flops.bf16: .*not nan$"),
        (DeviceSpec, CPU | {"memory_bandwidth_bytes_per_s": inf}, "^memory_bandwidth_bytes_per_s: .*not inf$"),
        (DeviceSpec, CPU | {"memory_bandwidth_bytes_per_s": -1.0}, "^memory_bandwidth_bytes_per_s: .*not -1.0$"),
        (
            LinkSpec,
            {"latency_s": -1.0, "bandwidth_bytes_per_s": 0.0},
            "^latency_s: must be at least 0, not -1.0; bandwidth_bytes_per_s: must be at least 1, not 0.0$",
        ),
        (
            LinkSpec,
            {"latency_s": 1e300, "bandwidth_bytes_per_s": 5e-324},
            "^latency_s: must be at most 1000000000, not 1e\\+300; bandwidth_bytes_per_s: .*at least 1, not 5e-324$",
        ),
        (LinkSpec, {"latency_s": inf, "bandwidth_bytes_per_s": 1.0}, "^latency_s: .*not inf$"),
        (LinkSpec, {"latency_s": 0.0, "bandwidth_bytes_per_s": nan}, "^bandwidth_bytes_per_s: .*not nan$"),
        (ClusterSpec, {"nodes": 0, "devices_per_node": -1}, "^nodes: .*not 0; devices_per_node: .*not -1$"),
        (
            ClusterSpec,
            {"nodes": 2**16, "devices_per_node": 2**16},
            r"^nodes: nodes\(65536\) \* devices_per_node\(65536\) = 4294967296 must be at most 2147483647$",
        ),
        (
            ClusterSpec,
            EIGHT | {"devices_per_module": 3},
            r"^devices_per_module: devices_per_module\(3\) does not divide devices_per_node\(8\)$",
        ),
        (
            ClusterSpec,
            EIGHT | {"devices_per_module": 16},
            r"^devices_per_module: devices_per_module\(16\) does not divide devices_per_node\(8\)$",
        ),
        (ClusterSpec, EIGHT | {"devices_per_module": 0}, "^devices_per_module: must be at least 1, not 0$"),
        (ClusterSpec, EIGHT | {"devices_per_module": 2.0}, "^devices_per_module: must be an integer, not 2.0$"),
        (
            ClusterSpec,
            EIGHT | {"module_link": LINK},
            "^module_link: joins the devices of a module, but devices_per_module is 1$",
        ),
        (ClusterSpec, EIGHT | {"nodes_per_rack": -1}, "^nodes_per_rack: must be at least 0, not -1$"),
        (
            ClusterSpec,
            EIGHT | {"rack_link": LINK},
            "^rack_link: leads out of a rack, but nodes_per_rack is 0: one flat network$",
        ),
        (ClusterSpec, EIGHT | {"device_hour_price": 0.0}, "^device_hour_price: must be positive, not 0.0$"),
        (ClusterSpec, EIGHT | {"device_hour_price": nan}, "^device_hour_price: .*not nan$"),
        (
            ClusterSpec,
            EIGHT | {"devices_per_module": 0, "nodes_per_rack": -2},
            "^devices_per_module: .*; nodes_per_rack: must be at least 0, not -2$",
        ),
    ],
)
def test_wrong_numbers_are_refused_by_name(kind, fields, message):
    if kind is ClusterSpec:
        fields = fields | {"name": "c", "device": DeviceSpec(**CPU)}
    with pytest.raises(InvalidValue, match=message):
        kind(**fields)


def test_every_tier_can_be_read_from_a_document():
    links = {
        f"{tier}_link": {"latency_s": 1e-6, "bandwidth_bytes_per_s": bandwidth}
        for tier, bandwidth in [("module", 2e11), ("node", 1e11), ("network", 1e10), ("rack", 5e9)]
    }
    tiers = {"devices_per_module": 2, "nodes_per_rack": 3, **links}
    cluster = read_value(ClusterSpec, {"name": "c", "nodes": 7, "devices_per_node": 8, "device": CPU, **tiers})
    assert (cluster.devices_per_module, cluster.nodes_per_rack, cluster.devices) == (2, 3, 56)
    assert cluster.module_link == LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=2e11)
    assert cluster.rack_link == LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=5e9)
