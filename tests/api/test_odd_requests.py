"""Whatever is sent to any documented route, the answer is documented: no request finds a defect of ours.

Requests are drawn from a seeded generator, about 50 for each route; the client raises what the application raises.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from meshtune.api.app import create_app
from meshtune.api.openapi import SPEC_SCHEMA
from meshtune.api.settings import Settings
from meshtune.tuner.campaign.home import Home
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

PER_ROUTE = 50
NOT_SWEPT = {"/v1/stream"}  # it does not end; what it answers to odd requests is in test_stream.py
TRUSTING = Settings(trust_loopback=True, requests_per_s=1e6, posts_per_s=1e6)
HEADERS = {"content-type": "application/json"}
ODD_TEXTS = [
    "",
    "0",
    "-1",
    "x",
    "nothing-1",
    "1e9",
    "true",
    "null",
    "..",
    ".",
    "-",
    "%00",
    "%0A",
    "%25",
    "a%20b",
    "%C3%28",
]
ODD_TEXTS += [
    "2147483647",
    "2147483648",
    "9223372036854775807",
    "9" * 30,
    "%F0%9F%92%A5",
    "a" * 101,
    "';--",
    "{}",
    "[]",
]
ODD_VALUES: list[Any] = [None, True, False, 0, -1, 1, 2, 3, 7, 64, 2**31, 2**53, 2**64, 0.5, -0.0, 1e-300, 1e300]
ODD_VALUES += [
    float("nan"),
    float("inf"),
    "",
    "free",
    "x" * 1000,
    "\x00",
    "gpt-micro",
    "1",
    [],
    [1],
    [0],
    [[]],
    {},
    {"": 0},
]
ODD_VALUES += [
    {"kind": []},
    {"preset": {}},
    {"preset": "local-cpu", "nodes": -1},
    [None],
    ["none", "none"],
    "\ud800",
    "2",
]
ODD_BODIES = [b"", b"{", b"[]", b"null", b"NaN", b'"x"', b"\xff\xfe", b"[" * 5000, b'{"a":1,"a":2}', b"0" * 99, b"\x00"]


@pytest.fixture(scope="module")
def sweeping(tmp_path_factory: pytest.TempPathFactory) -> tuple[TestClient, dict[str, Any], str]:
    """One application for the whole sweep, its document, and one campaign in it."""
    root = tmp_path_factory.mktemp("sweep")
    with Store.open("sqlite://") as store:
        app = create_app(Service(store, Home(root)), settings=TRUSTING)
        client = TestClient(app, base_url="http://localhost", client=("127.0.0.1", 1))
        spec = {"model": "gpt-micro", "cluster": "local-cpu", "global_batch_size": 16, "search": "random"}
        id = client.post("/v1/campaigns", json=spec).json()["id"]
        yield client, app.openapi(), id


def operations() -> list[tuple[str, str]]:
    with Store.open("sqlite://") as store:
        document = create_app(Service(store, Home(Path("nowhere")))).openapi()
    return [
        (method, path) for path, methods in document["paths"].items() if path not in NOT_SWEPT for method in methods
    ]


def odd_spec(draw: random.Random) -> bytes:
    """A good spec with one to three places made odd, at any depth."""
    spec: dict[str, Any] = {
        "model": {"preset": "gpt-micro"},
        "cluster": {"preset": "local-cpu", "device": {"memory_bytes": 10**9}},
        "global_batch_size": 16,
        "baseline": {"tp": 1},
        "space": {"tp": [1, 2], "zero_stage": [0]},
        "search": {"kind": "random"},
        "workload": {"kind": "torch", "measuring": {"min_steps": 3}},
        "runner": {"kind": "local", "slots": 4},
        "budget": {"trials": 3},
        "trial": {"time_limit_s": 5},
    }
    for _ in range(draw.randint(1, 3)):
        section = draw.choice(sorted(SPEC_SCHEMA["properties"]))
        inside = spec.get(section)
        fields = sorted(
            SPEC_SCHEMA["properties"][section].get("properties", inside if isinstance(inside, dict) else ())
        )
        if isinstance(inside, dict) and fields and draw.random() < 0.7:
            inside[draw.choice(fields)] = draw.choice(ODD_VALUES)
        else:
            spec[draw.choice([section, section, "odd", ""])] = draw.choice(ODD_VALUES)
    return json.dumps(spec).encode()


@pytest.mark.parametrize(("method", "path"), operations(), ids=lambda part: part)
def test_no_request_finds_an_undocumented_answer(sweeping, method, path):
    client, document, id = sweeping
    operation = document["paths"][path][method]
    draw = random.Random(f"{method} {path}")
    for _ in range(PER_ROUTE):
        url = path.replace("{campaign_id}", draw.choice([id, id, *ODD_TEXTS]))
        url = url.replace("{number}", draw.choice(ODD_TEXTS))
        names = [entry["name"] for entry in operation.get("parameters", []) if entry["in"] == "query"] + ["odd"]
        query = "&".join(f"{draw.choice(names)}={draw.choice(ODD_TEXTS)}" for _ in range(draw.randint(0, 3)))
        body: dict[str, Any] = {}
        if method == "post":
            content = odd_spec(draw) if draw.random() < 0.8 else draw.choice(ODD_BODIES)
            body = {"content": content, "headers": HEADERS if draw.random() < 0.95 else {}}
        request = f"{method} {url}?{query} {body}"
        response = client.request(method, f"{url}?{query}", **body)
        if response.request.url.path.count("/") == path.count("/") and response.status_code not in (404, 405):
            assert str(response.status_code) in operation["responses"], (request, response.text)
        if response.status_code >= 400:
            assert response.status_code < 500, (request, response.text)
            assert response.headers["content-type"] == "application/problem+json", request
            assert response.json()["status"] == response.status_code, request
        elif "application/json" in operation["responses"][str(response.status_code)].get("content", ()):
            response.json()
