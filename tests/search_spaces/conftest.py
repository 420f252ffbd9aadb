"""Small settings to build spaces from: a model, a cluster, a batch, and what the trainer can run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec
from meshtune.search_spaces.columns import Capabilities, SpaceContext
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import ContextParallel, Recompute, Schedule

SHAPES = {"name": "toy", "layers": 8, "hidden": 512, "heads": 8, "ffn": 2048, "vocab": 1024, "seq_len": 256}
EVERYTHING = Capabilities(
    schedules=frozenset(Schedule),
    recompute=frozenset(Recompute),
    zero_stages_with_pp=frozenset({0, 1, 2, 3}),
    contexts=frozenset(ContextParallel),
    recompute_intervals=True,
    choice_of_sequence_parallel=True,
    expert_parallel=True,
    expert_folding=True,
    zero_groups=frozenset({1, 2, 3}),
    kv_replication=True,
    experts=True,
    stage_splits=None,
)
MakeModel = Callable[..., ModelSpec]
MakeSetting = Callable[..., SpaceContext]


@pytest.fixture(scope="session")
def make_model() -> MakeModel:
    """A model of 8 layers and 8 heads; keywords change its shapes."""

    def make(**shapes: object) -> ModelSpec:
        return ModelSpec(**SHAPES | shapes)

    return make


@pytest.fixture(scope="session")
def make_setting(make_model: MakeModel) -> MakeSetting:
    """The toy model on `nodes` * `devices_per_node` devices, with a trainer that can do everything."""

    def make(
        *,
        nodes: int = 1,
        devices_per_node: int = 8,
        batch: int | None = 32,
        able: Capabilities = EVERYTHING,
        tp_across_nodes: bool = False,
        kind: str = "cuda",
        **shapes: object,
    ) -> SpaceContext:
        device = DeviceSpec(name="toy", kind=DeviceKind(kind), memory_bytes=2**30)
        return SpaceContext(
            model=make_model(**shapes),
            cluster=ClusterSpec(name="toy", nodes=nodes, devices_per_node=devices_per_node, device=device),
            global_batch_size=batch,
            capabilities=able,
            tp_across_nodes=tp_across_nodes,
        )

    return make
