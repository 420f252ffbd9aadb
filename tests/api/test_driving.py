"""The application drives its campaigns while it runs, lets go of them when it stops, and says when it cannot."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from new_tokens import new_token

from meshtune.api.app import create_app, from_environment
from meshtune.api.routes import health
from meshtune.api.settings import ServiceSettings
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.telemetry import Heartbeat
from meshtune.tuner.service.trouble import Trouble
from meshtune.tuner.store import Store, StoreUnavailable

pytestmark = pytest.mark.slow

LIMIT_S = 60.0
# For so long at the most a campaign is paused and resumed all the time.
MOVING_S = 5.0
UNPACED = ServiceSettings(requests_per_s=1e6, posts_per_s=1e6)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def drivers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "driver" or thread.name.startswith("lane ")]


@pytest.fixture
def running(app, token) -> TestClient:
    with TestClient(app, headers=token()) as client:
        yield client


def state(client: TestClient, id: str) -> str:
    return client.get(f"/v1/campaigns/{id}").json()["state"]


def test_posted_campaigns_are_driven_to_their_ends_side_by_side_and_by_the_next_service_too(client, create, spec):
    earlier = create()
    for _ in range(2):
        with client as running:
            ids = [running.post("/v1/campaigns", json=spec | {"seed": seed}).json()["id"] for seed in range(2)]
            wait_for(lambda ids=ids, running=running: all(state(running, id) == "completed" for id in [earlier, *ids]))
            trials = running.get(f"/v1/campaigns/{ids[0]}/trials").json()["trials"]
            assert len(trials) == 5
            assert trials[0]["origin"] == "baseline"


def test_a_running_job_ends_by_cancel(running, spec, runner):
    runner.hold = True
    id = running.post("/v1/campaigns", json=spec).json()["id"]
    wait_for(lambda: running.get(f"/v1/campaigns/{id}").json()["trials"].get("running") == 1)
    assert running.post(f"/v1/campaigns/{id}:cancel").status_code == 202
    wait_for(lambda: state(running, id) == "cancelled")
    assert running.get(f"/v1/campaigns/{id}").json()["trials"] == {"cancelled": 1}


def test_pausing_and_resuming_at_any_moment_stops_no_driver(running, spec):
    id = running.post("/v1/campaigns", json=spec | {"budget": {"trials": 15}}).json()["id"]
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
    services = [create_app(Service(store, Home(tmp_path)), settings=UNPACED) for store in (first, second)]
    header = new_token(first)
    with first, second, TestClient(services[0], headers=header) as one:
        id = one.post("/v1/campaigns", json=spec).json()["id"]
        wait_for(lambda: one.get(f"/v1/campaigns/{id}").json()["trials"].get("running") == 1)
        with TestClient(services[1], headers=header) as two:
            wait_for(lambda: "driven by" in two.get(f"/v1/campaigns/{id}").json()["trouble"])
            assert two.get("/readyz").status_code == 200


def test_stopping_leaves_no_thread_and_lets_another_service_drive(client, spec, runner, service):
    runner.hold = True
    with client as running:
        id = running.post("/v1/campaigns", json=spec).json()["id"]
        wait_for(lambda: running.get(f"/v1/campaigns/{id}").json()["trials"].get("running") == 1)
        assert [thread.name for thread in drivers()] == ["driver", "lane instant"]
    assert drivers() == []
    service.store.check()
    other = Service(service.store, service.home)
    try:
        other.tick(id)
    finally:
        other.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_service_whose_driver_died_is_not_ready(app, service, monkeypatch, problem):
    def broken() -> None:
        raise SystemError("a defect")

    monkeypatch.setattr(service.store.leases, "drivers", broken)
    with TestClient(app) as client:
        wait_for(lambda: not app.state.thread.is_alive())
        response = client.get("/readyz")
        assert "drives the campaigns has ended" in problem(response, 503, "about:blank")["detail"]
        assert response.headers["retry-after"]
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("named", [False, True])
def test_the_application_of_the_environment_opens_its_database_and_closes_it(
    tmp_path, monkeypatch, spec, runner, named
):
    home = tmp_path / "deep" / "home"
    monkeypatch.setenv("MESHTUNE_HOME", str(home))
    database = tmp_path / "named.db" if named else home / "meshtune.db"
    monkeypatch.setenv("MESHTUNE_DB", f"sqlite:///{database}" if named else "")
    app = from_environment()
    with TestClient(app, headers=new_token(app.state.service.store)) as client:
        id = client.post("/v1/campaigns", json=spec).json()["id"]
        wait_for(lambda: state(client, id) == "completed")
    assert open_files(database) == 0
    with Store.open(f"sqlite:///{database}") as store:
        assert store.campaign(id).state == "completed"


def open_files(path: Path) -> int:
    """How many descriptors this process holds of a file."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread has closed it
            found += str(path) == str(link.readlink())
    return found


