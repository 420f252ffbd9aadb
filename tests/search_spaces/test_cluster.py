"""A cluster names its wrong numbers, and every preset is valid and says where it comes from."""

from __future__ import annotations

import re
from math import inf, nan

import pytest

from runners.reading import read_value
from search_spaces.checks import InvalidValue
from search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec, LinkSpec
from search_spaces.model import ModelSpec
from search_spaces.presets import cluster_presets, model_presets

CPU = {"name": "cpu", "kind": "cpu", "memory_bytes": 1}


def test_devices_are_those_of_all_nodes():
    cluster = ClusterSpec(name="c", nodes=3, devices_per_node=4, device=DeviceSpec(**CPU))
    assert cluster.devices == 12
    assert cluster.device.kind is DeviceKind.CPU


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (DeviceSpec, CPU | {"kind": "tpu"}, "^kind: must be one of cpu, cuda, not 'tpu'$"),
        (DeviceSpec, CPU | {"memory_bytes": 0}, "^memory_bytes: must be at least 1, not 0$"),
        (DeviceSpec, CPU | {"peak_flops": {"bf16": 0.0}}, "^peak_flops.bf16: must be positive and finite, not 0.0$"),
        (DeviceSpec, CPU | {"peak_flops": {"bf16": nan}}, "^peak_flops.bf16: .*not nan$"),
        (DeviceSpec, CPU | {"memory_bandwidth_bytes_per_s": inf}, "^memory_bandwidth_bytes_per_s: .*not inf$"),
        (DeviceSpec, CPU | {"memory_bandwidth_bytes_per_s": -1.0}, "^memory_bandwidth_bytes_per_s: .*not -1.0$"),
        (
            LinkSpec,
            {"latency_s": -1.0, "bandwidth_bytes_per_s": 0.0},
            "^latency_s: must be finite, at least 0, not -1.0; bandwidth_bytes_per_s: must be positive and finite, not",
        ),
        (LinkSpec, {"latency_s": inf, "bandwidth_bytes_per_s": 1.0}, "^latency_s: .*not inf$"),
        (LinkSpec, {"latency_s": 0.0, "bandwidth_bytes_per_s": nan}, "^bandwidth_bytes_per_s: .*not nan$"),
        (ClusterSpec, {"nodes": 0, "devices_per_node": -1}, "^nodes: .*not 0; devices_per_node: .*not -1$"),
        (
            ClusterSpec,
            {"nodes": 2**16, "devices_per_node": 2**16},
            r"^nodes: nodes\(65536\) \* devices_per_node\(65536\) = 4294967296 must be at most 2147483647$",
        ),
    ],
)
def test_wrong_numbers_are_refused_by_name(kind, fields, message):
    if kind is ClusterSpec:
        fields = fields | {"name": "c", "device": DeviceSpec(**CPU)}
    with pytest.raises(InvalidValue, match=message):
        kind(**fields)


def test_a_link_without_latency_is_fine():
    assert LinkSpec(latency_s=0.0, bandwidth_bytes_per_s=1e9).latency_s == 0


@pytest.mark.parametrize("name", model_presets())
def test_every_model_preset_is_valid_and_sourced(name):
    entry = dict(model_presets()[name])
    assert len(entry.pop("source")) > 20
    assert read_value(ModelSpec, entry).name == name


@pytest.mark.parametrize("name", cluster_presets())
def test_every_cluster_preset_is_valid_and_sourced(name):
    entry = dict(cluster_presets()[name])
    assert len(entry.pop("source")) > 20
    assert read_value(ClusterSpec, entry).name == name


@pytest.mark.parametrize("name", ["gpt-micro", "llama-micro"])
def test_the_micro_models_are_as_small_as_their_source_says(name):
    entry = dict(model_presets()[name])
    said = re.search(r"([\d.]+) million", entry.pop("source"))
    model = read_value(ModelSpec, entry)
    assert said is not None
    assert model.parameters / 1e6 == pytest.approx(float(said[1]), rel=0.05)
