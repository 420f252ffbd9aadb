"""What must be known before a step's time can be predicted, and when each fact may be left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.search_spaces.cluster import ClusterSpec, DeviceSpec, LinkSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.framework_profiles import MEGATRON_DEEPSPEED, TRAINER, TRAINER_BFLOAT16
from meshtune.search_spaces.physics.training import Training, missing, with_usual_speeds

MODEL = ModelSpec(name="any", layers=4, hidden=256, heads=8, ffn=1024, vocab=1024, seq_len=128)
LINK = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=1e9)
DEVICE = DeviceSpec(
    name="X1", kind="cuda", memory_bytes=2**30, peak_flops={"bfloat16": 1e14}, memory_bandwidth_bytes_per_s=1e12
)
CLUSTER = ClusterSpec(name="any", nodes=2, devices_per_node=8, device=DEVICE, node_link=LINK, network_link=LINK)
PEAK, BANDWIDTH = "cluster.device.peak_flops.bfloat16", "cluster.device.memory_bandwidth_bytes_per_s"
NODE, NETWORK = "cluster.node_link", "cluster.network_link"


def paths(framework=TRAINER_BFLOAT16, **changes) -> list[str]:
    return [problem.path for problem in missing(Training(MODEL, replace(CLUSTER, **changes), framework))]


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        ({}, []),
        ({"device": replace(DEVICE, peak_flops={})}, [PEAK]),
        ({"device": replace(DEVICE, memory_bandwidth_bytes_per_s=None)}, [BANDWIDTH]),
        ({"node_link": None}, [NODE]),
        ({"network_link": None}, [NETWORK]),
        ({"node_link": None, "network_link": None}, [NODE, NETWORK]),
        ({"devices_per_node": 1, "node_link": None}, []),
        ({"nodes": 1, "network_link": None}, []),
        ({"nodes": 1, "devices_per_node": 1, "node_link": None, "network_link": None}, []),
        ({"devices_per_module": 8, "module_link": LINK, "node_link": None}, []),
        ({"devices_per_module": 2, "module_link": LINK, "node_link": None}, [NODE]),
        ({"devices_per_module": 8, "node_link": None}, [NODE]),
        ({"devices_per_module": 2}, []),
        ({"nodes_per_rack": 1}, []),
    ],
)
def test_each_fact_is_asked_for_exactly_where_a_time_depends_on_it(changes, lacking):
    assert paths(**changes) == lacking


@pytest.mark.parametrize(("framework", "dtype"), [(MEGATRON_DEEPSPEED, "float16"), (TRAINER["float32"], "float32")])
def test_the_peak_that_counts_is_that_of_the_frameworks_format(framework, dtype):
    assert paths(framework) == [f"cluster.device.peak_flops.{dtype}"]


def test_a_message_names_what_is_known_and_how_to_find_out():
    (problem,) = missing(Training(MODEL, CLUSTER, TRAINER["float32"]))
    assert "X1 has a peak for bfloat16" in problem.message
    assert "meshtune cluster probe" in problem.message
    (problem,) = missing(Training(MODEL, replace(CLUSTER, device=replace(DEVICE, peak_flops={})), TRAINER_BFLOAT16))
    assert "a peak for no format" in problem.message
    (problem,) = missing(Training(MODEL, replace(CLUSTER, network_link=None), TRAINER_BFLOAT16))
    assert "2 nodes" in problem.message


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_with_usual_speeds_nothing_is_missing_and_what_is_known_stays(kind: str) -> None:
    bare = replace(CLUSTER, device=DeviceSpec(name="?", kind=kind, memory_bytes=2**30), node_link=None)
    training = with_usual_speeds(Training(MODEL, bare, TRAINER_BFLOAT16))
    assert not missing(training)
    assert training.cluster.network_link == LINK
    known = Training(MODEL, CLUSTER, TRAINER_BFLOAT16)
    assert with_usual_speeds(known) == known
    other = with_usual_speeds(Training(MODEL, CLUSTER, TRAINER["float32"]))
    assert other.cluster.device.peak_flops["bfloat16"] == 1e14
    assert not missing(other)
