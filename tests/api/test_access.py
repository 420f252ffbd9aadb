"""Who gets in, and for what: tokens, scopes, rates, and what the audit log tells of it."""

import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from meshtune.api.middleware.gate import TRUST_S, Gate
from meshtune.api.settings import ServiceSettings
from meshtune.tuner.access.tokens import Quotas, Scope
from meshtune.tuner.store import StoreUnavailable

# What needs no token of ours: a job shows its own, and a fit has nothing that is somebody's.
# By POST, and nothing is started.
COMPUTED = ("/v1/spaces", "/v1/estimates", "/v1/spaces/why", "/v1/projections", "/v1/imports")
UNGUARDED = ("/v1/reports/{job_name}", "/v1/fit")


def guarded(app) -> list[tuple[str, str, dict[str, Any]]]:
    """Method, path and operation of every route under /v1, from the document that clients see."""
    return [
        (method, path, operation)
        for path, methods in app.openapi()["paths"].items()
        if path.startswith("/v1") and path not in UNGUARDED
        for method, operation in methods.items()
    ]


def some(path: str) -> str:
    return path.replace("{number}", "0").replace("{attempt}", "1").replace("{", "").replace("}", "")


@pytest.fixture
def nobody(app) -> TestClient:
    """A program on this machine without a token."""
    return TestClient(app, base_url="http://localhost:8000", client=("127.0.0.1", 1))


def test_every_route_answers_401_without_a_token_and_names_its_scope(app, nobody, problem):
    assert len(guarded(app)) > 15
    for method, path, operation in guarded(app):
        response = nobody.request(method, some(path))
        document = problem(response, 401, "/problems/unauthenticated")
        assert response.headers["www-authenticate"] == "Bearer", path
        assert "token" in document["detail"]
        [scheme] = operation["security"]
        assert scheme.keys() == {"token"}, path
        expected = "read" if method == "get" or path in COMPUTED else "launch"
        expected = "admin" if method == "delete" or path == "/v1/audit" else expected
        both = path.endswith(":clone")
        assert scheme["token"] == (["read", "launch"] if both else [expected]), (method, path)
    problem(nobody.get("/v1/nothing"), 401, "/problems/unauthenticated")


def test_health_and_the_document_need_no_token(nobody):
    assert {nobody.get(path).status_code for path in ("/healthz", "/readyz", "/openapi.json")} == {200}


def test_what_is_no_token_of_ours_and_an_expired_one_and_two_open_nothing(nobody, token, problem):
    wrong = ("", "Bearer", "Bearer ", "Bearer mt_", "Basic bXQ6bXQ=", "mt_wrong", "Bearer mt_" + "a" * 9999)
    late = token("late", expires_at=time.time() - 1)
    for headers in (*({"Authorization": text} for text in wrong), [*token().items()] * 2):
        problem(nobody.get("/v1/whoami", headers=headers), 401, "/problems/unauthenticated")
    told = problem(nobody.get("/v1/whoami", headers=late), 401, "/problems/unauthenticated")
    assert told["detail"] == "the token has expired"


def test_a_dry_run_needs_read_alone_and_a_launch_needs_launch(nobody, token, spec, problem):
    header = token("reader", Scope.READ)
    spec["runner"] = "local"
    assert nobody.post("/v1/campaigns?dry_run=true", json=spec, headers=header).status_code == 200
    for query in ("", "?dry_run=false"):
        problem(nobody.post(f"/v1/campaigns{query}", json=spec, headers=header), 403, "/problems/scope-missing")


def test_whoami_tells_scopes_end_and_quotas(nobody, token, spec):
    end = time.time() + 1000
    rights = {"quotas": Quotas(campaigns=3, trials=50), "projects": frozenset({"vision:read", "llm"})}
    header = token("carla", Scope.READ, Scope.LAUNCH, **rights, expires_at=end)
    nobody.post("/v1/campaigns", json=spec | {"runner": "local"}, headers=header)
    told = nobody.get("/v1/whoami", headers=header).json()
    assert told.pop("expires_at").endswith("Z")
    assert told == {
        "name": "carla",
        "scopes": ["launch", "read"],
        "projects": ["llm", "vision:read"],
        "quotas": {"campaigns": 3, "trials": 50, "device_hours": None},
        "used": {"campaigns": 1, "trials": 0, "device_hours": 0.0},
    }


