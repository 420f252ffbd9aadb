"""Small spaces on an imagined cluster, on which searches are tried without running anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec, LinkSpec
from meshtune.search_spaces.columns import Capabilities, SpaceContext
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.framework_profiles import MEGATRON_DEEPSPEED
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import ContextParallel, Recompute, Schedule
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.base import Task

DEVICE = DeviceSpec(
    name="toy",
    kind=DeviceKind.CUDA,
    memory_bytes=40 * 2**30,
    memory_bandwidth_bytes_per_s=1.5e12,
    peak_flops={"float16": 312e12, "bfloat16": 312e12},
    sustained_flops={"float16": 250e12, "bfloat16": 250e12},
)
MODEL = ModelSpec(name="toy", layers=24, hidden=2048, heads=16, ffn=8192, vocab=32000, seq_len=2048)
ABLE = Capabilities(
    recompute=frozenset(Recompute),
    schedules=frozenset({Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.GPIPE}),
    zero_stages_with_pp=frozenset({0, 1}),
    contexts=frozenset(ContextParallel),
)


def make_space(nodes: int, batch: int | None, bounds: Bounds) -> Space:
    cluster = ClusterSpec(
        name="toy",
        nodes=nodes,
        devices_per_node=8,
        device=DEVICE,
        node_link=LinkSpec(latency_s=3e-6, bandwidth_bytes_per_s=2.4e11),
        network_link=LinkSpec(latency_s=5e-6, bandwidth_bytes_per_s=2.5e10),
    )
    return Space(bounds, SpaceContext(model=MODEL, cluster=cluster, global_batch_size=batch, capabilities=ABLE))


def task_of(space: Space, **more: Any) -> Task:
    """The task of finding the best plan of the space."""
    training = Training(space.context.model, space.context.cluster, MEGATRON_DEEPSPEED)
    return Task(space=space, training=training, **more)


@pytest.fixture(scope="session")
def space() -> Space:
    """69 plans with every kind of dimension: degrees, a stage, two categories; small enough to exhaust."""
    return make_space(1, 16, Bounds(zero_stage=(0, 1), schedule=(Schedule.ONE_F_ONE_B, Schedule.GPIPE)))


@pytest.fixture(scope="session")
def make() -> Callable[[int, int | None, Bounds], Space]:
    return make_space


@pytest.fixture(scope="session")
def task() -> Callable[..., Task]:
    return task_of
