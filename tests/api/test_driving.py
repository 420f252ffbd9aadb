"""The application drives its campaigns while it runs, lets go of them when it stops, and says when it cannot."""

import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import inf
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from meshtune.api.app import create_app, from_environment
from meshtune.api.settings import Settings
from meshtune.tuner.campaign.home import Home
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

LIMIT_S = 60.0
# For so long at the most a campaign is paused and resumed all the time.
MOVING_S = 20.0
# What is done in time once can be: the machine may do something else as well.
TRIES = 3
TRUSTING = Settings(trust_loopback=True, requests_per_s=1e6, posts_per_s=1e6)


def local(app: FastAPI) -> TestClient:
    """As a program on this machine, which this service trusts."""
    return TestClient(app, base_url="http://localhost", client=("127.0.0.1", 1))


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def drivers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "driver"]


@pytest.fixture
def running(app) -> TestClient:
    with local(app) as client:
        yield client


def state(client: TestClient, id: str) -> str:
    return client.get(f"/v1/campaigns/{id}").json()["state"]


def test_a_posted_campaign_is_driven_to_its_end(running, spec):
    id = running.post("/v1/campaigns", json=spec).json()["id"]
    wait_for(lambda: state(running, id) == "completed")
    trials = running.get(f"/v1/campaigns/{id}/trials").json()["trials"]
    assert len(trials) == 5
    assert trials[0]["origin"] == "baseline"
    assert running.get(f"/v1/campaigns/{id}/best").json()["recommendation"]["setting"] is not None


def test_several_campaigns_are_driven_side_by_side(running, spec):
    ids = [running.post("/v1/campaigns", json=spec | {"seed": seed}).json()["id"] for seed in range(4)]
    wait_for(lambda: all(state(running, id) == "completed" for id in ids))


def test_a_campaign_of_an_earlier_service_goes_on(client, create, app):
    id = create()
    with local(app) as running:
        wait_for(lambda: state(running, id) == "completed")


def test_a_running_job_ends_by_cancel(running, spec, runner):
    runner.hold = True
    id = running.post("/v1/campaigns", json=spec).json()["id"]
    wait_for(lambda: running.get(f"/v1/campaigns/{id}").json()["trials"].get("running") == 1)
    assert running.post(f"/v1/campaigns/{id}:cancel").status_code == 202
    wait_for(lambda: state(running, id) == "cancelled")
    assert running.get(f"/v1/campaigns/{id}").json()["trials"] == {"cancelled": 1}


def test_pausing_and_resuming_at_any_moment_stops_no_driver(running, spec):
    id = running.post("/v1/campaigns", json=spec | {"budget": {"trials": 30}}).json()["id"]
    deadline = time.monotonic() + MOVING_S
    while state(running, id) != "completed" and time.monotonic() < deadline:
        for move in ("pause", "resume"):
            assert running.post(f"/v1/campaigns/{id}:{move}").status_code in (200, 409)
        time.sleep(0.005)
        assert running.get("/readyz").status_code == 200
    wait_for(lambda: state(running, id) == "completed")
    assert running.get(f"/v1/campaigns/{id}").json()["reason"]


def test_two_services_over_one_home_share_the_work_and_say_so(tmp_path, runner, spec):
    runner.hold = True
    url = f"sqlite:///{tmp_path}/store.db"
    first, second = Store.open(url), Store.open(url)
    with first, second, local(create_app(Service(first, Home(tmp_path)), settings=TRUSTING)) as one:
        id = one.post("/v1/campaigns", json=spec).json()["id"]
        wait_for(lambda: one.get(f"/v1/campaigns/{id}").json()["trials"].get("running") == 1)
        with local(create_app(Service(second, Home(tmp_path)), settings=TRUSTING)) as two:
            wait_for(lambda: "driven by" in two.get(f"/v1/campaigns/{id}").json()["trouble"])
            assert two.get("/readyz").status_code == 200


