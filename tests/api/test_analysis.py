"""An analysis over REST is that of the command line, and keeps its schema, at any time of a campaign's life."""

from __future__ import annotations

import jsonschema
import pytest

from meshtune.runners.documents import plain
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.results.analysis.analysis import analyse

FAST = {
    "name": "one",
    "kind": "cuda",
    "memory_bytes": 2**34,
    "peak_flops": {"float32": 1e13},
    "memory_bandwidth_bytes_per_s": 1e12,
}
LINK = {"latency_s": 1e-6, "bandwidth_bytes_per_s": 1e11}
CLUSTER = {"name": "fast", "nodes": 1, "devices_per_node": 4, "device": FAST, "node_link": LINK}


@pytest.fixture
def analysed(client, app, service):
    """The answer of the route, held against the value and the schema."""

    def read(id):
        response = client.get(f"/v1/campaigns/{id}/analysis")
        assert response.status_code == 200, response.text
        campaign = service.store.campaign(id)
        found = analyse(campaign, space_of(campaign.spec), service.store.trials(id))
        assert response.json() == plain(found)
        document = app.openapi()
        schema = document["components"]["schemas"]["Analysis"]
        jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(response.json())
        return response.json()

    return read


@pytest.mark.slow
def test_a_campaign_that_is_done_is_analysed(create, drive, analysed):
    id = create(space={"zero_stage": [0, 1]}, search="grid", budget={"trials": 40})
    drive(id)
    found = analysed(id)
    assert found["sensitivity"]["importances"]
    assert {effect["evidence"] for effect in found["effects"]} == {"measured"}
    assert found["failures"]["all"]["failed"] > 0
    assert found["winners"][0]["evidence"] == "measured"
    assert found["basis"] is None
    assert "is not known of the cluster" in found["unpredicted"]


def test_where_the_clusters_speeds_are_known_there_are_predictions_too(create, drive, analysed):
    id = create(budget={"trials": 6}, cluster=CLUSTER)
    drive(id)
    found = analysed(id)
    assert "predicted" in {effect["evidence"] for effect in found["effects"]}
    assert found["basis"]["calibrated"] is True


def test_a_campaign_that_has_just_begun_is_analysed_too(create, analysed):
    found = analysed(create())
    assert (found["trials"], found["effects"], found["winners"]) == (0, [], [])
    assert found["failures"]["all"] is None


def test_an_unknown_campaign_has_no_analysis(client, problem):
    problem(client.get("/v1/campaigns/nobody/analysis"), 404, "/problems/not-found")


def test_an_analysis_of_many_trials_is_broken_off_when_the_service_ends(app, client, create, drive, problem):
    few, many = create(), create(budget={"trials": 12})
    drive(few)
    drive(many)
    app.state.end_soon()
    assert client.get(f"/v1/campaigns/{few}/analysis").status_code == 200
    response = client.get(f"/v1/campaigns/{many}/analysis")
    problem(response, 503, "/problems/worker-ended")
    assert response.headers["retry-after"]