def test_a_campaign_carries_the_name_of_the_token_that_created_or_cloned_it(nobody, client, token, create):
    id = create(runner="local")
    assert client.get(f"/v1/campaigns/{id}").json()["owner"] == "tester"
    header = token("carla", Scope.READ_ALL, Scope.LAUNCH)
    assert nobody.post(f"/v1/campaigns/{id}:clone", json={}, headers=header).json()["owner"] == "carla"


# Trust in what was looked up


@pytest.fixture
def gate(service, monkeypatch):
    """A gate before an application that says who came, what moves its clock, and the digests it looked up."""

    async def who(scope, receive, send):
        caller = scope["state"]["caller"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"" if caller is None else caller.name.encode()})

    now, asked, access = [1000.0], [], service.store.access
    find = access.by_digest
    monkeypatch.setattr(access, "by_digest", lambda sha256: (asked.append(sha256), find(sha256))[1])
    settings = ServiceSettings(requests_per_s=2, requests_burst=6, posts_per_s=0.5, posts_burst=2)
    made = Gate(who, access, settings, clock=lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return TestClient(made), wait, asked


def test_a_known_token_costs_no_query_and_a_revocation_counts_within_five_seconds(gate, service, token):
    client, wait, asked = gate
    header = token()
    assert [client.get("/v1/x", headers=header).text for _ in range(3)] == ["tester"] * 3
    assert len(asked) == 1
    service.store.access.revoke("tester", time.time())
    wait(TRUST_S - 0.1)
    assert client.get("/v1/x", headers=header).status_code == 200
    wait(0.2)
    response = client.get("/v1/x", headers=header)
    assert (response.status_code, response.json()["detail"]) == (401, "the token was revoked")
    assert TRUST_S <= 5


def test_a_token_gets_so_many_requests_and_then_is_told_to_wait(gate, token):
    client, wait, _ = gate
    header = token()
    assert [client.get("/v1/x", headers=header).status_code for _ in range(7)] == [200] * 6 + [429]
    response = client.get("/v1/x", headers=header)
    assert (response.headers["retry-after"], response.json()["type"]) == ("1", "/problems/rate-limited")
    assert client.get("/v1/x", headers=token("other")).status_code == 200
    wait(0.5)
    assert [client.get("/v1/x", headers=header).status_code for _ in range(2)] == [200, 429]


def test_posts_have_a_stricter_rate_of_their_own(gate, token):
    client, wait, _ = gate
    header = token()
    assert [client.post("/v1/x", headers=header).status_code for _ in range(3)] == [200, 200, 429]
    assert client.get("/v1/x", headers=header).status_code == 200
    assert client.post("/v1/x", headers=header).headers["retry-after"] == "2"
    wait(2)
    assert client.post("/v1/x", headers=header).status_code == 200


def test_who_tries_secrets_is_slowed_down_by_address_and_a_known_token_is_not(gate, token):
    client, _, asked = gate
    header = token()
    assert client.get("/v1/x", headers=header).status_code == 200
    tried = [client.get("/v1/x", headers={"Authorization": f"Bearer mt_{n}"}).status_code for n in range(20)]
    assert (set(tried[:5]), set(tried[5:]), len(asked)) == ({401}, {429}, 6)
    assert client.get("/v1/x", headers=header).status_code == 200


def test_a_database_that_does_not_answer_lets_nobody_new_in(nobody, service, token, monkeypatch, problem):
    def gone(sha256):
        raise StoreUnavailable("the database is away", transient=True)

    monkeypatch.setattr(service.store.access, "by_digest", gone)
    problem(nobody.get("/v1/whoami", headers=token()), 503, "/problems/store-unavailable")


# Commands and quotas


def test_without_the_scope_command_a_spec_cannot_name_one(nobody, client, token, spec, problem):
    spec |= {"workload": {"kind": "command", "command": "touch /tmp/owned"}, "runner": {"kind": "local", "odd": 1}}
    header = token("plain", Scope.READ, Scope.LAUNCH)
    for path in ("campaigns", "campaigns?dry_run=true", "spaces", "estimates"):
        document = problem(nobody.post(f"/v1/{path}", json=spec, headers=header), 403, "/problems/command-not-allowed")
        assert [entry["pointer"] for entry in document["errors"]] == ["/workload/kind", "/runner/odd"]
    for path, body in (("spaces/why", {"spec": spec, "plan": {}}), ("projections", {"spec": spec})):
        response = nobody.post(f"/v1/{path}", json=body, headers=header)
        document = problem(response, 403, "/problems/command-not-allowed")
        assert document["errors"][0]["pointer"] == "/spec/workload/kind"
    assert nobody.get("/v1/campaigns", headers=header).json()["campaigns"] == []
    # Whoever may gets the next answer.
    problem(client.post("/v1/campaigns", json=spec), 422, "/problems/invalid-spec")


def test_cloning_brings_no_command_in_nor_takes_one_over(nobody, client, token, spec, create, problem):
    header = token("plain", Scope.READ_ALL, Scope.LAUNCH)
    id = create(runner={"kind": "instant"})
    changes = {"runner": {"kind": "slurm", "setup": ["touch /tmp/owned"]}}
    response = nobody.post(f"/v1/campaigns/{id}:clone", json=changes, headers=header)
    document = problem(response, 403, "/problems/command-not-allowed")
    assert [entry["pointer"] for entry in document["errors"]] == ["/runner/setup"]


def test_a_campaign_beyond_a_quota_is_refused_with_the_numbers(nobody, token, spec, problem):
    header = token("small", Scope.LAUNCH, Scope.COMMAND, quotas=Quotas(campaigns=1, trials=8, device_hours=2))
    post = lambda **changes: nobody.post("/v1/campaigns", json=spec | changes, headers=header)  # noqa: E731
    document = problem(post(budget={"trials": 9}), 403, "/problems/quota-exceeded")
    assert document["detail"] == "the budget is 9 trials, and the token small has 8 of 8 within 24 h left"
    document = problem(post(budget={"device_hours": 3}), 403, "/problems/quota-exceeded")
    told = "the budget is 3 device-hours, and the token small has 2 of 2 device-hours within 30 days left"
    assert document["detail"] == told
    assert post(budget={"trials": 8}).status_code == 201
    document = problem(post(), 403, "/problems/quota-exceeded")
    assert document["detail"] == "1 of 1 campaigns of the token small are active"


# The audit log


def test_what_changes_something_and_what_is_refused_is_audited_and_reading_is_not(nobody, client, token, spec, create):
    id = create()
    client.get(f"/v1/campaigns/{id}")
    client.post("/v1/campaigns?dry_run=true", json=spec)
    client.post("/v1/spaces", json=spec)
    client.post(f"/v1/campaigns/{id}:pause")
    client.post("/v1/campaigns/nothing-123456:pause")
    nobody.get("/v1/campaigns", headers={"Authorization": "Bearer mt_secret-of-somebody"})
    nobody.post(f"/v1/campaigns/{id}:cancel", headers=token("reader", Scope.READ))
    nobody.get("/v1/campaigns/mt_abcdefgh-secret-of-somebody")
    page = client.get("/v1/audit").json()
    told = [(entry["token"], entry["action"], entry["object"], entry["outcome"]) for entry in page["entries"]]
    assert told == [
        ("tester", "POST /v1/campaigns", id, "201"),
        ("tester", "POST /v1/campaigns/{campaign_id}:pause", id, "200"),
        ("tester", "POST /v1/campaigns/{campaign_id}:pause", "nothing-123456", "404 not-found"),
        ("", "GET /v1/campaigns", "", "401 unauthenticated"),
        ("reader", "POST /v1/campaigns/{campaign_id}:cancel", id, "403 scope-missing"),
        ("", "GET /v1/campaigns/mt_***", "", "401 unauthenticated"),
    ]
    assert "secret-of-somebody" not in str(page)
    assert page["next_page_token"] is None


def test_the_audit_log_is_read_in_pages_and_a_flood_of_refusals_does_not_fill_it(nobody, client, create, service):
    ids = [create() for _ in range(3)]
    first = client.get("/v1/audit", params={"page_size": 2}).json()
    second = client.get("/v1/audit", params={"page_size": 2, "page_token": first["next_page_token"]}).json()
    assert [entry["object"] for entry in first["entries"] + second["entries"]] == ids
    assert second["next_page_token"] is None
    for _ in range(60):
        nobody.get("/v1/campaigns")
    assert 20 <= len(service.store.access.audit(limit=100)) - len(ids) < 30


def test_a_log_that_cannot_be_written_stops_nobody(client, create, service, monkeypatch, caplog):
    def full(deed):
        raise StoreUnavailable("the database is full", transient=True)

    monkeypatch.setattr(service.store.access, "record", full)
    assert create()
    assert "the audit log misses" in caplog.text
