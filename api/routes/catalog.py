"""The routes to the house itself: presets, examples, what is installed, and how the runners do."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Path

from meshtune.api.dependencies import DriverHandle, ServiceHandle
from meshtune.api.openapi import problems
from meshtune.api.requests.access import reads
from meshtune.api.schemas.catalog import (
    ClusterView,
    ExamplesView,
    ModelView,
    PresetsView,
    RegistryView,
    RunnerCondition,
    RunnersView,
    RunnerView,
    cluster_entry,
    cluster_view,
    examples_view,
    model_entry,
    model_view,
    registry_view,
)
from meshtune.api.schemas.trials import rfc3339
from meshtune.runners.registry import RUNNERS
from meshtune.search_spaces.checks import did_you_mean
from meshtune.search_spaces.presets import cluster_presets, model_presets
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.service.health import RunnerHealth
from meshtune.tuner.store import NotFound

router = APIRouter(prefix="/v1", responses=problems(422, 503), tags=["house"], dependencies=[reads])
ACTIVE = frozenset(state for state in CampaignState if state.active)
IN_FLIGHT = (TrialState.SUBMITTED, TrialState.RUNNING)
# Far above what one service drives.
MOST_ACTIVE = 10_000
# As `tuner.service.loop` tells it.
OF_RUNNERS = "the runner: "
PresetName = Annotated[str, Path(max_length=100, examples=["gpt-micro"])]


@router.get("/presets")
def list_presets() -> PresetsView:
    """The models and clusters that a spec may name."""
    return PresetsView(
        models=[model_entry(name, preset) for name, preset in model_presets().items()],
        clusters=[cluster_entry(name, preset) for name, preset in cluster_presets().items()],
    )


@router.get("/presets/models/{name}", responses=problems(404))
def get_model_preset(name: PresetName) -> ModelView:
    """The whole description of a model."""
    presets = model_presets()
    if name not in presets:
        raise NotFound(f"no model preset is called {name!r}; {did_you_mean(name, presets)}")
    return model_view(name, presets[name])


@router.get("/presets/clusters/{name}", responses=problems(404))
def get_cluster_preset(name: PresetName) -> ClusterView:
    """The whole description of a cluster, of one node unless a spec says otherwise."""
    presets = cluster_presets()
    if name not in presets:
        raise NotFound(f"no cluster preset is called {name!r}; {did_you_mean(name, presets)}")
    return cluster_view(name, presets[name])


@router.get("/examples")
def list_examples() -> ExamplesView:
    """Specs to start from."""
    return examples_view()


@router.get("/registry")
def get_registry() -> RegistryView:
    """What a spec may name, and the words that answers are made of."""
    return registry_view()


@router.get("/runners")
def list_runners(service: ServiceHandle, driver: DriverHandle) -> RunnersView:
    """The kinds of runners, and how they do: troubles and poll errors are those that this process saw."""
    active = service.store.campaigns(limit=MOST_ACTIVE, states=ACTIVE)
    counts = service.store.verdict_counts([campaign.id for campaign in active])
    campaigns: Counter[str] = Counter()
    in_flight: Counter[str] = Counter()
    troubles: dict[str, str] = {}
    for campaign in active:
        kind = campaign.spec.runner.kind
        campaigns[kind] += 1
        in_flight[kind] += sum(counts[campaign.id].get(str(state), 0) for state in IN_FLIGHT)
        told = driver.troubles.get(campaign.id, "")
        if told.startswith(OF_RUNNERS):
            troubles[kind] = told.removeprefix(OF_RUNNERS)
    known = service.health.runners()
    return RunnersView(
        runners=[
            _runner_view(
                kind, campaigns[kind], in_flight[kind], troubles.get(kind, ""), known.get(kind, RunnerHealth())
            )
            for kind in sorted({*RUNNERS, *campaigns})
        ]
    )


def _runner_view(kind: str, campaigns: int, in_flight: int, trouble: str, health: RunnerHealth) -> RunnerView:
    trouble = trouble or health.trouble if campaigns else ""
    used = RunnerCondition.TROUBLE if trouble else RunnerCondition.OK
    return RunnerView(
        kind=kind,
        health=used if campaigns else RunnerCondition.IDLE,
        trouble=trouble,
        active_campaigns=campaigns,
        in_flight=in_flight,
        last_polled_at=None if health.answered_at is None else rfc3339(health.answered_at),
        poll_errors=health.poll_errors,
    )
