"""Campaigns from YAML, rehearsed, started like another one, and deleted."""

import json

import pytest
import yaml

YAML = {"Content-Type": "application/yaml"}
DEEP = json.loads('{"model":' * 60 + "{}" + "}" * 60)


def test_a_pasted_spec_makes_the_same_campaign_as_its_json(client, spec):
    pasted = client.post("/v1/campaigns", content=yaml.safe_dump(spec), headers=YAML)
    posted = client.post("/v1/campaigns", json=spec)
    assert (pasted.status_code, posted.status_code) == (201, 201)
    assert pasted.json()["spec"] == posted.json()["spec"]


@pytest.mark.parametrize(("text", "said"), [("model: [1\ncluster: x", "line 2"), ("seed: 1\nseed: 2", "twice")])
def test_a_text_that_is_no_yaml_is_told_where(shared_client, problem, text, said):
    response = shared_client.post("/v1/spaces", content=text, headers=YAML)
    assert said in problem(response, 422, "/problems/malformed-body")["detail"]


def test_yaml_may_be_shorter_than_json(shared_client, spec):
    long = {"Content-Type": "application/json"}
    text = json.dumps(spec) + " " * 200_000
    assert shared_client.post("/v1/spaces", content=text, headers=long).status_code == 200
    assert shared_client.post("/v1/spaces", content=text, headers=YAML).status_code == 413


def test_a_dry_run_answers_with_the_quote_and_starts_nothing(client, spec):
    response = client.post("/v1/campaigns?dry_run=true", json=spec)
    assert response.status_code == 200
    assert response.json() == client.post("/v1/estimates", json=spec).json()
    assert "location" not in response.headers
    assert client.get("/v1/campaigns").json()["campaigns"] == []


def test_a_parameter_that_a_change_has_not_is_refused_and_nothing_is_done(client, spec, create, problem):
    id = create()
    for method, path in (
        ("POST", "/v1/campaigns?dryrun=true"),
        ("POST", f"/v1/campaigns/{id}:pause?dry_run=true"),
        ("DELETE", f"/v1/campaigns/{id}?dry_run=true"),
    ):
        told = problem(client.request(method, path, json=spec), 422, "/problems/malformed-request")
        name = path.partition("?")[2].partition("=")[0]
        assert told["errors"] == [{"pointer": f"/query/{name}", "detail": "is no parameter of this request"}]
    (left,) = client.get("/v1/campaigns").json()["campaigns"]
    assert (left["id"], left["state"]) == (id, "running")


def test_a_dry_run_is_refused_where_the_campaign_would_be(shared_client, spec, problem):
    wrong = spec | {"runner": {"kind": "slurm", "partition": "a b"}}
    told = problem(shared_client.post("/v1/campaigns?dry_run=true", json=wrong), 422, "/problems/invalid-spec")
    assert told == problem(shared_client.post("/v1/campaigns", json=wrong), 422, "/problems/invalid-spec")
    assert (
        told["errors"] == problem(shared_client.post("/v1/spaces", json=wrong), 422, "/problems/invalid-spec")["errors"]
    )
    assert [entry["pointer"] for entry in told["errors"]] == ["/runner/partition"]


def test_what_jobs_would_miss_is_refused_with_every_other_mistake(shared_client, spec, problem):
    workload = {"kind": "command", "command": ["python3", "nowhere.py", "--tp", "{tp}", "{grad_accum_steps}"]}
    wrong = spec | {"runner": {"kind": "local"}, "workload": workload, "budget": {"trials": 0}}
    for query in ("", "?dry_run=true"):
        told = problem(shared_client.post(f"/v1/campaigns{query}", json=wrong), 422, "/problems/invalid-spec")
        assert [entry["pointer"] for entry in told["errors"]] == ["/budget/trials", "/workload/command/1"]


def test_changes_are_laid_over_a_clones_spec_and_null_takes_away(client, create):
    id = create(space={"tp": [1, 2]})
    spec = client.get(f"/v1/campaigns/{id}").json()["spec"]
    response = client.post(f"/v1/campaigns/{id}:clone", json={})
    assert (response.status_code, response.json()["spec"], response.json()["state"]) == (201, spec, "running")
    assert response.headers["location"] == f"/v1/campaigns/{response.json()['id']}" != f"/v1/campaigns/{id}"
    changes = {"name": "other", "baseline": None, "space": {"tp": [1], "pp": [2]}, "budget": {"trials": 2}}
    clone = client.post(f"/v1/campaigns/{id}:clone", json=changes).json()["spec"]
    assert (clone["name"], clone["model"]) == ("other", spec["model"])
    assert "baseline" not in clone
    assert (clone["space"]["tp"], clone["space"]["pp"]) == ([1], [2])


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [({"seed": -1}, "/seed"), ({"sed": 1}, "/sed"), ({"model": {"layers": 0}}, "/model/layers"), ([], ""), (DEEP, "")],
)
def test_a_clone_is_checked_as_a_new_campaign(client, create, problem, changes, pointer):
    response = client.post(f"/v1/campaigns/{create()}:clone", json=changes)
    assert problem(response, 422, "/problems/invalid-spec")["errors"][0]["pointer"].startswith(pointer)
    problem(client.post("/v1/campaigns/none:clone", json={}), 404, "/problems/not-found")


def test_a_campaign_that_is_over_is_deleted_with_all_that_hangs_on_it(client, create, drive, service):
    id, other = create(budget={"trials": 2}), create(budget={"trials": 1})
    drive(id)
    drive(other)
    folder = service.home.campaign(id)
    assert any(folder.iterdir())
    assert client.delete(f"/v1/campaigns/{id}").status_code == 204
    assert not folder.exists()
    assert list(service.home.bin.iterdir()) == []
    for path in ("", "/trials", "/trials/0", "/events", "/best"):
        assert client.get(f"/v1/campaigns/{id}{path}").status_code == 404
    assert [each["id"] for each in client.get("/v1/campaigns").json()["campaigns"]] == [other]
    assert client.get(f"/v1/campaigns/{other}/trials/0").status_code == 200
    assert service.home.campaign(other).exists()
    assert client.delete(f"/v1/campaigns/{id}").status_code == 404


@pytest.mark.parametrize("state", ["running", "paused", "cancelling"])
def test_a_campaign_that_is_not_over_stays(client, create, problem, state):
    id = create()
    if state != "running":
        client.post(f"/v1/campaigns/{id}:{'pause' if state == 'paused' else 'cancel'}")
    told = problem(client.delete(f"/v1/campaigns/{id}"), 409, "/problems/illegal-move")
    assert f"is {state} and cannot become deleted" in told["detail"]
    assert client.get(f"/v1/campaigns/{id}").status_code == 200


def test_a_campaign_that_learnt_from_a_deleted_one_keeps_its_name_and_goes_on(client, create, drive):
    teacher = create(search="physics", budget={"trials": 2})
    drive(teacher)
    pupil = create(search="physics", seed=2, budget={"trials": 2})
    drive(pupil)
    assert [lesson["campaign_id"] for lesson in client.get(f"/v1/campaigns/{pupil}").json()["lessons"]] == [teacher]
    assert client.delete(f"/v1/campaigns/{teacher}").status_code == 204
    assert [lesson["campaign_id"] for lesson in client.get(f"/v1/campaigns/{pupil}").json()["lessons"]] == [teacher]
    later = create(search="physics", seed=3, budget={"trials": 2})
    drive(later)
    lessons = client.get(f"/v1/campaigns/{later}").json()["lessons"]
    assert teacher not in [lesson["campaign_id"] for lesson in lessons]