def test_a_database_that_hangs_is_told_in_time_and_costs_one_thread(app, service, monkeypatch, problem):
    go_on = threading.Event()
    monkeypatch.setattr(service.store, "check", lambda: go_on.wait(120))
    with TestClient(app) as client:
        with monkeypatch.context() as patch:
            patch.setattr(health, "LIMIT_S", 0.1)
            for _ in range(5):
                start = time.monotonic()
                answer = problem(client.get("/readyz"), 503, "about:blank")
                assert time.monotonic() - start < 20.0
                assert "the database has not answered within 0.1 s" in answer["detail"]
            assert sum(thread.name == "shared call" for thread in threading.enumerate()) == 1
            assert client.get("/healthz").status_code == 200
        go_on.set()
        wait_for(lambda: client.get("/readyz").status_code == 200)


def test_what_is_not_true_is_named(app, service, problem, monkeypatch, tmp_path):
    monkeypatch.setattr(service.store, "file", tmp_path / "gone" / "store.db")
    app = create_app(service)
    with monkeypatch.context() as patch:
        patch.setattr("meshtune.api.app._drive", lambda _driver, _service, stop: stop.wait())
        with TestClient(app) as client:
            wait_for(lambda: app.state.hub.heartbeat.trouble("", LIMIT_S) == "")
            app.state.driver.heartbeat.beat("looks for campaigns")
            app.state.driver.lanes = {"slurm": Heartbeat()}
            app.state.driver.lanes["slurm"].beat("campaign c1")
            app.state.driver.troubles["*"] = Trouble("a trouble")
            patch.setattr(health, "DRIVER_LIMIT_S", -1.0)
            patch.setattr(health, "FREE_BYTES", 2**60)
            found = problem(client.get("/readyz"), 503, "about:blank")["detail"].split("; ")
            assert client.head("/readyz").status_code == 503
    for each, (words, more) in zip(
        found,
        [
            (f"the disk of the home, {service.home.root}, has ", " MiB left"),
            ("the folder of the database", "cannot be read: No such file"),
            ("the thread that shares campaigns out has made no turn for ", " s: looks for campaigns"),
            ("the thread that drives the campaigns of slurm has made no turn for ", " s: campaign c1"),
            ("no campaign is driven", "a trouble"),
            ("the thread that renews the leases has made no turn yet", ""),
        ],
        strict=True,
    ):
        assert words in each
        assert more in each
    assert client.head("/healthz").status_code == 200


def test_a_database_that_takes_a_row_and_gives_back_none_is_told(service, monkeypatch):
    service.store.check()
    service.store.check()
    monkeypatch.setattr("meshtune.tuner.store.schema.read_probe", lambda _: 1)
    with pytest.raises(StoreUnavailable, match="does not give back"):
        service.store.check()


def test_a_dead_reader_of_events_is_told(app, problem):
    with TestClient(app) as client:
        wait_for(lambda: client.get("/readyz").status_code == 200)
        app.state.hub.stop(5.0)
        assert "reads the events" in problem(client.get("/readyz"), 503, "about:blank")["detail"]
