"""A POST with an Idempotency-Key acts once, and whoever sends it again gets the same answer."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from meshtune.tuner.access.tokens import Scope
from meshtune.tuner.store import StoreUnavailable
from meshtune.tuner.store.access import KEY_KEPT_S

KEY = {"Idempotency-Key": "5e2a-4f"}


def campaigns(client) -> int:
    return len(client.get("/v1/campaigns").json()["campaigns"])


def test_the_same_request_of_the_same_token_gets_the_same_answer_and_acts_once(app, client, spec, token):
    first = client.post("/v1/campaigns", json=spec, headers=KEY)
    again = client.post("/v1/campaigns", json=spec, headers=KEY)
    assert (first.status_code, first.content) == (again.status_code, again.content)
    assert first.headers["location"] == again.headers["location"]
    assert (again.headers["content-type"], again.headers["idempotent-replayed"]) == ("application/json", "true")
    assert "idempotent-replayed" not in first.headers
    assert client.get("/v1/campaigns", headers=KEY).status_code == 200
    other = TestClient(app, headers=token("other"))
    for each, headers in ((other, KEY), (client, {}), (client, {})):
        assert each.post("/v1/campaigns", json=spec, headers=headers).status_code == 201
    assert campaigns(client) == 4


def test_a_refused_request_is_answered_the_same_again(client, spec, problem):
    for _ in range(2):
        response = client.post("/v1/campaigns", json=spec | {"model": "none"}, headers=KEY)
        problem(response, 422, "/problems/invalid-spec")
    assert response.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("change", ["body", "query", "path"])
def test_the_same_key_with_another_request_is_refused(client, spec, problem, change):
    client.post("/v1/campaigns", json=spec, headers=KEY)
    path = {"query": "/v1/campaigns?dry_run=true", "path": "/v1/estimates"}.get(change, "/v1/campaigns")
    body = spec | {"name": "other"} if change == "body" else spec
    problem(client.post(path, json=body, headers=KEY), 422, "/problems/idempotency-key-reused")
    assert campaigns(client) == 1


def test_an_answer_is_forgotten_after_a_day(service, client, spec):
    client.post("/v1/campaigns", json=spec, headers=KEY)
    keys, now = service.store.access.keys, time.time()
    keys.claim("somebody", "else", "", "", now + KEY_KEPT_S - 60)
    assert "idempotent-replayed" in client.post("/v1/campaigns", json=spec, headers=KEY).headers
    keys.claim("somebody", "later", "", "", now + KEY_KEPT_S + 60)
    assert "idempotent-replayed" not in client.post("/v1/campaigns", json=spec, headers=KEY).headers
    assert campaigns(client) == 2


def test_who_was_refused_for_want_of_a_scope_may_use_the_key_again(app, service, spec, token, problem):
    reader = TestClient(app, headers=token("carla", Scope.READ))
    for _ in range(2):
        response = reader.post("/v1/campaigns", json=spec, headers=KEY)
        problem(response, 403, "/problems/scope-missing")
        assert "idempotent-replayed" not in response.headers


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 201, "t\u00e4g"])
def test_a_key_that_is_none_is_refused(client, spec, problem, key):
    response = client.post("/v1/campaigns", json=spec, headers=[("Idempotency-Key", key.encode("latin-1"))])
    document = problem(response, 422, "/problems/malformed-request")
    assert document["errors"][0]["pointer"] == "/header/Idempotency-Key"
    assert campaigns(client) == 0


def test_of_two_at_once_one_acts_and_the_other_is_told_to_come_back(app, client, spec, service, monkeypatch, problem):
    begun, may_end, real = threading.Event(), threading.Event(), service.add

    def slow(*arguments, **named):
        begun.set()
        assert may_end.wait(20)
        return real(*arguments, **named)

    monkeypatch.setattr(service, "add", slow)
    with ThreadPoolExecutor(1) as people:
        first = people.submit(client.post, "/v1/campaigns", json=spec, headers=KEY)
        assert begun.wait(20)
        other = TestClient(app, headers=client.headers)
        response = other.post("/v1/campaigns", json=spec, headers=KEY)
        may_end.set()
        assert first.result(20).status_code == 201
    problem(response, 409, "/problems/idempotency-key-busy")
    assert int(response.headers["retry-after"]) >= 1
    assert client.post("/v1/campaigns", json=spec, headers=KEY).headers["idempotent-replayed"] == "true"
    assert campaigns(client) == 1


@pytest.mark.parametrize("cut_off", ["before it acted", "after it acted", "after it acted, as if by nothing done"])
def test_a_request_that_was_cut_off_acts_once_at_the_next_attempts(app, client, spec, service, monkeypatch, cut_off):
    def defect(*_, **__):
        raise StoreUnavailable("gone", transient=True) if "nothing" in cut_off else RuntimeError("a defect")

    quiet = TestClient(app, headers=client.headers, raise_server_exceptions=False)
    id = client.post("/v1/campaigns", json=spec).json()["id"]
    for path, status, key in (("/v1/campaigns", 201, "a"), (f"/v1/campaigns/{id}:pause", 200, "b")):
        asked = {"json": spec, "headers": {"Idempotency-Key": key}}
        with monkeypatch.context() as patch:
            if "before" in cut_off:
                patch.setattr(service.store, "create_campaign", defect)
                patch.setattr(service.store, "move_campaign", defect)
            else:
                patch.setattr(service.pages, "overview", defect)  # of the campaign that the answer shows
            assert quiet.post(path, **asked).status_code >= 500
        made = [quiet.post(path, **asked) for _ in range(2)]
        assert [one.status_code for one in made] == [status] * 2
        assert made[0].content == made[1].content
        assert client.get(made[0].headers.get("location", f"/v1/campaigns/{id}")).json() == made[0].json()
    assert campaigns(client) == 2
