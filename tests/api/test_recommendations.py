"""The route that a launch asks: measured or projected, as JSON or lines for a shell, and 404 with what is known."""

from __future__ import annotations

import re

import jsonschema
import pytest

from meshtune.runners.documents import plain
from meshtune.tuner.results.known_best import MAX_CAMPAIGNS, CampaignRecords, Question, best_measured
from meshtune.tuner.results.known_best_projection import best_projected

ASKED = {"model": "gpt-micro", "cluster": "local-cpu", "nodes": 1}
SPEEDS = {"peak_flops": {"float32": 1e12}, "memory_bandwidth_bytes_per_s": 1e11}
LINK = {"latency_s": 1e-6, "bandwidth_bytes_per_s": 1e10}
KNOWN = {"preset": "local-cpu", "device": SPEEDS, "node_link": LINK, "network_link": LINK}


@pytest.fixture
def finished(create, drive):
    id = create(cluster=KNOWN)
    drive(id)
    return id


def check_schema(app, response):
    document = app.openapi()
    schema = document["components"]["schemas"]["BestKnown"]
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(response.json())


def test_a_measured_answer_is_that_of_the_command_line(client, app, service, finished):
    response = client.get("/v1/recommendations", params=ASKED)
    assert response.status_code == 200, response.text
    records = CampaignRecords(service.store.readable_campaigns(limit=MAX_CAMPAIGNS), service.store.trials)
    assert response.json() == plain(best_measured(Question(**ASKED), records))
    assert (response.json()["measured"], response.json()["standing"]) == (True, "measured")
    best = client.get(f"/v1/campaigns/{finished}/best").json()["recommendation"]["setting"]
    assert response.json()["plan"] == best["plan"]
    check_schema(app, response)


def test_a_projected_answer_is_marked_with_its_interval_and_sources(client, app, service, finished):
    response = client.get("/v1/recommendations", params=ASKED | {"nodes": 2})
    records = CampaignRecords(service.store.readable_campaigns(limit=MAX_CAMPAIGNS), service.store.trials)
    question = Question(**ASKED | {"nodes": 2})
    assert response.json() == plain(best_projected(question, records))
    assert (response.json()["measured"], response.json()["standing"]) == (False, "projected")
    assert response.json()["sources"][0]["differs"] == ["1 nodes, asked for 2"]
    assert response.json()["p_fits"] is not None
    check_schema(app, response)


def test_a_shell_gets_lines_of_safe_characters(client, finished):
    response = client.get("/v1/recommendations", params=ASKED | {"format": "env"})
    assert response.headers["content-type"].startswith("text/plain")
    lines = response.text.splitlines()
    assert all(re.fullmatch(r"MESHTUNE_[A-Z_]+=[A-Za-z0-9_.:/-]+", line) for line in lines)
    assert "MESHTUNE_MEASURED=1" in lines
    projected = client.get("/v1/recommendations", params=ASKED | {"nodes": 2, "format": "env"})
    assert "MESHTUNE_MEASURED=0" in projected.text.splitlines()


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"model": "gpt-mikro"}, "did you mean 'gpt-micro'?"),
        ({"cluster": "local-cpus"}, "did you mean 'local-cpu'?"),
        ({"cluster": "frontier"}, "nothing was measured on MI250X-GCD-64GB; measured: cpu-process"),
        ({"nodes": 1024}, "10.0 doublings away"),
        ({"simulated": True}, "measured: nothing"),
    ],
)
def test_nothing_near_is_a_404_that_says_what_is_known(client, problem, finished, over, words):
    response = client.get("/v1/recommendations", params=ASKED | over)
    assert words in problem(response, 404, "/problems/nothing-known")["detail"]


@pytest.mark.parametrize(
    ("over", "name"),
    [
        ({"nodes": 0}, "nodes"),
        ({"nodes": 2**40}, "nodes"),
        ({"global_batch_size": 0}, "global_batch_size"),
        ({"software": "torch"}, "software"),
        ({"software": "torch=2;rm"}, "software"),
        ({"format": "yaml"}, "format"),
        ({"model": ""}, "model"),
    ],
)
def test_a_malformed_question_is_refused_with_its_place(client, problem, over, name):
    found = problem(client.get("/v1/recommendations", params=ASKED | over), 422, "/problems/malformed-request")
    assert {entry["pointer"] for entry in found["errors"]} == {f"/query/{name}"}


def test_the_software_of_a_question_counts(client, finished):
    response = client.get("/v1/recommendations", params=ASKED | {"software": "torch=2.13,cuda=13.0"})
    assert response.json()["measured"] is False
    assert "torch unknown, asked for 2.13" in response.json()["sources"][0]["differs"]
