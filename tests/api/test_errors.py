"""Every error is a problem document (RFC 9457) that says what is wrong, where."""

import errno
import json
import os
import sqlite3
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from new_tokens import new_token

from meshtune.api.app import create_app
from meshtune.api.openapi import SPEC_EXAMPLE
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

ABOUT = "about:blank"
OF_ONE_CAMPAIGN = ["", "/trials", "/trials/0", "/best", "/space", "/events"]
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("below", OF_ONE_CAMPAIGN)
def test_an_unknown_campaign_is_not_found(shared_client, problem, below):
    document = problem(shared_client.get(f"/v1/campaigns/nothing-123456{below}"), 404, "/problems/not-found")
    assert "nothing-123456" in document["detail"]


def test_what_is_not_there_cannot_be_moved_or_shown(client, create, problem):
    problem(client.post("/v1/campaigns/nothing-123456:pause"), 404, "/problems/not-found")
    document = problem(client.get(f"/v1/campaigns/{create()}/trials/7"), 404, "/problems/not-found")
    assert "trial 7" in document["detail"]


@pytest.mark.parametrize("path", ["/v1", "/v2/campaigns", "/v1/campaigns/a/b/c", "/v1/campaigns/a%2Fb"])
def test_an_unknown_route_is_a_problem_without_a_type(shared_client, problem, path):
    response = shared_client.get(path)
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.status_code, response.json()["type"]) == (404, ABOUT)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/campaigns/demo-1", "GET, PATCH, DELETE"),
        ("PUT", "/v1/campaigns", "GET, POST"),
        ("GET", "/v1/campaigns/demo-1:pause", "POST"),
        ("POST", "/v1/whoami", "GET"),
        ("DELETE", "/readyz", "GET, HEAD"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ],
)
def test_a_method_that_is_not_allowed_says_which_is(shared_client, problem, method, path, allowed):
    response = shared_client.request(method, path)
    problem(response, 405, ABOUT)
    assert response.headers["allow"] == allowed


BAD_PARAMETERS = {
    "/v1/campaigns?page_size=0": "/query/page_size",
    "/v1/campaigns?page_size=501": "/query/page_size",
    "/v1/campaigns?page_size=999999999999999999999999": "/query/page_size",
    "/v1/campaigns?page_size=ten": "/query/page_size",
    "/v1/campaigns?page_size=": "/query/page_size",
    "/v1/campaigns?page_token=%00": "/query/page_token",
    "/v1/campaigns?page_token=": "/query/page_token",
    "/v1/campaigns?page_token=gone": "/query/page_token",
    "/v1/campaigns?sort=age": "/query/sort",
    "/v1/campaigns?colour=red": "/query/colour",
    "/v1/campaigns?state=asleep": "/query/state/0",
    "/v1/campaigns/a%20b": "/path/campaign_id",
    "/v1/campaigns/%00": "/path/campaign_id",
    "/v1/campaigns/%F0%9F%98%80": "/path/campaign_id",
    "/v1/campaigns/" + "x" * 101: "/path/campaign_id",
    "/v1/campaigns/demo-1/trials/-1": "/path/number",
    "/v1/campaigns/demo-1/trials/2147483648": "/path/number",
    "/v1/campaigns/demo-1/trials/" + "9" * 5000: "/path/number",
    "/v1/campaigns/demo-1/trials/NaN": "/path/number",
    "/v1/campaigns/demo-1/trials?page_token=2147483648": "/query/page_token",
    "/v1/campaigns/demo-1/trials?page_token=gone": "/query/page_token",
    "/v1/campaigns/demo-1/trials?sort=step_time_s&page_token=7": "/query/page_token",
    "/v1/campaigns/demo-1/trials?page_size=501": "/query/page_size",
    "/v1/campaigns/demo-1/trials?view=brief&page_size=1001": "/query/page_size",
    "/v1/campaigns/demo-1/trials?verdict=good": "/query/verdict/0",
    "/v1/campaigns/demo-1/trials?tp=two": "/query/tp/0",
    "/v1/campaigns/demo-1/trials?recompute=some": "/query/recompute/0",
    "/v1/campaigns/demo-1/trials?colour=red": "/query/colour",
    "/v1/campaigns/demo-1/best?top=0": "/query/top",
    "/v1/campaigns/demo-1/events?after=9223372036854775808": "/query/after",
    "/v1/campaigns/demo-1/events?page_size=1001": "/query/page_size",
}


