"""What is shipped and installed, and how the runners do, over HTTP."""

import pytest

from meshtune.runners.base import Refused, RunnerUnavailable
from meshtune.search_spaces.plan import PLAN_FIELDS
from meshtune.search_spaces.presets import cluster_presets, model_presets
from meshtune.tuner.service.driving.loop import Driver


def test_presets_are_listed_and_told_whole(shared_client):
    shown = shared_client.get("/v1/presets").json()
    assert {entry["name"] for entry in shown["models"]} == set(model_presets())
    assert {entry["name"] for entry in shown["clusters"]} == set(cluster_presets())
    assert all(entry["source"] for entry in shown["models"] + shown["clusters"])
    for entry in shown["models"]:
        whole = shared_client.get(f"/v1/presets/models/{entry['name']}").json()
        assert (whole["parameters"], whole["description"]["layers"]) == (entry["parameters"], entry["layers"])
        assert entry["experts"] == (whole["description"]["experts"] or None)


def test_a_description_stands_for_its_preset_in_a_spec(shared_client, spec):
    model = shared_client.get("/v1/presets/models/gpt-micro").json()["description"]
    cluster = shared_client.get("/v1/presets/clusters/local-cpu").json()["description"]
    whole = shared_client.post("/v1/spaces", json=spec | {"model": model, "cluster": cluster}).json()
    assert whole == shared_client.post("/v1/spaces", json=spec).json()


@pytest.mark.parametrize("kind", ["models", "clusters"])
def test_an_unknown_preset_is_not_found_and_near_ones_are_told(shared_client, problem, kind):
    name = {"models": "gpt-micr", "clusters": "local-cp"}[kind]
    assert f"{name}" in problem(shared_client.get(f"/v1/presets/{kind}/{name}"), 404, "/problems/not-found")["detail"]


def test_the_registry_has_the_words_of_specs_and_answers(shared_client):
    shown = shared_client.get("/v1/registry").json()
    assert {"torch", "command"} <= set(shown["workloads"])
    assert {"local", "slurm"} <= set(shown["runners"])
    assert "physics" in shown["searches"]
    assert shown["dimensions"] == list(PLAN_FIELDS)
    assert {"ok", "oom"} <= set(shown["verdicts"])
    units = {entry["name"]: entry["unit"] for entry in shown["objectives"]}
    assert units["step_time"] == "s"
    assert all(entry["words"] for entry in shown["objectives"] + shown["export_formats"])


@pytest.fixture
def health(client):
    """Of the runner that the tests' campaigns use."""
    return lambda: next(each for each in client.get("/v1/runners").json()["runners"] if each["kind"] == "instant")


def test_a_runner_is_idle_without_campaigns_and_well_with_one_that_runs(health, create, runner, service):
    assert (health()["health"], health()["last_polled_at"]) == ("idle", None)
    runner.hold = True
    id = create()
    for _ in range(4):
        service.tick(id)
    shown = health()
    assert (shown["health"], shown["active_campaigns"], shown["in_flight"]) == ("ok", 1, 1)
    assert shown["last_polled_at"].endswith("Z")


def test_a_runner_that_does_not_answer_is_in_trouble(app, health, create, runner, monkeypatch):
    runner.hold = True
    id = create()
    driver: Driver = app.state.driver
    for _ in range(3):
        driver.step(id)

    def silent(ids):
        raise RunnerUnavailable("squeue timed out")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "poll", silent)
        driver.step(id)
    shown = health()
    assert (shown["health"], shown["trouble"], shown["poll_errors"]) == ("trouble", "squeue timed out", 1)


def test_a_runner_that_refuses_the_jobs_of_a_campaign_that_it_took_before_is_in_trouble(
    app, health, create, runner, monkeypatch
):
    runner.hold = True
    id = create(parallel=2)
    driver: Driver = app.state.driver
    while not runner.jobs:
        driver.step(id)

    def refuse(spec):
        raise Refused("partition main is closed")

    monkeypatch.setattr(runner, "submit", refuse)
    while driver.step(id):
        pass
    shown = health()
    told = "the runner refuses jobs: partition main is closed; tried again"
    assert (shown["health"], shown["trouble"]) == ("trouble", told)


def test_examples_are_the_files_of_the_package(shared_client):
    names = [entry["name"] for entry in shared_client.get("/v1/examples").json()["examples"]]
    assert names == ["demo", "simulated-1t", "slurm-torch"]
