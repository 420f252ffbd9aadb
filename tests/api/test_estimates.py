"""A quote over REST is the quote of the command line, and keeps its schema."""

from __future__ import annotations

import jsonschema
import pytest

from meshtune.runners.documents import plain
from meshtune.tuner.prediction.predict import Basis
from meshtune.tuner.prediction.quote import make_quote
from meshtune.tuner.specs.read import read_spec

BARE = {"name": "bare", "kind": "cuda", "memory_bytes": 2**34}
FAST = BARE | {"peak_flops": {"float32": 1e13}, "memory_bandwidth_bytes_per_s": 1e12}


def one_device(device):
    return {"name": "one", "nodes": 1, "devices_per_node": 1, "device": device}


@pytest.mark.parametrize("device", [BARE, FAST], ids=["without speeds", "with speeds"])
def test_an_estimate_is_the_quote_of_the_command_line_and_starts_nothing(client, app, spec, device):
    spec |= {"cluster": one_device(device), "baseline": None, "runner": "local"}
    response = client.post("/v1/estimates", json=spec)
    assert response.status_code == 200, response.text
    quote = make_quote(*read_spec(spec, None), Basis())
    assert response.json() == plain(quote)
    assert bool(response.json()["missing"]) == (device is BARE)
    document = app.openapi()
    schema = document["components"]["schemas"]["Quote"]
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(response.json())
    assert client.get("/v1/campaigns").json()["campaigns"] == []


def test_a_spec_with_mistakes_is_refused_with_all_of_them(client, spec, problem):
    found = problem(client.post("/v1/estimates", json=spec | {"seed": -1, "serach": 1}), 422, "/problems/invalid-spec")
    assert {entry["pointer"] for entry in found["errors"]} == {"/seed", "/serach"}