@pytest.fixture(scope="module")
def known(shared_client) -> str:
    """The id of a campaign: of one that is not there, no parameter is looked at."""
    return shared_client.app.state.service.create(SPEC_EXAMPLE["demo"]["value"]).id


@pytest.mark.parametrize("url", BAD_PARAMETERS)
def test_a_bad_parameter_is_pointed_at(shared_client, problem, known, url):
    document = problem(shared_client.get(url.replace("demo-1", known)), 422, "/problems/malformed-request")
    assert [mistake["pointer"] for mistake in document["errors"]] == [BAD_PARAMETERS[url]]


NO_JSON = {
    "nothing": (b"", "is empty"),
    "half an object": (b'{"name": ', "line 1, column"),
    "not UTF-8": (b'{"name": "\xff"}', "byte 10 is 0xff"),
    "UTF-16": ('{"name": "x"}'.encode("utf-16"), "byte 0 is 0xff"),
    "a key twice": (b'{"name": "a", "model": {"layers": 1, "layers": 2}}', "'layers' twice"),
    "endless digits": (b'{"seed": ' + b"9" * 5000 + b"}", "digits"),
    "endless depth": (b"[" * 100_000, "is nested deeper than 64 levels"),
    "YAML": (b"name: demo", "line 1, column 1"),
    "form data": (b"name=demo", "line 1, column 1"),
}


@pytest.mark.parametrize(("content", "said"), NO_JSON.values(), ids=NO_JSON)
def test_a_body_that_is_no_json_is_malformed(shared_client, problem, content, said):
    document = problem(
        shared_client.post("/v1/campaigns", content=content, headers=JSON), 422, "/problems/malformed-body"
    )
    assert [mistake["pointer"] for mistake in document["errors"]] == [""]
    assert said in document["detail"]


@pytest.mark.parametrize("body", [[], None, 1, "demo", True, [{}]], ids=str)
def test_a_body_that_is_no_object_is_no_spec(shared_client, problem, body):
    response = shared_client.post("/v1/spaces", content=json.dumps(body), headers=JSON)
    document = problem(response, 422, "/problems/invalid-spec")
    assert [mistake["pointer"] for mistake in document["errors"]] == [""]


NO_VALUES = {
    "NaN": (b"NaN", "/seed"),
    "Infinity": (b"Infinity", "/seed"),
    "a number beyond doubles": (b"1e999", "/seed"),
    "an integer beyond doubles": (b"10000000000000000000000000000000", "/seed"),
    "half a surrogate pair": (b'"\\ud800"', "/seed"),
    "a NUL": (b'"\\u0000"', "/seed"),
    "a deep list": (b"[" * 60 + b"]" * 60, "/seed" + "/0" * 20),
}


@pytest.mark.parametrize(("value", "pointer"), NO_VALUES.values(), ids=NO_VALUES)
def test_a_value_that_cannot_be_kept_is_a_mistake_of_the_spec(shared_client, spec, problem, value, pointer):
    content = json.dumps(spec)[:-1].encode() + b', "seed": ' + value + b"}"
    document = problem(
        shared_client.post("/v1/campaigns", content=content, headers=JSON), 422, "/problems/invalid-spec"
    )
    assert document["errors"][0]["pointer"].startswith(pointer)


def test_an_error_repeats_a_text_that_no_answer_in_utf_8_can_hold(shared_client, problem):
    answer = shared_client.post("/v1/fit", content=json.dumps({"model": "gpt-\ud800"}), headers=JSON)
    assert "gpt-\ud800" in problem(answer, 422, "/problems/invalid-spec")["detail"]


