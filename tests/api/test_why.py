"""Why not this plan, and what of other node counts, over HTTP."""

import pytest

pytestmark = pytest.mark.slow

SIMULATED = {
    "model": "llama3-8b",
    "cluster": {"preset": "dgx-h100", "nodes": 2},
    "global_batch_size": 64,
    "space": {"tp": [4, 8], "pp": [1, 2], "micro_batch_size": [1, 2], "zero_stage": [1], "recompute": ["none", "full"]},
    "workload": {"kind": "simulated", "framework": "megatron-deepspeed"},
    "runner": {"kind": "simulated", "noise": 0.01},
    "baseline": {"tp": 8, "pp": 1, "micro_batch_size": 1, "zero_stage": 1, "recompute": "full"},
    "trial": {"time_limit_s": 1e6},
    "budget": {"trials": 4},
}


@pytest.fixture
def simulated(create, drive):
    def build(**changes) -> str:
        id = create(**{**SIMULATED, **changes})
        drive(id)
        return id

    return build


def test_a_plan_that_breaks_rules_is_told_which(client, create):
    shown = client.get(f"/v1/campaigns/{create()}/space/why?tp=3&pp=2").json()
    assert shown["legal"] is False
    assert {"devices", "bounds"} & {each["constraint"] for each in shown["violations"]}
    assert all(each["message"] and each["reason"] for each in shown["violations"])
    assert shown["trial"] is None


def test_a_plan_that_was_tried_is_told_with_its_trial(client, create, drive):
    id = create(budget={"trials": 1})
    drive(id)
    shown = client.get(f"/v1/campaigns/{id}/space/why?tp=1&pp=1&micro_batch_size=1&zero_stage=0").json()
    assert (shown["legal"], shown["violations"], shown["trial"]) == (True, [], 0)
    assert shown["plan_key"] == client.get(f"/v1/campaigns/{id}/trials/0").json()["plan_key"]
    assert shown["prediction"]["plan_key"] == shown["plan_key"]
    assert 1 <= shown["rank"] <= shown["of"]


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("tp=0", "tp"),
        ("tp=x", "tp"),
        ("ttp=1", "ttp"),
        ("tp=1&tp=2", "tp"),
        ("mbs=0", "micro_batch_size"),
        ("mbs=1&mbs=2", "mbs"),
    ],
)
def test_a_query_that_is_no_plan_is_refused_by_name(client, create, problem, query, name):
    response = client.get(f"/v1/campaigns/{create()}/space/why?{query}")
    assert problem(response, 422, "/problems/malformed-request")["errors"][0]["pointer"] == f"/query/{name}"


def test_a_spec_and_a_campaign_explain_alike(client, create, spec):
    id = create()
    short = {"space": {"tp": 2, "mbs": [1, 2]}, "baseline": "tp2 mbs2"}
    for plan in ("tp2 pp2 mbs1 zero1", "tp=2,pp=2,zero=1", {"tp": 2, "pp": 2, "mbs": 1, "zero": 1}):
        named = client.post("/v1/spaces/why", json={"spec": spec | short, "plan": plan}).json()
        assert named["plan_key"].startswith("tp2 pp2 dp1 mbs1"), named
        assert named["plan"] == client.get(f"/v1/campaigns/{id}/space/why?tp=2&pp=2&mbs=1&zero=1").json()["plan"]
    asked = client.post("/v1/spaces/why", json={"spec": spec, "plan": {"tp": 2, "pp": 2}}).json()
    assert asked == client.get(f"/v1/campaigns/{id}/space/why?tp=2&pp=2").json() | {"basis": asked["basis"]}


def test_mistakes_of_a_question_lead_into_its_parts(client, spec, problem):
    def pointers(body):
        response = client.post("/v1/spaces/why", json=body)
        return [each["pointer"] for each in problem(response, 422, "/problems/invalid-spec")["errors"]]

    assert pointers({"spec": spec | {"seed": -1}, "plan": {}}) == ["/spec/seed"]
    assert pointers({"spec": spec, "plan": {"tp": 0}}) == ["/plan/tp"]
    assert pointers({"spec": spec, "plan": 3}) == ["/plan"]
    assert pointers({"spec": spec, "plan": "tp8 mbz2"}) == ["/plan/mbz2"]
    assert pointers({"spec": spec}) == [""]


