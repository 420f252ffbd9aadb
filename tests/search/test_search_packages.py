"""Searches of other packages: an installed one is listed, permitted and run as a built-in one is, and a broken one
breaks its own name alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from simulated_lab import FAILING

from meshtune.tuner.campaign.campaign import CampaignState, Home
from meshtune.tuner.campaign.trial import Proposal, proposal_of
from meshtune.tuner.search import registry
from meshtune.tuner.search.base import Observation, Task, UnknownSearch
from meshtune.tuner.search.registry import SEARCHES, SearchKind, create_search, searches
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.document import commands_named
from meshtune.tuner.store import Store


@dataclass(frozen=True, slots=True)
class Options:
    command: str = ""
    step: int = 1


@dataclass(frozen=True, slots=True)
class EveryNth:
    """The space in its own order, every `step`th plan of it."""

    seed: int
    options: Options

    def ask(self, task: Task, seen: Sequence[Observation], n: int) -> Proposal:
        tried = {one.plan for one in seen}
        plans = (task.space[index] for index in range(0, len(task.space), self.options.step))
        return proposal_of([plan for plan in plans if plan not in tried][:n])


NTH = SearchKind(made_by=f"{__name__}:EveryNth", harmless=frozenset({"step"}))
GONE = SearchKind(made_by=f"{__name__}:Nothing")
NO_SEARCH = SearchKind(made_by=f"{__name__}:Options")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Entry points, by name, of this file."""

    def points(**found: str) -> None:
        made = [EntryPoint(name, f"{__name__}:{value}", registry.GROUP) for name, value in found.items()]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: made if group == registry.GROUP else [])
        registry._with_packages.cache_clear()

    yield points
    registry._with_packages.cache_clear()


def test_a_campaign_is_run_by_a_search_of_a_package(install, tmp_path):
    install(nth="NTH")
    spec: dict[str, Any] = {
        **FAILING,
        "search": {"kind": "nth", "step": 3},
        "runner": {"kind": "simulated"},
        "budget": {"trials": 4},
        "confirm": 0,
    }
    with Store.open("sqlite://") as store:
        service = Service(store, Home(tmp_path))
        id = service.create(spec).id
        drive_one(Driver(service), service, id, lambda: None)
        campaign, trials = store.campaign(id), store.trials(id)
        service.close()
    assert campaign.state is CampaignState.COMPLETED
    assert campaign.lessons == ()
    assert len(trials) == 4


def test_what_is_not_listed_needs_the_scope_command(install):
    install(nth="NTH", gone="GONE")
    plain = {key: FAILING[key] for key in ("model", "cluster", "global_batch_size")}
    for search, paths in (
        ({"kind": "nth", "step": 3}, []),
        ({"kind": "nth", "command": "x"}, ["search.command"]),
        ("gone", ["search.kind"]),
    ):
        assert [problem.path for problem in commands_named({**plain, "search": search})] == paths


@pytest.mark.parametrize(
    ("value", "told"),
    [("NOTHING", "AttributeError"), ("Options", "TypeError"), ("GONE", "AttributeError"), ("NO_SEARCH", "KeyError")],
)
def test_a_broken_package_breaks_its_own_name_alone(install, value, told):
    install(odd=value, physics="NTH")
    with pytest.raises(UnknownSearch, match=f"^the search odd of {__name__} cannot be loaded: {told}: "):
        create_search("odd", seed=0, options={})
    assert searches()["physics"] is SEARCHES["physics"]
