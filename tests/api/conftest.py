"""The application over a store in memory and a runner whose jobs end at once: everything real but the training."""

import json
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from new_stores import migrations_run_once
from new_tokens import new_token

from meshtune.api.app import create_app
from meshtune.api.settings import ServiceSettings
from meshtune.runners.base import JobSpec, JobState, JobStatus, Refused
from meshtune.runners.outcome import Measurement, Outcome, Verdict, write_result
from meshtune.runners.registry import RUNNERS
from meshtune.runners.step_breakdown import Profile
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.service.driving.loop import Driver, drive_one
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

# Few tests are about how fast they ask.
QUICK = ServiceSettings(requests_per_s=1e6, requests_burst=10**6, posts_per_s=1e6, posts_burst=10**6)
PROBLEM_KEYS = {"type", "title", "status", "detail", "instance"}
SPEC: Mapping[str, Any] = {
    "name": "demo",
    "model": "gpt-micro",
    "cluster": "local-cpu",
    "global_batch_size": 16,
    "baseline": {"tp": 1, "pp": 1, "micro_batch_size": 1, "zero_stage": 0},
    "search": "random",
    "runner": "instant",
    "budget": {"trials": 5},
    "confirm": 0,
}


@dataclass
class InstantRunner:
    """Jobs that end when they are submitted, or, while `hold` is set, when they are cancelled. Shared by all roots.
    queue: while set, jobs wait in a queue for this reason. refusal: while set, none is taken. slower: by so much, what
    is started now."""

    hold: bool = False
    queue: str = ""
    refusal: str = ""
    slower: float = 1.0
    jobs: dict[str, JobStatus] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def submit(self, spec: JobSpec) -> str:
        if self.refusal:
            raise Refused(self.refusal)
        with self.lock:
            if spec.name not in self.jobs:
                self.jobs[spec.name] = self._start(spec)
        return spec.name

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        return {id: self.jobs.get(id, JobStatus(state=JobState.LOST)) for id in ids}

    def cancel(self, id: str) -> None:
        with self.lock:
            if id in self.jobs and not self.jobs[id].state.final:
                self.jobs[id] = JobStatus(state=JobState.CANCELLED, started_at=time.time(), finished_at=time.time())

    def find(self, name: str) -> str | None:
        return name if name in self.jobs else None

    def close(self) -> None:
        pass

    def _start(self, spec: JobSpec) -> JobStatus:
        if self.queue:
            return JobStatus(state=JobState.QUEUED, reason=self.queue)
        if self.hold:
            return JobStatus(state=JobState.RUNNING, started_at=time.time())
        spec.directory.mkdir(parents=True)
        write_result(spec.directory, _outcome(json.loads(spec.files["job.json"])["plan"], spec.processes, self.slower))
        return JobStatus(state=JobState.SUCCEEDED, exit_code=0, started_at=time.time(), finished_at=time.time())


def _outcome(plan: Mapping[str, Any], devices: int, slower: float) -> Outcome:
    """Larger micro-batches and less tensor parallelism are faster; no plan with tp 4 fits; tp 2, pp 2 is given up."""
    if plan["tp"] == 4:
        return Outcome(verdict=Verdict.OOM, reason="rank 0 is out of memory", failed_rank=0, phase="forward")
    step_s = slower * (0.1 * plan["tp"] + 0.4 / plan["micro_batch_size"])
    if plan["tp"] == plan["pp"] == 2:
        few = Measurement(step_times_s=(step_s,) * 3, tokens_per_step=2048, devices=devices, first_losses=(7.6,))
        return Outcome(verdict=Verdict.PRUNED, partial=few, reason="slower than the incumbent")
    measurement = Measurement(
        step_times_s=tuple(step_s * (1 + 0.001 * number) for number in range(8)),
        tokens_per_step=2048,
        devices=devices,
        model_flops_per_token=1e6,
        peak_flops_per_device=1e10,
        warmup_times_s=(1.0,),
        first_losses=(7.6, 7.5),
        peak_memory_bytes=(10**6,) * devices,
        peak_held_bytes=(3 * 10**6,) * devices,
        profile=_profile(step_s, devices),
    )
    return Outcome(verdict=Verdict.OK, measurement=measurement)