def test_a_spec_is_projected_as_its_campaign_would_be_and_mistakes_are_named(client, spec, problem):
    spec |= {"cluster": {"preset": "dgx-h100", "nodes": 1}, "runner": "instant"}
    shown = client.post("/v1/projections", json={"spec": spec, "nodes": [1, 2], "plan": "tp=2"}).json()
    id = client.post("/v1/campaigns", json=spec).json()["id"]
    own = client.get(f"/v1/campaigns/{id}/projection?nodes=1&nodes=2&plan=tp%3D2").json()
    assert shown == own | {"basis": shown["basis"]}
    assert shown["rows"]
    default = client.post("/v1/projections", json={"spec": spec}).json()
    assert {row["nodes"] for row in default["rows"]} == {2**power for power in range(6)}
    for body, pointer in (
        ({"nodes": [1]}, "/spec"),
        ({"spec": spec | {"seed": -1}}, "/spec/seed"),
        ({"spec": spec, "plan": "tp8 mbz2"}, "/plan/mbz2"),
        ({"spec": spec, "plan": "dp=2"}, "/plan/dp"),
        ({"spec": spec, "nodes": [0]}, "/nodes"),
        ({"spec": spec, "nodes": list(range(1, 18))}, "/nodes"),
        ({"spec": spec, "node": [1]}, "/node"),
    ):
        told = problem(client.post("/v1/projections", json=body), 422, "/problems/invalid-spec")
        assert [each["pointer"] for each in told["errors"]] == [pointer]
    problem(client.post("/v1/projections", json={"spec": spec, "nodes": [10**12]}), 409, "/problems/unanswerable")


def test_a_projection_is_of_the_node_counts_asked_for_and_the_campaigns_own(client, simulated):
    shown = client.get(f"/v1/campaigns/{simulated()}/projection?nodes=4&nodes=1").json()
    assert shown["reference_nodes"] == 1
    assert sorted({row["nodes"] for row in shown["rows"]}) == [1, 2, 4]
    assert shown["basis"]["calibrated"] is True
    assert shown["measured_best"]["tokens_per_s"] > 0


def test_a_projection_of_one_layout_is_of_that_layout_alone(client, simulated, problem):
    id = simulated()
    shown = client.get(f"/v1/campaigns/{id}/projection?nodes=4&plan=tp=8,pp=1").json()
    plans = [row["best"]["plan"] for row in shown["rows"] if row["best"]]
    assert plans
    assert {(plan["tp"], plan["pp"]) for plan in plans} == {(8, 1)}
    told = problem(client.get(f"/v1/campaigns/{id}/projection?plan=tpp=8"), 422, "/problems/malformed-request")
    assert "tpp" in str(told)


def test_what_cannot_be_projected_says_which_facts_are_missing(client, create, problem):
    told = problem(client.get(f"/v1/campaigns/{create()}/projection"), 409, "/problems/unanswerable")
    assert "cluster.device" in told["detail"]
    problem(client.get(f"/v1/campaigns/{create()}/projection?nodes=0"), 422, "/problems/malformed-request")


