"""The route that a launch asks: measured or projected, as JSON or lines for a shell, and 404 with what is known."""

from __future__ import annotations

import re

import jsonschema
import pytest

from meshtune.runners.documents import plain
from meshtune.tuner.results.known_best import (
    MAX_CAMPAIGNS,
    CampaignRecords,
    LaunchQuestion,
    NothingKnown,
    best_measured,
)
from meshtune.tuner.results.known_best_projection import best_projected

ASKED = {"model": "gpt-micro", "cluster": "local-cpu", "nodes": 1}
SPEEDS = {"peak_flops": {"float32": 1e12}, "memory_bandwidth_bytes_per_s": 1e11}
LINK = {"latency_s": 1e-6, "bandwidth_bytes_per_s": 1e10}
KNOWN = {"preset": "local-cpu", "device": SPEEDS, "node_link": LINK, "network_link": LINK}


@pytest.fixture(scope="module")
def finished(shared_over):
    return shared_over(cluster=KNOWN)


@pytest.mark.parametrize(("nodes", "answer"), [(1, best_measured), (2, best_projected)], ids=["measured", "projected"])
def test_an_answer_is_that_of_the_command_line(shared_client, finished, nodes, answer):
    response = shared_client.get("/v1/recommendations", params=ASKED | {"nodes": nodes})
    assert response.status_code == 200, response.text
    service = shared_client.app.state.service
    records = CampaignRecords(service.store.readable_campaigns(limit=MAX_CAMPAIGNS), service.store.trials)
    told = response.json()
    assert told == plain(answer(LaunchQuestion(**ASKED | {"nodes": nodes}), records))
    assert (told["measured"], told["standing"]) == ((True, "measured") if nodes == 1 else (False, "projected"))
    if nodes == 1:
        best = shared_client.get(f"/v1/campaigns/{finished}/best").json()["recommendation"]["setting"]
        assert told["plan"] == best["plan"]
        assert told["measured_with"] == best["measured_with"]
    else:
        assert told["sources"][0]["differs"] == ["1 nodes, asked for 2"]
        assert told["p_fits"] is not None
    document = shared_client.app.openapi()
    schema = document["components"]["schemas"]["BestKnown"]
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(told)


def test_a_shell_gets_lines_of_safe_characters(shared_client, finished):
    response = shared_client.get("/v1/recommendations", params=ASKED | {"format": "env"})
    assert response.headers["content-type"].startswith("text/plain")
    lines = response.text.splitlines()
    assert all(re.fullmatch(r"MESHTUNE_[A-Z_]+=[A-Za-z0-9_.:/-]+", line) for line in lines)
    assert "MESHTUNE_MEASURED=1" in lines
    projected = shared_client.get("/v1/recommendations", params=ASKED | {"nodes": 2, "format": "env"})
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
def test_nothing_near_is_a_404_that_says_what_is_known(shared_client, problem, finished, over, words):
    response = shared_client.get("/v1/recommendations", params=ASKED | over)
    assert words in problem(response, 404, "/problems/nothing-known")["detail"]


def test_more_nodes_than_a_cluster_may_have_are_told():
    with pytest.raises(NothingKnown, match="no cluster is that large: nodes"):
        best_measured(LaunchQuestion(**ASKED | {"nodes": 2**31 - 1}), CampaignRecords([], lambda _: []))


@pytest.mark.parametrize(
    "over",
    [
        {"nodes": 0},
        {"nodes": 2**31 - 1},
        {"global_batch_size": 0},
        {"software": "torch"},
        {"software": "torch=2;rm"},
        {"format": "yaml"},
        {"model": ""},
    ],
    ids=str,
)
def test_a_malformed_question_is_refused_with_its_place(shared_client, problem, over):
    found = problem(shared_client.get("/v1/recommendations", params=ASKED | over), 422, "/problems/malformed-request")
    assert {entry["pointer"] for entry in found["errors"]} == {f"/query/{name}" for name in over}


def test_the_software_of_a_question_counts(shared_client, finished):
    response = shared_client.get("/v1/recommendations", params=ASKED | {"software": "torch=2.13,cuda=13.0"})
    assert response.json()["measured"] is False
    assert "torch unknown, asked for 2.13" in response.json()["sources"][0]["differs"]