def _profile(step_s: float, devices: int) -> Profile:
    """Three quarters of the step are computing, one is communication; the last rank takes twice as long for it."""
    return Profile(
        step_time_s=step_s,
        parts_s=({"compute": 0.75 * step_s, "dp": 0.25 * step_s},) * devices,
        waiting_s=({"dp": 0.01},) * devices,
        own_times_s=((0.1, 0.11, 0.12),) * (devices - 1) + ((0.2, 0.22, 0.24),),
        stages=(0,) * devices,
    )


@pytest.fixture(autouse=True, scope="module")
def stores_are_made_fast() -> Iterator[None]:
    with migrations_run_once():
        yield


@pytest.fixture(autouse=True)
def limits_are_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that gets no processor for seconds is neither unready nor leaves its threads behind."""
    monkeypatch.setattr("meshtune.api.app.STOP_LIMIT_S", 60.0)
    monkeypatch.setattr("meshtune.api.routes.health.LIMIT_S", 60.0)
    monkeypatch.setattr("meshtune.api.routes.metrics.LIMIT_S", 60.0)


def registered(runner: InstantRunner, patch: pytest.MonkeyPatch) -> InstantRunner:
    """The runner, which specs name `instant` from now on."""
    module = types.ModuleType("instant_runner")
    module.create = lambda root, cluster, options: runner
    patch.setitem(sys.modules, "instant_runner", module)
    patch.setitem(RUNNERS, "instant", "instant_runner:create")
    return runner


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> InstantRunner:
    """Registered as `instant`."""
    return registered(InstantRunner(), monkeypatch)


@pytest.fixture
def service(tmp_path: Path, runner: InstantRunner) -> Iterator[Service]:
    with Store.open("sqlite://") as store:
        service = Service(store, Home(tmp_path))
        yield service
        service.close()


@pytest.fixture
def app(service: Service) -> Iterator[FastAPI]:
    made = create_app(service, settings=QUICK)
    yield made
    made.state.pool.stop()


@pytest.fixture
def token(service: Service) -> Callable[..., dict[str, str]]:
    """Make a token, by default with every scope, and return the header that shows it."""

    return partial(new_token, service.store)


@pytest.fixture(scope="module")
def shared_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """As `client`, one for all tests of a module: for requests that change nothing."""
    with pytest.MonkeyPatch.context() as patch, Store.open("sqlite://") as store:
        registered(InstantRunner(), patch)
        service = Service(store, Home(tmp_path_factory.mktemp("shared")))
        yield TestClient(create_app(service, settings=QUICK), headers=new_token(store))
        service.close()


@pytest.fixture(scope="module")
def shared_over(shared_client: TestClient) -> Callable[..., str]:
    """Make a campaign of `shared_client` that is over, for tests that only look; return its id."""

    def made(**changes: Any) -> str:
        service = shared_client.app.state.service
        id = shared_client.post("/v1/campaigns", json={**SPEC, **changes}).json()["id"]
        drive_one(Driver(service), service, id, lambda: None)
        return id

    return made


@pytest.fixture
def client(app: FastAPI, token: Callable[..., dict[str, str]]) -> TestClient:
    """With every scope, and without the thread that drives: a defect of ours is raised, and campaigns move by `drive`
    alone."""
    return TestClient(app, headers=token())


@pytest.fixture
def spec() -> dict[str, Any]:
    return json.loads(json.dumps(SPEC))


@pytest.fixture
def create(client: TestClient, spec: dict[str, Any]) -> Callable[..., str]:
    """Post the spec with these changes, and return the campaign's id."""

    def post(**changes: Any) -> str:
        response = client.post("/v1/campaigns", json=spec | changes)
        assert response.status_code == 201, response.text
        return response.json()["id"]

    return post


@pytest.fixture
def drive(service: Service) -> Callable[[str], None]:
    """Work on a campaign until it rests."""
    return lambda id: drive_one(Driver(service), service, id, lambda: None)


@pytest.fixture
def over(create: Callable[..., str], drive: Callable[[str], None]) -> str:
    """A campaign that is over."""
    id = create()
    drive(id)
    return id


@pytest.fixture
def problem() -> Callable[..., dict[str, Any]]:
    """The problem document of a response, checked for what every one must have."""

    def read(response: Any, status: int, type_: str) -> dict[str, Any]:
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/problem+json"
        document = response.json()
        assert PROBLEM_KEYS <= document.keys() <= PROBLEM_KEYS | {"errors"}
        assert document["status"] == status
        assert document["type"] == type_
        assert document["title"]
        assert document["detail"]
        assert document["instance"] == response.request.url.raw_path.decode().partition("?")[0]
        return document

    return read
