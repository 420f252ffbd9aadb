"""Campaigns that people change while they go on or after their end: details, more budget, plans put in by hand,
settings measured once more, the spec as written."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from meshtune.tuner.results.record import read_record
from meshtune.tuner.search.base import propose
from meshtune.tuner.service.service import Service

YAML = {"Content-Type": "application/yaml"}
MERGE = {"Content-Type": "application/merge-patch+json"}
CONFIRMED = {"confirm": 2, "confirm_rounds": 2}


def shown(client, id):
    return client.get(f"/v1/campaigns/{id}").json()


def trials(client, id, **query):
    """As each is by its own run: what its setting has grows with further runs."""
    listed = client.get(f"/v1/campaigns/{id}/trials", params={"view": "brief", **query}).json()["trials"]
    return [{name: value for name, value in trial.items() if name != "setting"} for trial in listed]


def kinds(client, id):
    return [event["kind"] for event in client.get(f"/v1/campaigns/{id}/events").json()["events"]]


def test_name_tags_notes_and_budget_are_changed_and_the_rest_stays(client, create):
    id = create()
    before = shown(client, id)
    assert (before["tags"], before["notes"], before["extendable"]) == ([], "", False)
    body = {
        "name": "for the paper",
        "tags": ["paper", "fig-3"],
        "notes": "second *try*\n",
        "budget": {"device_hours": 2},
    }
    response = client.patch(f"/v1/campaigns/{id}", content=json.dumps(body), headers=MERGE)
    assert response.status_code == 200, response.text
    after = response.json()
    assert (after["name"], after["tags"], after["notes"]) == ("for the paper", ["paper", "fig-3"], "second *try*\n")
    assert after["spec"]["budget"] == {**before["spec"]["budget"], "trials": 5, "device_hours": 2}
    changed = {name: after["spec"][name] for name in body}
    assert after["spec"] == before["spec"] | changed | {"tags": after["tags"], "notes": after["notes"]}
    assert client.patch(f"/v1/campaigns/{id}", json={"tags": None, "budget": {"trials": None}}).json()["tags"] == []
    assert shown(client, id)["spec"]["budget"] == after["spec"]["budget"] | {"trials": None}
    assert kinds(client, id) == ["campaign.created", "campaign.changed", "campaign.changed"]
    client.patch(f"/v1/campaigns/{id}", json={"budget": {"device_hours": 2}})
    assert len(kinds(client, id)) == 3, "the same once more is no change"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"names": "x"}, "/names"),
        ({"name": " "}, "/name"),
        ({"tags": ["A b"]}, "/tags/0"),
        ({"tags": ["a", "a"]}, "/tags"),
        ({"tags": [f"t{number}" for number in range(21)]}, "/tags"),
        ({"notes": "x" * 10_001}, "/notes"),
        ({"budget": {"trials": 0}}, "/budget/trials"),
        ({"budget": {"trials": None}}, "/budget"),
        ({"budget": None}, "/budget"),
        ({"seed": 2}, "/seed"),
    ],
)
def test_a_change_that_makes_no_sense_is_told_where(client, create, problem, body, pointer):
    id = create()
    told = problem(client.patch(f"/v1/campaigns/{id}", json=body), 422, "/problems/invalid-body")
    assert told["errors"][0]["pointer"] == pointer
    assert kinds(client, id) == ["campaign.created"]


def test_campaigns_are_listed_by_tag(client, create):
    one, other = create(), create()
    client.patch(f"/v1/campaigns/{one}", json={"tags": ["aurora", "x_1"]})
    client.patch(f"/v1/campaigns/{other}", json={"tags": ["aurora-2"]})
    listed = lambda tag: [each["id"] for each in client.get(f"/v1/campaigns?tag={tag}").json()["campaigns"]]  # noqa: E731
    assert (listed("aurora"), listed("aurora-2"), listed("x_1"), listed("x%1"), listed("auro")) == (
        [one], [other], [one], [], [],
    )  # fmt: skip


def test_who_may_not_move_a_campaign_may_not_change_it(app, client, create, problem, token):
    id = create()
    reader = token("reader", scopes=("read:all",))
    for method, path, body in (
        ("PATCH", "", {"notes": "x"}),
        ("POST", "/trials", {"plan": {"tp": 2}}),
        ("POST", "/trials/0:rerun", {}),
        ("POST", ":revalidate", {}),
    ):
        response = client.request(method, f"/v1/campaigns/{id}{path}", json=body, headers=reader)
        problem(response, 403, "/problems/scope-missing")


def test_a_campaign_that_runs_takes_a_new_budget_at_once(client, create, service, runner, drive):
    id = create(budget={"trials": 2})
    while len(trials(client, id)) < 2:
        service.tick(id)
    client.patch(f"/v1/campaigns/{id}", json={"budget": {"trials": 4}})
    drive(id)
    assert len(trials(client, id)) == 4
    assert "budget of 4 trials" in shown(client, id)["reason"]


def test_a_completed_campaign_goes_on_where_its_budget_is_raised_and_second_runs_stay(client, create, drive):
    id = create(budget={"trials": 3}, search="grid", **CONFIRMED)
    drive(id)
    first = trials(client, id)
    again = [each["number"] for each in first if each["origin"] == "confirmation"]
    assert (shown(client, id)["state"], shown(client, id)["extendable"], bool(again)) == ("completed", True, True)
    extended = client.patch(f"/v1/campaigns/{id}", json={"budget": {"trials": 12}}).json()
    assert (extended["state"], extended["search_ended"], extended["reason"]) == ("running", "", "")
    assert kinds(client, id)[-2:] == ["campaign.changed", "campaign.running"]
    drive(id)
    after = trials(client, id)
    assert after[: len(first)] == first
    assert sum(each["origin"] != "confirmation" for each in after) == 12
    assert shown(client, id)["state"] == "completed"
    # Among the best is one that was not there before: it runs side by side with the others, in rounds of their own.
    newer = [each for each in after[len(first) :] if each["origin"] == "confirmation"]
    assert newer
    assert {each["plan_key"] for each in newer} - {each["plan_key"] for each in first}


def test_a_search_that_had_found_enough_is_asked_to_use_what_it_is_given(client, create, drive, service):
    id = create(search="physics", budget={"trials": 50}, stop={"chance": 0.99})
    drive(id)
    ended = shown(client, id)
    assert ended["search_ended"].startswith("the probability that")
    done = ended["summary"]["done"]
    client.post(f"/v1/campaigns/{id}:resume", json={"budget": {"trials": done + 2}})
    drive(id)
    assert (shown(client, id)["summary"]["done"], shown(client, id)["spec"]["stop"]["chance"]) == (done + 2, 0)


def test_a_budget_that_is_used_up_extends_nothing_and_the_numbers_are_told(client, over, problem):
    response = client.patch(f"/v1/campaigns/{over}", json={"budget": {"trials": 4}})
    told = problem(response, 409, "/problems/illegal-move")
    assert "5 of 4 trials are planned; name more" in told["detail"]
    assert shown(client, over)["state"] == "completed"
    problem(client.post(f"/v1/campaigns/{over}:resume"), 409, "/problems/illegal-move")


def test_what_was_cancelled_stays_cancelled_and_may_have_notes(client, create, drive, problem):
    id = create()
    client.post(f"/v1/campaigns/{id}:cancel")
    drive(id)
    told = problem(client.patch(f"/v1/campaigns/{id}", json={"budget": {"trials": 9}}), 409, "/problems/illegal-move")
    assert "is cancelled, and only a completed one goes on" in told["detail"]
    assert client.patch(f"/v1/campaigns/{id}", json={"notes": "wrong cluster"}).json()["notes"] == "wrong cluster"


def test_an_extended_campaign_is_driven_by_another_process_too(client, create, drive, service):
    id = create(budget={"trials": 2})
    drive(id)
    client.patch(f"/v1/campaigns/{id}", json={"budget": {"trials": 3}})
    other = Service(service.store, service.home)
    while other.tick(id):
        pass
    other.close()
    assert (len(trials(client, id)), shown(client, id)["state"]) == (3, "completed")


PLAN = {"tp": 2, "pp": 1, "micro_batch_size": 2, "zero_stage": 1}


def enqueue(client, id, plan, **more):
    return client.post(f"/v1/campaigns/{id}/trials", json={"plan": plan}, **more)


def test_a_plan_put_in_by_hand_runs_after_the_baseline_and_before_the_search(client, create, drive):
    id = create()
    response = enqueue(client, id, PLAN)
    assert response.status_code == 201, response.text
    made = response.json()
    assert (made["origin"], made["state"], made["plan"]["dp"]) == ("enqueued", "planned", 2)
    assert response.headers["location"] == f"/v1/campaigns/{id}/trials/{made['number']}"
    drive(id)
    found = sorted(trials(client, id), key=lambda each: each["submitted_at"])
    assert [each["origin"] for each in found] == ["baseline", "enqueued", "search", "search", "search"]
    assert client.get(f"/v1/campaigns/{id}/best").json()["best"]


def test_plans_put_in_by_hand_run_no_more_at_once_than_the_spec_says(client, create, service, runner):
    id = create(parallel=2, budget={"trials": 20}, baseline=None)
    for size in (1, 2, 4):
        enqueue(client, id, {"tp": 1, "micro_batch_size": size}).raise_for_status()
    for size in (1, 2):
        enqueue(client, id, {"tp": 2, "micro_batch_size": size}).raise_for_status()
    runner.hold = True
    for _ in range(5):
        service.tick(id)
    states = [each["state"] for each in trials(client, id)]
    assert (len(runner.jobs), states.count("planned"), len(states)) == (2, 3, 5)


@pytest.mark.parametrize(
    ("plan", "status", "kind", "said"),
    [
        ({"tp": 3}, 422, "invalid-body", "tp"),
        ({"tp": 0}, 422, "invalid-body", "tp"),
        ({"tensor": 2}, 422, "invalid-body", "tensor"),
        ({"tp": 1, "pp": 1, "micro_batch_size": 1, "zero_stage": 0}, 422, "invalid-body", "is the baseline"),
    ],
)
def test_a_plan_that_cannot_run_is_refused_with_its_reasons(client, create, problem, plan, status, kind, said):
    id = create()
    told = problem(enqueue(client, id, plan), status, f"/problems/{kind}")
    assert said in told["detail"]
    assert told["errors"][0]["pointer"].startswith("/plan")
    assert trials(client, id) == []


def test_a_plan_is_put_in_once_and_only_where_the_budget_and_the_state_allow_it(client, create, drive, problem):
    id = create(budget={"trials": 2})
    client.post(f"/v1/campaigns/{id}:pause")
    key = {"Idempotency-Key": "one"}
    assert enqueue(client, id, PLAN, headers=key).content == enqueue(client, id, PLAN, headers=key).content
    problem(enqueue(client, id, PLAN), 409, "/problems/already-exists")
    enqueue(client, id, {**PLAN, "micro_batch_size": 1}).raise_for_status()
    told = problem(enqueue(client, id, {**PLAN, "micro_batch_size": 4}), 409, "/problems/budget-spent")
    assert "all 2 trials of" in told["detail"]
    drive(id)
    assert [each["state"] for each in trials(client, id)] == ["planned", "planned"]
    client.post(f"/v1/campaigns/{id}:resume")
    drive(id)
    assert [each["origin"] for each in trials(client, id)] == ["enqueued", "enqueued", "baseline"]
    problem(enqueue(client, id, {**PLAN, "micro_batch_size": 4}), 409, "/problems/illegal-move")


def test_the_search_goes_on_where_a_person_was_first_with_the_same_plan(client, create, service, monkeypatch):
    id = create(search="grid", baseline=None)
    plans = {each["plan_key"]: each["plan"] for each in _grid(client, create, service)}

    def slow(*given):
        found = propose(*given)
        if not trials(client, id):
            enqueue(client, id, plans[found.choices[0].plan.key]).raise_for_status()
        return found

    monkeypatch.setattr("meshtune.tuner.service.tick.propose", slow)
    for _ in range(50):
        service.tick(id)
    found = trials(client, id)
    assert (len(found), found[0]["origin"], shown(client, id)["state"]) == (5, "enqueued", "completed")


def _grid(client, create, service):
    other = create(search="grid", baseline=None)
    while service.tick(other):
        pass
    return trials(client, other)


def test_a_setting_measured_once_more_is_a_second_run_that_the_best_counts(client, create, drive):
    id = create()
    drive(id)
    best = client.get(f"/v1/campaigns/{id}/best").json()
    assert best["fastest_confirmed"] is None
    number = best["best"][0]["trial"]
    response = client.post(f"/v1/campaigns/{id}/trials/{number}:rerun", json={})
    assert (response.status_code, response.json()["origin"]) == (202, "confirmation")
    assert shown(client, id)["state"] == "running"
    drive(id)
    assert shown(client, id)["state"] == "completed"
    after = client.get(f"/v1/campaigns/{id}/best").json()
    assert after["fastest_confirmed"]["trial"] == number
    for _ in range(4):  # any number of them, also of settings in no common round
        client.post(f"/v1/campaigns/{id}/trials/0:rerun", json={}).raise_for_status()
        drive(id)
        client.post(f"/v1/campaigns/{id}/trials/{number}:rerun", json={}).raise_for_status()
        drive(id)
        client.get(f"/v1/campaigns/{id}/best").raise_for_status()
    assert shown(client, id)["summary"]["confirmations"] == 9


def test_the_recommended_setting_and_the_baseline_are_measured_side_by_side(client, create, drive, service):
    id = create(budget={"trials": 4}, **CONFIRMED)
    drive(id)
    before = trials(client, id)
    key = {"Idempotency-Key": "again"}
    made = client.post(f"/v1/campaigns/{id}:revalidate", json={}, headers=key)
    assert made.status_code == 202, made.text
    assert client.post(f"/v1/campaigns/{id}:revalidate", json={}, headers=key).content == made.content
    recommended = client.get(f"/v1/campaigns/{id}").json()["summary"]["recommended"]["plan_key"]
    assert {each["plan_key"] for each in made.json()["trials"]} == {recommended, before[0]["plan_key"]}
    assert len({service.trial(id, each["number"]).round for each in made.json()["trials"]}) == 1
    drive(id)
    after = trials(client, id)
    assert (len(after), after[: len(before)] == before) == (len(before) + len(made.json()["trials"]), True)


def test_where_the_baseline_is_kept_the_best_other_setting_is_measured_beside_it(client, create, drive):
    id = create(budget={"trials": 4}, confirm=0)
    drive(id)
    summary = shown(client, id)["summary"]
    assert summary["recommended_is_baseline"], "without second runs nothing else is recommended"
    made = client.post(f"/v1/campaigns/{id}:revalidate", json={}).json()["trials"]
    ranked = client.get(f"/v1/campaigns/{id}/best").json()["best"]
    best = [one["plan_key"] for one in ranked if one["origin"] == "search"]
    assert [one["plan_key"] for one in made] == [best[0], summary["recommended"]["plan_key"]]


def test_what_was_never_measured_is_not_measured_once_more(client, create, drive, problem):
    id = create()
    problem(client.post(f"/v1/campaigns/{id}:revalidate", json={}), 409, "/problems/illegal-move")
    problem(client.post(f"/v1/campaigns/{id}/trials/0:rerun", json={}), 404, "/problems/not-found")
    enqueue(client, id, {"tp": 4}).raise_for_status()
    drive(id)
    response = client.post(f"/v1/campaigns/{id}/trials/0:rerun", json={})
    assert "was not measured in its first run" in problem(response, 409, "/problems/illegal-move")["detail"]


WRITTEN = """# why: the demo of the paper
name: demo   # short
model: gpt-micro
cluster: local-cpu
global_batch_size: 16
runner: instant
search: random
budget: {trials: 1}
"""


def test_a_spec_comes_back_as_it_was_written(client, spec):
    id = client.post("/v1/campaigns", content=WRITTEN, headers=YAML).json()["id"]
    response = client.get(f"/v1/campaigns/{id}/spec.yaml")
    assert (response.text, response.headers["content-type"]) == (WRITTEN, "application/yaml")
    text = json.dumps(spec, indent=3)
    posted = client.post("/v1/campaigns", content=text, headers={"Content-Type": "application/json"}).json()["id"]
    assert client.get(f"/v1/campaigns/{posted}/spec.yaml").text == text
    clone = client.post(f"/v1/campaigns/{id}:clone", json={"seed": 2}).json()
    complete = client.get(f"/v1/campaigns/{clone['id']}/spec.yaml").text
    assert yaml.safe_load(complete) == clone["spec"]


def test_the_text_of_a_spec_goes_with_its_campaign(client, service, drive):
    id = client.post("/v1/campaigns", content=WRITTEN, headers=YAML).json()["id"]
    drive(id)
    client.delete(f"/v1/campaigns/{id}").raise_for_status()
    assert service.store.spec_text(id) == ""


def etag(response) -> str:
    assert response.status_code < 300, response.text
    return response.headers["etag"]


def test_a_change_that_was_decided_on_another_version_is_412_and_writes_nothing(client, create, drive, problem):
    id = create()
    url = f"/v1/campaigns/{id}"
    first = etag(client.get(url))
    assert first.startswith(f'W/"{shown(client, id)["version"]}.')
    drive(id)
    assert etag(client.get(url)) != first, "its trials are part of what is shown"
    second = etag(client.patch(url, json={"tags": ["mine"]}, headers={"If-Match": first}))
    assert second == etag(client.get(url))
    before = client.get(url).json()
    for act in (
        lambda headers: client.patch(url, json={"tags": ["theirs"]}, headers=headers),
        lambda headers: client.post(f"{url}:resume", json={"budget": {"trials": 50}}, headers=headers),
        lambda headers: client.post(f"{url}:revalidate", json={}, headers=headers),
        lambda headers: client.delete(url, headers=headers),
    ):
        told = problem(act({"If-Match": first}), 412, "/problems/version-conflict")
        assert before["version"] in told["detail"]
        assert first.partition('"')[2].partition(".")[0] in told["detail"]
    assert client.get(url).json() == before
    for fits in ("*", f'"other", {second}', f'"{before["version"]}"'):
        assert client.patch(url, json={"notes": ""}, headers={"If-Match": fits}).status_code == 200
    assert problem(client.patch(url, json={}, headers={"If-Match": "bare"}), 422, "/problems/malformed-request")
    assert etag(client.post(f"{url}:resume", json={"budget": {"trials": 50}}, headers={"If-Match": second})) != second


def test_of_changes_at_once_from_one_version_one_is_made(client, create):
    id = create()
    headers = {"If-Match": etag(client.get(f"/v1/campaigns/{id}"))}
    with ThreadPoolExecutor(6) as pool:
        change = lambda number: client.patch(f"/v1/campaigns/{id}", json={"tags": [f"t{number}"]}, headers=headers)  # noqa: E731
        statuses = sorted(answer.status_code for answer in pool.map(change, range(6)))
    assert statuses == [200, *[412] * 5]
    assert kinds(client, id).count("campaign.changed") == 1


def test_a_change_that_is_sent_again_with_its_key_is_the_same_change(client, create):
    id = create()
    headers = {"If-Match": etag(client.get(f"/v1/campaigns/{id}")), "Idempotency-Key": "one-change"}
    first, again = (client.patch(f"/v1/campaigns/{id}", json={"tags": ["a"]}, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code, again.content) == (200, 200, first.content)
    for version, status in ((headers["If-Match"], 412), (first.headers["etag"], 200)):
        sent = {"If-Match": version, "Idempotency-Key": "another-change"}
        answer = client.patch(f"/v1/campaigns/{id}", json={"tags": ["b"]}, headers=sent)
        assert answer.status_code == status, "the answer to a stale version is not kept"


def test_tags_and_notes_of_a_spec_are_the_campaigns_and_a_clone_has_the_present_ones(
    client, create, spec, service, problem
):
    id = create(tags=["paper", "h100"], notes="First *try*")
    view = shown(client, id)
    for shown_in in (view, view["spec"]):
        assert (shown_in["tags"], shown_in["notes"]) == (["paper", "h100"], "First *try*")
    assert [one["id"] for one in client.get("/v1/campaigns", params={"tag": "h100"}).json()["campaigns"]] == [id]
    client.patch(f"/v1/campaigns/{id}", json={"tags": ["paper"], "notes": "Second"}).raise_for_status()
    assert shown(client, id)["spec"]["tags"] == ["paper"]
    clone = client.post(f"/v1/campaigns/{id}:clone", json={"notes": "Third"}).json()
    assert (clone["tags"], clone["notes"]) == (["paper"], "Third")
    record = client.get(f"/v1/campaigns/{id}/record").json()["campaign"]
    assert (record["tags"], record["notes"]) == (["paper"], "Second")
    assert not {"tags", "notes"} & record["spec"].keys(), "a reader of before specs had them reads it still"
    document = json.dumps({"version": 1, "campaign": record, "trials": []})
    assert read_record(document).campaign == service.campaign(id)
    made = client.post("/v1/campaigns", json={**spec, "tags": ["A b"], "tag": "x"})
    told = problem(made, 422, "/problems/invalid-spec")
    assert {(one["pointer"], "tags" in one["detail"]) for one in told["errors"]} == {("/tags/0", False), ("/tag", True)}
    made = client.post("/v1/campaigns", json={**spec, "notes": "x" * 10_001})
    told = problem(made, 422, "/problems/invalid-spec")
    assert told["detail"] == "/notes: must have at most 10000 characters, not 10001"
