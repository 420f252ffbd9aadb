"""The benchmark of the service prints every table, small, each of a real service; what it copies answers as what it
wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import service
from fastapi.testclient import TestClient
from httpx import Response
from new_tokens import new_token
from postgres_lab import PostgresLab
from service_copy import COPIED, copy_campaign
from service_fill import APART_S, ORIGINALS, fill

from meshtune.api.app import create_app
from meshtune.api.settings import ServiceSettings
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.campaign.trial import job_name
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store, tables

KINDS = ["sqlite"]
SLOW, LONG = pytest.mark.slow, pytest.mark.long


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("table", "arguments", "words"),
    [
        pytest.param(service.print_latencies, (2, 20, 4, 20), ["CPU ms"], marks=SLOW, id="latencies"),
        pytest.param(service.print_sizes, ([20, 40], 20), ["best, again ms"], marks=LONG, id="sizes"),
        pytest.param(service.print_ticks, (5, 1.0, "random"), ["longest <= s"], marks=LONG, id="ticks"),
        pytest.param(service.print_idle, (2, 0.5), ["active campaigns"], marks=LONG, id="idle"),
        pytest.param(service.print_streams, (2, 1), ["events"], marks=LONG, id="streams"),
        pytest.param(
            service.print_soak, (2.0, 0.5), ["trials that ended", "growth since minute"], marks=LONG, id="soak"
        ),
    ],
)
def test_every_table_of_the_benchmark_is_printed(table, arguments, words, capfd) -> None:
    table(KINDS, *arguments)
    printed = capfd.readouterr().out
    assert all(word in printed for word in words), printed


# What a service writes for itself; it would do so for a copy, too.
ITS_OWN = {"calibrations", "holders", "leases", "tokens", "audit", "idempotency", "probes"}
UNPACED = ServiceSettings(requests_per_s=1e6, requests_burst=10**6)
TRIALS = 30
SOURCE, COPY = "filled-000000", "copied-000000"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresLab]:
    with PostgresLab() as lab:
        yield lab


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.long])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty one."""
    url = f"sqlite:///{tmp_path}/store.db"
    if request.param == "postgres":
        server = request.getfixturevalue("server")
        url = server.create(tmp_path.name)
    with Store.open(url) as store:
        yield store


def test_every_table_is_copied_or_what_a_service_writes_for_itself() -> None:
    assert {table.name for table in COPIED} == tables.metadata.tables.keys() - ITS_OWN


def _reads(document: Any) -> Iterator[str]:
    """Every GET of the API about one campaign, by its path below the campaign; archives pack what exports answer."""
    prefix = "/v1/campaigns/{campaign_id}"
    for path, methods in document["paths"].items():
        if "get" in methods and path.startswith(prefix) and "{name}" not in path and "archive" not in path:
            for format in ("megatron", "slurm") if "{format}" in path else ("",):
                for number in range(0, TRIALS, 7) if "{number}" in path else (0,):
                    yield path.removeprefix(prefix).format(format=format, number=number, attempt=1)


@pytest.mark.long
def test_a_copy_answers_all_reads_as_its_source_does_but_for_ids(store: Store, tmp_path: Path) -> None:
    fill(store, 2, TRIALS)
    with store._database.writing() as connection:
        copy_campaign(connection, SOURCE, COPY, name="filled 0", later_s=0.0, slower=1.0)
    app = create_app(Service(store, Home(tmp_path)), settings=UNPACED)
    client = TestClient(app, headers=new_token(store))
    paths = list(_reads(client.get("/openapi.json").json()))
    assert len(paths) > 30
    answered = 0
    for path in paths:
        first, second = (client.get(f"/v1/campaigns/{id}{path}") for id in (SOURCE, COPY))
        answered += first.status_code == 200
        assert (first.status_code, _plain(first)) == (second.status_code, _plain(second)), path
    assert answered > 25


def _plain(answer: Response) -> Any:
    """Without what tells the two apart: their ids, and the ids of their events but for the steps between them."""
    text = answer.text.replace(SOURCE, COPY)
    if not answer.headers["content-type"].endswith("json"):
        return text
    document = json.loads(text)
    if isinstance(document, list):
        return [{**event, "id": event["id"] - document[0]["id"]} for event in document]
    return document


def test_copies_have_ids_names_times_and_speeds_of_their_own(store: Store) -> None:
    filled = fill(store, ORIGINALS + 1, TRIALS)
    source, copy = (store.campaign(id) for id in (filled.campaign_ids[0], filled.campaign_ids[-1]))
    assert (copy.id, copy.spec.name) == ("filled-000004", "filled 4")
    assert copy.created_at == source.created_at + ORIGINALS * APART_S
    first, second = store.trials(source.id), store.trials(copy.id)
    assert [trial.plan for trial in first] == [trial.plan for trial in second]
    slower = {
        round(b.measurement.step_time_s / a.measurement.step_time_s, 6)
        for a, b in zip(first, second, strict=True)
        if a.measurement is not None and b.measurement is not None
    }
    assert len(slower) == 1
    assert slower != {1.0}
    for trial in second:
        assert trial.last.job_name == trial.last.job_id == job_name(copy.id, trial.number, trial.last.number)
        assert trial.last.planned_at >= copy.created_at
    assert {event.campaign_id for event in store.events(copy.id)} == {copy.id}
    assert len(store.events(copy.id)) == len(store.events(source.id))
