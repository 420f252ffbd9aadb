"""A campaign without a model over REST: created, measured by somebody else's loop, shown without a prediction."""

import json

import pytest

WORDS = ["train.py", "--size", "{micro_batch_size}", "--accumulate", "{grad_accum_steps}", "--stage", "{zero_stage}"]


@pytest.fixture
def nameless(spec):
    """A spec without a model, whose jobs somebody else runs."""
    given = {key: value for key, value in spec.items() if key != "model"}
    given |= {"workload": {"kind": "command", "command": WORDS}, "space": {"zero_stage": [0, 1]}, "search": "physics"}
    return given | {"cluster": {"preset": "local-cpu", "devices_per_node": 2}, "runner": "external", "confirm": 0}


def test_an_estimate_predicts_nothing_and_prices_the_runs(client, nameless):
    shown = client.post("/v1/estimates", json=nameless).json()
    assert (shown["fit"], shown["best"], shown["memory_needs"]) == (None, [], [])
    assert [one["path"] for one in shown["missing"]] == ["model"]
    assert shown["cost"]["first_runs"] == 5
    assert shown["space"]["legal"] == 8
    why = client.post("/v1/spaces/why", json={"spec": nameless, "plan": {"micro_batch_size": 2}}).json()
    assert (why["legal"], why["prediction"], why["best"], why["rank"]) == (True, None, None, None)


def test_what_needs_the_shapes_is_a_problem_of_the_spec(client, nameless, problem):
    told = problem(client.post("/v1/campaigns", json=nameless | {"workload": "torch"}), 422, "/problems/invalid-spec")
    assert "the workload needs its shapes" in json.dumps(told)


def test_a_campaign_without_a_model_is_measured_and_shown(client, nameless, service, problem):
    created = client.post("/v1/campaigns", json=nameless)
    assert created.status_code == 201, created.text
    id = created.json()["id"]
    assert (created.json()["model"], created.json()["spec"]["model"]) == ("unknown model", "unknown")
    for _ in range(30):
        service.tick(id)
        for each in client.post(f"/v1/campaigns/{id}:suggest", json={}).json()["suggestions"]:
            plan, body = each["plan"], {"verdict": "oom", "reason": "rank 0: no memory"}
            if plan["micro_batch_size"] < 8:
                seconds = 0.1 + 0.4 / plan["micro_batch_size"]
                body = {"step_times_s": [seconds] * 5, "peak_memory_bytes": [10**6 * plan["micro_batch_size"]] * 2}
            told = client.post(f"/v1/campaigns/{id}/trials/{each['trial']}:complete", json=body)
            assert told.status_code == 200, told.text
    shown = client.get(f"/v1/campaigns/{id}").json()
    assert shown["state"] == "completed"
    assert shown["summary"]["fastest_once"]["objective"]["unit"] == "samples/s/device"
    trials = client.get(f"/v1/campaigns/{id}/trials").json()["trials"]
    assert len(trials) == 5
    assert all(each["expectation"] is None for each in trials)
    best = client.get(f"/v1/campaigns/{id}/best").json()["best"][0]
    assert (best["tflops_per_device"], best["mfu"]) == (None, None)
    assert best["tokens_per_s"]["value"] == pytest.approx(16 / best["step_time_s"])
    analysis = client.get(f"/v1/campaigns/{id}/analysis").json()
    assert (analysis["basis"], analysis["unpredicted"]) == (None, "no times can be predicted: model is not known")
    told = problem(client.get(f"/v1/campaigns/{id}/projection"), 409, "/problems/unanswerable")
    assert "model" in told["detail"]
    clone = client.post(f"/v1/campaigns/{id}:clone", json={})
    assert clone.status_code == 201, clone.text
    assert clone.json()["spec"]["model"] == "unknown"
