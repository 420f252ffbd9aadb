"""What the REST API shows of the house itself: what is installed, what is shipped, and how the runners do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from importlib.resources import files
from typing import Any

from meshtune.runners.documents import read_value
from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import Verdict
from meshtune.runners.registry import RUNNERS, WORKLOADS
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import PLAN_FIELDS
from meshtune.tuner.campaign.objective import Objective
from meshtune.tuner.results.export import FORMATS
from meshtune.tuner.search.registry import SEARCHES


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """experts: null for a dense model."""

    name: str
    parameters: int
    layers: int
    hidden_size: int
    seq_len: int
    experts: int | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEntry:
    """memory_bytes: of one device."""

    name: str
    nodes: int
    devices_per_node: int
    device: str
    memory_bytes: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetsView:
    models: list[ModelEntry]
    clusters: list[ClusterEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """A model preset. description: complete, and fit for the section `model` of a spec."""

    name: str
    source: str
    parameters: int
    flops_per_token: float
    description: ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A cluster preset. description: complete, and fit for the section `cluster` of a spec."""

    name: str
    source: str
    devices: int
    description: ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleView:
    """A spec to start from. title: its first comment."""

    name: str
    title: str
    yaml: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamplesView:
    examples: list[ExampleView]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveEntry:
    """unit: without a price."""

    name: Objective
    unit: str
    smaller_is_better: bool
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatEntry:
    name: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryView:
    """What a spec may name, and what answers may hold. dimensions: the fields of a plan."""

    workloads: list[str]
    runners: list[str]
    searches: list[str]
    objectives: list[ObjectiveEntry]
    export_formats: list[FormatEntry]
    dimensions: list[str]
    verdicts: list[Verdict]
    causes: list[Cause]


class RunnerCondition(StrEnum):
    """IDLE: no active campaign uses it. TROUBLE: it did not answer when it was asked last, or took no job."""

    OK = "ok"
    TROUBLE = "trouble"
    IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerView:
    """One kind of runner. in_flight: jobs that were sent and have not ended. last_polled_at: when it last answered,
    poll_errors: how often it did not, by what this process saw since it started."""

    kind: str
    health: RunnerCondition
    trouble: str
    active_campaigns: int
    in_flight: int
    last_polled_at: datetime | None
    poll_errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnersView:
    runners: list[RunnerView]


def model_view(name: str, preset: Mapping[str, Any]) -> ModelView:
    model = read_value(ModelSpec, _described(preset))
    return ModelView(
        name=name,
        source=preset["source"],
        parameters=model.parameters,
        flops_per_token=model.flops_per_token,
        description=model,
    )


def model_entry(name: str, preset: Mapping[str, Any]) -> ModelEntry:
    model = read_value(ModelSpec, _described(preset))
    return ModelEntry(
        name=name,
        parameters=model.parameters,
        layers=model.layers,
        hidden_size=model.hidden,
        seq_len=model.seq_len,
        experts=model.experts or None,
        source=preset["source"],
    )


def cluster_view(name: str, preset: Mapping[str, Any]) -> ClusterView:
    cluster = read_value(ClusterSpec, _described(preset))
    return ClusterView(name=name, source=preset["source"], devices=cluster.devices, description=cluster)


def cluster_entry(name: str, preset: Mapping[str, Any]) -> ClusterEntry:
    cluster = read_value(ClusterSpec, _described(preset))
    return ClusterEntry(
        name=name,
        nodes=cluster.nodes,
        devices_per_node=cluster.devices_per_node,
        device=cluster.device.name,
        memory_bytes=cluster.device.memory_bytes,
        source=preset["source"],
    )


def examples_view() -> ExamplesView:
    """The specs in api/examples, by their file names."""
    found = sorted(
        (entry.name.removesuffix(".yaml"), entry.read_text(encoding="utf-8"))
        for entry in files("meshtune.api").joinpath("examples").iterdir()
        if entry.name.endswith(".yaml")
    )
    return ExamplesView(
        examples=[
            ExampleView(name=name, title=text.partition("\n")[0].removeprefix("# "), yaml=text) for name, text in found
        ]
    )


def registry_view() -> RegistryView:
    return RegistryView(
        workloads=sorted(WORKLOADS),
        runners=sorted(RUNNERS),
        searches=sorted(SEARCHES),
        objectives=[
            ObjectiveEntry(
                name=one,
                unit=one.unit,
                smaller_is_better=one.smaller_is_better,
                words=one.words,
            )
            for one in Objective
        ],
        export_formats=[FormatEntry(name=name, words=format.words) for name, format in FORMATS.items()],
        dimensions=list(PLAN_FIELDS),
        verdicts=list(Verdict),
        causes=list(Cause),
    )


def _described(preset: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in preset.items() if key != "source"}
