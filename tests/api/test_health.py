"""/readyz says within seconds what is wrong, however long the database is silent."""

import threading
import time

from fastapi.testclient import TestClient

from meshtune.api.routes import health


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
                assert "not answered within 0.1 s" in answer["detail"]
            assert sum(thread.name == "shared call" for thread in threading.enumerate()) == 1
            assert client.get("/healthz").status_code == 200
        go_on.set()
        assert client.get("/readyz").status_code == 200


def test_a_dead_reader_of_events_is_told(app, problem):
    with TestClient(app) as client:
        assert client.get("/readyz").status_code == 200
        app.state.hub.stop(5.0)
        assert "reads the events" in problem(client.get("/readyz"), 503, "about:blank")["detail"]