def test_all_mistakes_of_a_spec_come_at_once_with_pointers(shared_client, spec, problem):
    wrong = spec | {
        "surprise": 1,
        "a/b~c": 1,
        "model": {"preset": "gpt-nano"},
        "cluster": {"preset": "local-cpu", "device": {"memory_bytes": "much"}},
        "global_batch_size": 0,
        "budget": {"trials": -1},
        "search": {"kind": ["random"]},
        "workload": {"kind": "torch", "measuring": {"min_steps": 0}},
        "space": {"tp": [0]},
        "seed": "x",
    }
    before = shared_client.get("/v1/campaigns").json()
    document = problem(shared_client.post("/v1/campaigns", json=wrong), 422, "/problems/invalid-spec")
    pointers = {mistake["pointer"] for mistake in document["errors"]}
    assert pointers >= {
        "/surprise",
        "/a~1b~0c",
        "/model/preset",
        "/cluster/device/memory_bytes",
        "/global_batch_size",
        "/budget/trials",
        "/search/kind",
        "/workload/measuring/min_steps",
        "/space/tp",
        "/seed",
    }
    assert all(mistake["detail"] for mistake in document["errors"])
    assert shared_client.get("/v1/campaigns").json() == before


def test_only_json_and_yaml_are_read_and_no_huge_body(shared_client, spec, problem):
    for kind in ({}, {"content-type": "text/plain"}, {"content-type": "text/yaml"}):
        response = shared_client.post("/v1/campaigns", content=json.dumps(spec), headers=kind)
        assert "application/json or application/yaml" in problem(response, 415, ABOUT)["detail"]
    problem(shared_client.post("/v1/campaigns", content=b" " * 1_000_001, headers=JSON), 413, ABOUT)


@pytest.fixture
def on_file(tmp_path: Path, runner) -> tuple[TestClient, Path]:
    """The application over a database file, which waits no time for locks."""
    path = tmp_path / "store.db"
    with Store.open(f"sqlite:///{path}?timeout=0.05") as store:
        yield TestClient(create_app(Service(store, Home(tmp_path))), headers=new_token(store)), path


def test_a_locked_database_makes_writing_unavailable_and_reading_goes_on(on_file, spec, problem):
    client, path = on_file
    id = client.post("/v1/campaigns", json=spec).json()["id"]
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        assert "locked" in problem(client.get("/readyz"), 503, ABOUT)["detail"]
        for response in (
            client.post("/v1/campaigns", json=spec),
            client.post(f"/v1/campaigns/{id}:pause"),
        ):
            assert "locked" in problem(response, 503, "/problems/store-unavailable")["detail"]
            assert int(response.headers["retry-after"]) > 0
        assert client.get(f"/v1/campaigns/{id}").status_code == 200
        assert client.get("/healthz").status_code == 200
    finally:
        other.close()
    assert client.get("/readyz").status_code == 200


def test_a_broken_database_makes_the_service_unready_but_alive(on_file, problem):
    client, path = on_file
    for file in path.parent.glob("store.db*"):
        file.write_bytes(b"no database" * 1000)
    response = client.get("/readyz")
    assert "database" in problem(response, 503, ABOUT)["detail"]
    assert response.headers["retry-after"]
    problem(client.get("/v1/campaigns"), 503, "/problems/store-unavailable")
    assert client.get("/healthz").json()["status"] == "ok"


def test_a_defect_of_ours_is_a_problem_without_secrets(app, service, problem):
    def broken() -> None:
        raise RuntimeError("postgresql://user:secret@host")

    app.get("/broken")(broken)
    response = TestClient(app, raise_server_exceptions=False).get("/broken")
    document = problem(response, 500, ABOUT)
    assert "secret" not in json.dumps(document)


@pytest.mark.parametrize(
    ("number", "status", "type_"), [(errno.ENOSPC, 503, "/problems/disk-full"), (errno.EACCES, 500, ABOUT)]
)
def test_no_space_is_a_trouble_that_may_pass_and_other_errors_of_the_system_are_defects(
    app, problem, number, status, type_
):
    def full() -> None:
        raise OSError(number, os.strerror(number), "result.json")

    app.get("/full")(full)
    response = TestClient(app, raise_server_exceptions=False).get("/full")
    problem(response, status, type_)
    assert ("retry-after" in response.headers) is (status == 503)
