"""The OpenAPI document is the contract: a client that a generator makes of it works against the real service."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from service_lab import ServiceLab
from specs import simulated

pytestmark = pytest.mark.slow
SPEC = simulated(name="generated", budget={"trials": 4}, confirm=0)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceLab]:
    with ServiceLab(tmp_path_factory.mktemp("service")) as lab:
        yield lab


@pytest.fixture(scope="module")
def module(service: ServiceLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """Imports a module of the package that the generator made of the service's own document."""
    folder = tmp_path_factory.mktemp("generated")
    beside = Path(sys.executable).parent
    command = [str(beside / "openapi-python-client"), "generate", "--url", f"{service.url}/openapi.json"]
    generated = subprocess.run(
        [*command, "--meta", "none", "--output-path", str(folder / "meshtune_generated")],
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
    yield lambda name: importlib.import_module(f"meshtune_generated.{name}")
    sys.path.remove(str(folder))


def test_a_generated_client_launches_a_campaign_and_reads_its_trials(service, module):
    made = module("client").AuthenticatedClient(
        base_url=service.url, token=service.token, raise_on_unexpected_status=True
    )
    spec = module("models").CampaignSpec
    with made as client:
        created = module("api.campaigns.create_campaign").sync(client=client, body=spec.from_dict(SPEC))
        assert (created.name, created.owner) == ("generated", "lab")
        service.wait_state(created.id, "completed")
        page = module("api.campaigns.list_campaigns").sync(client=client, name="gener")
        assert [each.id for each in page.campaigns] == [created.id]
        assert page.campaigns[0].summary.done == 4
        best = module("api.trials.best_trials").sync(created.id, client=client, top=1)
        trial = module("api.trials.get_trial").sync(created.id, best.best[0].trial, client=client)
        assert trial.verdict == "ok"
        assert trial.measurement.step_time_s > 0
        trials = module("api.trials.list_trials").sync(created.id, client=client, page_size=3)
        assert len(trials.trials) == 3
        assert trials.next_page_token
        wrong = spec.from_dict({**SPEC, "global_batch_size": 7, "baseline": {"tp": 3}})
        problem = module("api.campaigns.create_campaign").sync(client=client, body=wrong)
    assert isinstance(problem, module("models").Problem)
    assert problem.status == 422
    assert problem.errors[0].pointer.startswith("/")
    with module("client").Client(base_url=service.url) as nobody:
        assert module("api.campaigns.list_campaigns").sync_detailed(client=nobody).status_code == 401
    paths = service.call("GET", "/openapi.json")["paths"]
    wanted = {operation["operationId"] for methods in paths.values() for operation in methods.values()}
    assert wanted <= {file.stem for file in Path(str(module("client").__file__)).parent.glob("api/*/*.py")}
