"""Where nothing fits, the service says what would: of a spec, of a campaign's space, and at a campaign's end."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

SPEC = {
    "model": {"preset": "llama3-70b", "seq_len": 8192},
    "cluster": {"preset": "dgx-h100", "nodes": 8},
    "global_batch_size": 512,
    "space": {"recompute": ["none"]},
    "workload": {"kind": "simulated", "framework": "trainer"},
    "runner": {"kind": "simulated", "seed": 1},
    "budget": {"trials": 2},
    "trial": {"time_limit_s": 21600},
}
REMEDY = "space.recompute: [none, selective, full] would: 36 plans fit with 90 %"


def test_a_space_a_quote_and_the_end_of_a_campaign_name_the_axis_to_open(client, drive):
    space = client.post("/v1/spaces", json=SPEC).json()
    needs = space["memory_needs"]
    assert needs[0].startswith("no plan fits with 90 %: the least memory is ")
    assert needs[1] == REMEDY
    assert client.post("/v1/estimates", json=SPEC).json()["memory_needs"] == needs
    id = client.post("/v1/campaigns", json=SPEC).json()["id"]
    assert client.get(f"/v1/campaigns/{id}").json()["summary"]["recommended_reason"] == "no plan was measured"
    assert client.get(f"/v1/campaigns/{id}/space").json() == {**space, "limits": None}
    drive(id)
    summary = client.get(f"/v1/campaigns/{id}").json()["summary"]
    assert summary["failures"] == {"oom": 2}
    assert summary["recommended_reason"] == "; ".join(["no plan was measured", *needs])


def test_a_spec_that_states_nothing_is_stored_with_what_was_opened(client):
    opened = {key: value for key, value in SPEC.items() if key != "space"}
    campaign = client.post("/v1/campaigns", json=opened).json()
    assert campaign["spec"]["space"]["recompute"] == ["none", "selective", "full"]
    clone = client.post(f"/v1/campaigns/{campaign['id']}:clone", json={}).json()
    assert clone["spec"]["space"] == campaign["spec"]["space"]
    (why,) = client.post("/v1/spaces", json=opened).json()["memory_needs"]
    assert why.startswith("recomputation: open, since no plan without it fits with 90 %; ")