def test_campaigns_at_two_node_counts_are_laid_side_by_side(client, simulated):
    two = simulated()
    four = simulated(cluster={"preset": "dgx-h100", "nodes": 4}, global_batch_size=128)
    shown = client.get("/v1/comparison", params={"campaign": [four, two]}).json()
    small, large = shown["campaigns"]
    assert [small["id"], large["id"]] == [two, four]
    assert (small["nodes"], large["devices"]) == (2, 32)
    assert small["efficiency"] == {"value": 1, "low": 1, "high": 1}
    assert (small["simulated"], large["efficiency_against"]) == (True, two)
    per_device = [each["recommended"]["tokens_per_s_per_device"]["value"] for each in (small, large)]
    assert large["efficiency"]["value"] == pytest.approx(per_device[1] / per_device[0])
    assert large["efficiency"]["low"] <= large["efficiency"]["value"] <= large["efficiency"]["high"]
    assert large["projected"]["tokens_per_s"]["value"] > small["projected"]["tokens_per_s"]["value"]
    # The projection passes through what it starts from.
    assert small["projected"]["tokens_per_s"] == small["recommended"]["tokens_per_s"]
    shares = [each["projected"]["tokens_per_s"]["value"] / each["devices"] for each in (small, large)]
    assert large["projected"]["efficiency"]["value"] == pytest.approx(shares[1] / shares[0])
    assert any("simulated" in note for note in shown["notes"])
    assert any("global batch 128, not 64" in note for note in shown["notes"])
    other = simulated(cluster={"preset": "dgx-a100", "nodes": 2})
    notes = client.get("/v1/comparison", params={"campaign": [two, other]}).json()["notes"]
    assert not any("was measured on" in note for note in notes)


def test_what_differs_or_was_not_measured_is_said(client, create, simulated):
    """Another model is no reference, whether it was measured or not."""
    other, measured = create(), simulated()
    shown = client.get("/v1/comparison", params={"campaign": [other, measured]}).json()
    assert [each["recommended"] is None for each in shown["campaigns"]] == [True, False]
    assert [each["efficiency"] for each in shown["campaigns"]] == [None, None]
    assert [each["simulated"] for each in shown["campaigns"]] == [False, True]
    assert shown["campaigns"][0]["projected"] is None
    assert any("model gpt-micro, not llama3-8b" in note for note in shown["notes"])
    assert any("nothing can be projected from" in note for note in shown["notes"])


def test_efficiency_is_of_one_model_and_each_model_has_its_own_reference(client, simulated):
    cluster = {"preset": "dgx-h100", "nodes": 4}
    llama = [simulated(), simulated(cluster=cluster, global_batch_size=128)]
    gpt = [simulated(model="llama2-13b"), simulated(model="llama2-13b", cluster=cluster, global_batch_size=128)]
    shown = client.get("/v1/comparison", params={"campaign": [*llama, *gpt]}).json()
    against = {each["id"]: each["efficiency_against"] for each in shown["campaigns"]}
    assert against == {llama[0]: llama[0], llama[1]: llama[0], gpt[0]: gpt[0], gpt[1]: gpt[0]}
    mixed = client.get("/v1/comparison", params={"campaign": [llama[0], gpt[1]]}).json()
    assert [each["efficiency"] for each in mixed["campaigns"]] == [None, None]


def test_the_comparison_has_the_numbers_of_each_campaign_by_the_same_words(client, simulated):
    ids = [simulated(budget={"trials": 6}, confirm=2), simulated()]
    shown = client.get("/v1/comparison", params={"campaign": ids}).json()
    for each in shown["campaigns"]:
        summary = client.get(f"/v1/campaigns/{each['id']}").json()["summary"]
        for name in ("fastest_once", "fastest_confirmed", "recommended"):
            one, other = each[name], summary[name]
            assert (one is None) == (other is None)
            if one is not None:
                assert one["trial"] == other["trial"]
                assert one["tokens_per_s_per_device"]["value"] == pytest.approx(other["objective"]["value"])
        values = [point["value"] for point in each["progress"]]
        assert values == sorted(values)
        assert values[-1] == pytest.approx(summary["fastest_once"]["objective"]["value"])
        assert each["progress"][-1]["done"] == summary["done"] - summary["confirmations"]
        assert each["progress"][-1]["device_hours"] <= summary["device_hours"]


def test_a_comparison_is_of_two_to_twenty_campaigns_that_are_there(client, create, problem):
    id = create()
    problem(client.get(f"/v1/comparison?campaign={id}"), 422, "/problems/malformed-request")
    problem(client.get("/v1/comparison", params={"campaign": [id] * 21}), 422, "/problems/malformed-request")
    problem(client.get(f"/v1/comparison?campaign={id}&campaign=none"), 404, "/problems/not-found")
