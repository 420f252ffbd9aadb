"""The routes to what is installed, shipped and known: presets, examples, the registry, how the runners do, and what
campaigns measured of the physics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from importlib.resources import files
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query

from meshtune.api.dependencies import CallerHandle, DriverHandle, ServiceHandle, reads
from meshtune.runners.base import Cause
from meshtune.runners.documents import read_value
from meshtune.runners.outcome import Verdict
from meshtune.runners.registry import ADVICE, WORKLOADS, Advice, runners
from meshtune.search_spaces.checks import did_you_mean
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import PLAN_FIELDS
from meshtune.search_spaces.presets import cluster_presets, described, knob_catalogs, model_presets
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.objective import Objective
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.results.calibrations import CalibrationView, calibration_view
from meshtune.tuner.results.export import FORMATS
from meshtune.tuner.results.export_options import ExportOption, options_of
from meshtune.tuner.results.quantities import optional_time
from meshtune.tuner.results.views import CatalogsView, catalogs_view, view_of
from meshtune.tuner.search.registry import searches
from meshtune.tuner.service.telemetry import RunnerHealth
from meshtune.tuner.service.trouble import TroubleKind
from meshtune.tuner.specs.knobs import read_catalogs
from meshtune.tuner.store import NotFound

router = APIRouter(prefix="/v1", tags=["catalog"], dependencies=[reads])
ACTIVE = frozenset(state for state in CampaignState if state.active)
IN_FLIGHT = (TrialState.SUBMITTED, TrialState.RUNNING)
# Far above what one service drives.
MAX_ACTIVE = 10_000
T = TypeVar("T")
PresetName = Annotated[str, Path(max_length=100, examples=["gpt-micro"])]


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
    next_page_token: str | None = None


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
    next_page_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveEntry:
    """unit: without a price."""

    name: Objective
    unit: str
    smaller_is_better: bool
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatEntry:
    """An export format. program: the training program that it is for; empty for none, and for the one that measured the
    setting. simulated: whether it applies to simulated campaigns too."""

    name: str
    words: str
    program: str
    simulated: bool
    options: tuple[ExportOption, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryView:
    """What a spec may name, and what answers may hold. catalogs: of knobs; knobs_of: those of each workload.
    dimensions: the fields of a plan. advice: on each cause."""

    workloads: list[str]
    runners: list[str]
    searches: list[str]
    objectives: list[ObjectiveEntry]
    catalogs: list[str]
    knobs_of: dict[str, tuple[str, ...]]
    export_formats: list[FormatEntry]
    dimensions: list[str]
    verdicts: list[Verdict]
    causes: list[Cause]
    advice: Mapping[Cause, Advice]


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
    next_page_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationsView:
    calibrations: list[CalibrationView]
    next_page_token: str | None = None


@router.get("/presets")
def list_presets() -> PresetsView:
    """The models and clusters that a spec may name."""
    models, clusters = [], []
    for name in model_presets():
        source, model = _preset("model", name, model_presets(), ModelSpec)
        own = {"name": name, "source": source, "experts": model.experts or None}
        models.append(view_of(ModelEntry, model, **own, hidden_size=model.hidden))
    for name in cluster_presets():
        source, cluster = _preset("cluster", name, cluster_presets(), ClusterSpec)
        own = {"name": name, "source": source, "memory_bytes": cluster.device.memory_bytes}
        clusters.append(view_of(ClusterEntry, cluster, **own, device=cluster.device.name))
    return PresetsView(models=models, clusters=clusters)


@router.get("/presets/models/{name}")
def get_model_preset(name: PresetName) -> ModelView:
    """The whole description of a model."""
    source, model = _preset("model", name, model_presets(), ModelSpec)
    return view_of(ModelView, model, name=name, source=source, description=model)


@router.get("/presets/clusters/{name}")
def get_cluster_preset(name: PresetName) -> ClusterView:
    """The whole description of a cluster, of one node unless a spec says otherwise."""
    source, cluster = _preset("cluster", name, cluster_presets(), ClusterSpec)
    return ClusterView(name=name, source=source, devices=cluster.devices, description=cluster)


@router.get("/catalog/knobs")
def list_knobs() -> CatalogsView:
    """The catalogs of knobs that a spec may name, each knob with its values, how it is told, and its source."""
    return catalogs_view(read_catalogs())


@router.get("/examples")
def list_examples() -> ExamplesView:
    """Specs to start from."""
    pairs = sorted(
        (entry.name.removesuffix(".yaml"), entry.read_text(encoding="utf-8"))
        for entry in files("meshtune.api").joinpath("examples").iterdir()
        if entry.name.endswith(".yaml")
    )
    return ExamplesView(
        examples=[
            ExampleView(name=name, title=text.partition("\n")[0].removeprefix("# "), yaml=text) for name, text in pairs
        ]
    )


@router.get("/registry")
def get_registry() -> RegistryView:
    """What a spec may name, and the words that answers are made of."""
    return RegistryView(
        workloads=sorted(WORKLOADS),
        runners=sorted(runners()),
        searches=sorted(searches()),
        objectives=[view_of(ObjectiveEntry, one, name=one) for one in Objective],
        catalogs=list(knob_catalogs()),
        knobs_of={name: each.catalogs for name, each in WORKLOADS.items()},
        export_formats=[
            view_of(FormatEntry, format, simulated=not format.script, options=options_of(name))
            for name, format in FORMATS.items()
        ],
        dimensions=list(PLAN_FIELDS),
        verdicts=list(Verdict),
        causes=list(Cause),
        advice=ADVICE,
    )


@router.get("/runners")
def list_runners(service: ServiceHandle, driver: DriverHandle, caller: CallerHandle) -> RunnersView:
    """The kinds of runners, and how they do: campaigns and jobs are those of campaigns that the caller may read,
    troubles and poll errors those that this process saw."""
    active = service.campaigns(limit=MAX_ACTIVE, states=ACTIVE, reader=caller)
    counts = service.verdict_counts([campaign.id for campaign in active])
    campaigns: Counter[str] = Counter()
    in_flight: Counter[str] = Counter()
    troubles: dict[str, str] = {}
    for campaign in active:
        kind = campaign.spec.runner.kind
        campaigns[kind] += 1
        in_flight[kind] += sum(counts[campaign.id].get(str(state), 0) for state in IN_FLIGHT)
        trouble = driver.troubles.get(campaign.id)
        if trouble is not None and trouble.kind in (TroubleKind.RUNNER, TroubleKind.REFUSED):
            troubles[kind] = trouble.words
    seen = service.metrics.runners()

    def view(kind: str, health: RunnerHealth) -> RunnerView:
        trouble = troubles.get(kind, "") or health.trouble if campaigns[kind] else ""
        used = RunnerCondition.TROUBLE if trouble else RunnerCondition.OK
        return RunnerView(
            kind=kind,
            health=used if campaigns[kind] else RunnerCondition.IDLE,
            trouble=trouble,
            active_campaigns=campaigns[kind],
            in_flight=in_flight[kind],
            last_polled_at=optional_time(health.answered_at),
            poll_errors=health.poll_errors,
        )

    return RunnersView(
        runners=[view(kind, seen.get(kind, RunnerHealth())) for kind in sorted({*runners(), *campaigns})]
    )


@router.get("/calibrations")
def list_calibrations(
    service: ServiceHandle,
    caller: CallerHandle,
    limit: Annotated[int, Query(ge=1, le=500, description="The newest so many.")] = 100,
) -> CalibrationsView:
    """The calibrations of campaigns that the caller may read, newest first."""
    stored = service.store.calibrations.newest_first(reader=caller, limit=limit)
    return CalibrationsView(calibrations=[calibration_view(one) for one in stored])


def _preset(what: str, name: str, presets: Mapping[str, Mapping[str, Any]], kind: type[T]) -> tuple[str, T]:
    """The preset's source and value. Raises NotFound."""
    if name not in presets:
        raise NotFound(f"no {what} preset is called {name!r}; {did_you_mean(name, presets)}")
    return presets[name]["source"], read_value(kind, described(presets[name]))