@pytest.mark.parametrize("held", [False, True])
def test_stopping_is_prompt_and_leaves_no_thread(app, spec, runner, held):
    runner.hold = held
    took_s: list[float] = []
    while len(took_s) < TRIES and min(took_s, default=inf) >= 2.0:
        with local(app) as client:
            id = client.post("/v1/campaigns", json=spec).json()["id"]
            wait_for(lambda id=id, client=client: runner.jobs if held else state(client, id) == "completed")
            assert len(drivers()) == 1
            before = time.monotonic()
        took_s.append(time.monotonic() - before)
        assert drivers() == []
    assert min(took_s) < 2.0


def test_an_application_can_be_started_again(app, spec):
    for _ in range(2):
        with local(app) as client:
            id = client.post("/v1/campaigns", json=spec).json()["id"]
            wait_for(lambda id=id, client=client: state(client, id) == "completed")


def test_a_stopped_service_lets_another_one_drive(app, client, spec, runner, service):
    runner.hold = True
    with local(app) as running:
        id = running.post("/v1/campaigns", json=spec).json()["id"]
        wait_for(lambda: running.get(f"/v1/campaigns/{id}").json()["trials"].get("running") == 1)
    other = Service(service.store, service.home)
    try:
        other.tick(id)
    finally:
        other.close()


def test_the_service_is_alive_while_all_its_threads_are_busy(app, service, monkeypatch):
    go_on = threading.Event()
    check = service.store.check
    monkeypatch.setattr(service.store, "check", lambda: go_on.wait(LIMIT_S) and check())
    with local(app) as client, ThreadPoolExecutor(60) as people:
        waiting = [people.submit(client.get, "/readyz") for _ in range(60)]
        try:
            assert client.get("/healthz").status_code == 200
            assert not any(answer.done() for answer in waiting)
        finally:
            go_on.set()
        assert {answer.result().status_code for answer in waiting} == {200}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_service_whose_driver_died_is_not_ready(app, service, monkeypatch, problem):
    def broken() -> None:
        raise SystemError("a defect")

    monkeypatch.setattr(service.store.leases, "standing", broken)
    with local(app) as client:
        wait_for(lambda: not app.state.thread.is_alive())
        response = client.get("/readyz")
        assert "has died" in problem(response, 503, "about:blank")["detail"]
        assert response.headers["retry-after"]
        assert client.get("/healthz").status_code == 200


def test_the_application_of_the_environment_opens_its_home_and_closes_its_store(tmp_path, monkeypatch, spec, runner):
    home = tmp_path / "deep" / "home"
    monkeypatch.setenv("MESHTUNE_HOME", str(home))
    monkeypatch.setenv("MESHTUNE_TRUST_LOOPBACK", "1")
    monkeypatch.delenv("MESHTUNE_DB", raising=False)
    app = from_environment()
    with local(app) as client:
        id = client.post("/v1/campaigns", json=spec).json()["id"]
        wait_for(lambda: state(client, id) == "completed")
    assert open_files(home / "meshtune.db") == 0
    with Store.open(Home(home).database_url) as store:
        assert store.campaign(id).state == "completed"


def test_the_application_of_the_environment_uses_the_database_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MESHTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MESHTUNE_DB", f"sqlite:///{tmp_path}/named.db")
    with local(from_environment()) as client:
        assert client.get("/readyz").status_code == 200
    with sqlite3.connect(tmp_path / "named.db") as connection:
        assert connection.execute("SELECT count(*) FROM campaigns").fetchone() == (0,)
    connection.close()
    assert not (tmp_path / "home" / "meshtune.db").exists()


def test_a_service_that_was_given_keeps_its_store_open(app, service):
    with local(app) as client:
        assert client.get("/readyz").status_code == 200
    service.store.check()


def open_files(path: Path) -> int:
    """How many descriptors this process holds of a file."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread has closed it
            found += str(path) == str(link.readlink())
    return found
