"""The OpenAPI document is the contract: a client that a generator makes of it works against the real service."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from service_lab import ServiceLab

pytestmark = pytest.mark.slow
SPEC: dict[str, Any] = {
    "name": "generated",
    "model": "gpt-micro",
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "global_batch_size": 16,
    "workload": "simulated",
    "runner": "simulated",
    "search": "random",
    "budget": {"trials": 4},
    "confirm": 0,
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceLab]:
    with ServiceLab(tmp_path_factory.mktemp("service")) as lab:
        yield lab


@pytest.fixture(scope="module")
def package(service: ServiceLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of the package that the generator made of the service's own document."""
    folder = tmp_path_factory.mktemp("generated")
    name = "meshtune_generated"
    beside = Path(sys.executable).parent
    generated = subprocess.run(
        [
            *(str(beside / "openapi-python-client"), "generate", "--url", f"{service.url}/openapi.json"),
            *("--meta", "none", "--output-path", str(folder / name)),
        ],
        env={**os.environ, "PATH": f"{beside}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert generated.returncode == 0, generated.stdout + generated.stderr
    # It leaves out what it cannot make, with a warning; bodies in YAML, which it does not know, are one of two ways.
    assert generated.stdout.count("WARNING") == generated.stdout.count("Unsupported content type application/yaml")
    sys.path.insert(0, str(folder))
    yield name
    sys.path.remove(str(folder))


def test_a_generated_client_launches_a_campaign_and_reads_what_came_of_it(service, package):
    def operation(tag: str, name: str) -> Any:
        return importlib.import_module(f"{package}.api.{tag}.{name}")

    models = importlib.import_module(f"{package}.models")
    made = importlib.import_module(f"{package}.client").AuthenticatedClient(
        base_url=service.url, token=service.token, raise_on_unexpected_status=True
    )
    with made as client:
        spec = models.CampaignSpec.from_dict(SPEC)
        created = operation("campaigns", "create_campaign").sync(client=client, body=spec)
        assert (created.name, created.owner) == ("generated", "lab")
        service.wait_state(created.id, "completed")

        page = operation("campaigns", "list_campaigns").sync(client=client, name="gener")
        assert [each.id for each in page.campaigns] == [created.id]
        assert page.campaigns[0].summary.done == 4
        best = operation("trials", "best_trials").sync(created.id, client=client, top=1)
        trial = operation("trials", "get_trial").sync(created.id, best.best[0].trial, client=client)
        assert trial.verdict == "OK" or trial.verdict == "ok"
        assert trial.measurement.step_time_s > 0
        trials = operation("trials", "list_trials").sync(created.id, client=client, page_size=3)
        assert len(trials.trials) == 3
        assert trials.next_page_token


def test_every_operation_is_there(service, package):
    paths = service.call("GET", "/openapi.json")["paths"]
    wanted = {operation["operationId"] for methods in paths.values() for operation in methods.values()}
    folder = Path(str(importlib.import_module(package).__file__)).parent
    assert wanted
    assert wanted <= {module.stem for module in folder.glob("api/*/*.py")}


def test_a_mistake_comes_back_as_the_documents_problem(service, package):
    models = importlib.import_module(f"{package}.models")
    create = importlib.import_module(f"{package}.api.campaigns.create_campaign")
    made = importlib.import_module(f"{package}.client").AuthenticatedClient(base_url=service.url, token=service.token)
    with made as client:
        spec = models.CampaignSpec.from_dict({**SPEC, "global_batch_size": 7, "baseline": {"tp": 3}})
        problem = create.sync(client=client, body=spec)
    assert isinstance(problem, models.Problem)
    assert problem.status == 422
    assert problem.errors[0].pointer.startswith("/")


def test_no_token_is_told_so(service, package):
    listing = importlib.import_module(f"{package}.api.campaigns.list_campaigns")
    with importlib.import_module(f"{package}.client").Client(base_url=service.url) as client:
        assert listing.sync_detailed(client=client).status_code == 401
