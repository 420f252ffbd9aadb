"""Knobs over HTTP: in specs, spaces, plans, questions and filters."""

from __future__ import annotations

import json
import time

import pytest

from meshtune.search_spaces.presets import knob_catalogs
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.campaign.trial import Choice, Origin

KNOBS = {
    "threads": {"values": [1, 2, "auto"], "env": "MY_THREADS", "meaning": "Threads of <a> rank."},
    "share": {"values": [0.5, 1.0], "env": "SHARE", "when": "threads != auto", "numerics": "changes"},
    "quick": {"values": [False, True], "env": "QUICK", "when": "pp > 1"},
}
SPACE = {"tp": [1, 2], "pp": [1, 2], "micro_batch_size": [1], "zero_stage": [0]}


@pytest.fixture
def knobs(create):
    """The id of a campaign with knobs."""
    return create(knobs=KNOBS, space=SPACE, budget={"trials": 30})


@pytest.fixture
def tried(client, service, knobs, drive):
    """The plans of a campaign that has tried all, by the number of their trials, and how to ask for some of them."""
    space = space_of(service.campaign(knobs).spec)
    every = [space.plan(int(index), codes) for index, codes in zip(*space.listing(30), strict=True)]
    service.store.plan_trials(knobs, [Choice(plan) for plan in every], Origin.SEARCH, now=time.time())
    drive(knobs)
    trials = client.get(f"/v1/campaigns/{knobs}/trials").json()["trials"]

    def numbers(*asked: str) -> list[int]:
        answer = client.get(f"/v1/campaigns/{knobs}/trials", params={"knob": asked})
        assert answer.status_code == 200, answer.text
        return [trial["number"] for trial in answer.json()["trials"]]

    return {trial["number"]: trial["plan"] for trial in trials}, numbers


def test_plans_have_the_values_of_their_active_knobs_in_every_view(client, knobs, tried):
    plans, _ = tried
    assert len(plans) == 30
    for plan in plans.values():
        expected = {"threads"} | ({"share"} if plan["knobs"]["threads"] != "auto" else set())
        assert set(plan["knobs"]) == expected | ({"quick"} if plan["pp"] > 1 else set())
    brief = client.get(f"/v1/campaigns/{knobs}/trials?view=brief").json()["trials"]
    assert {trial["number"]: trial["plan"] for trial in brief} == plans
    assert client.get(f"/v1/campaigns/{knobs}/trials/3").json()["plan"] == plans[3]
    best = client.get(f"/v1/campaigns/{knobs}/best").json()["best"][0]
    assert best["plan"] == plans[best["trial"]]
    assert all(f" {name}=" in best["plan_key"] for name in best["plan"]["knobs"])


def test_trials_are_filtered_by_knobs_any_value_of_one_name_and_all_names(tried):
    plans, numbers = tried

    def having(fits):
        found = [number for number, plan in plans.items() if fits(plan["knobs"])]
        assert found, "nothing to find"
        return found

    assert numbers("threads:auto") == having(lambda knobs: knobs["threads"] == "auto")
    assert numbers("threads:auto", "threads:1") == having(lambda knobs: knobs["threads"] in ("auto", 1))
    assert numbers("share:1") == numbers("share:1.0") == having(lambda knobs: knobs.get("share") == 1.0)
    both = having(lambda knobs: knobs["threads"] == 1 and knobs.get("share") == 0.5)
    assert numbers("threads:1", "share:0.5") == both
    assert numbers("quick:true", "quick:false") == having(lambda knobs: "quick" in knobs)
    assert numbers("quick:") == having(lambda knobs: "quick" not in knobs)
    assert numbers("quick:1") == numbers("threads:Auto") == numbers("thread:1") == []


def test_a_page_of_filtered_trials_goes_on_with_its_filter_alone(client, knobs, tried, problem):
    _, numbers = tried
    asked = {"knob": ["threads:1", "threads:2"], "sort": "-step_time_s", "page_size": 2}
    found, token = [], None
    while token is not None or not found:
        page = client.get(f"/v1/campaigns/{knobs}/trials", params=asked | ({"page_token": token} if token else {}))
        first, token = token or page.json()["next_page_token"], page.json()["next_page_token"]
        found += [trial["number"] for trial in page.json()["trials"]]
    assert sorted(found) == numbers("threads:1", "threads:2")
    other = client.get(f"/v1/campaigns/{knobs}/trials", params={**asked, "knob": "threads:1", "page_token": first})
    told = problem(other, 422, "/problems/malformed-request")
    assert told["errors"][0]["pointer"] == "/query/page_token"


@pytest.mark.parametrize("text", ["threads", "", ":1", "Threads:1", "threads:a b", "threads=1", "threads:1=2"])
def test_a_filter_that_is_no_knob_is_refused_by_its_parameter(client, create, problem, text):
    id = create()
    for path in ("trials", "space/why"):
        response = client.get(f"/v1/campaigns/{id}/{path}", params={"knob": text})
        told = problem(response, 422, "/problems/malformed-request")
        assert told["errors"][0]["pointer"].startswith("/query/knob"), told


def test_a_space_tells_its_knobs_its_layouts_and_its_plans(client, knobs, spec):
    space = client.get(f"/v1/campaigns/{knobs}/space").json()
    asked = client.post("/v1/spaces", json=spec | {"knobs": KNOBS, "space": SPACE}).json()
    assert asked == space | {"limits": asked["limits"]}
    # Of tp 1 and 2 with one stage and with two; 2 threads have a share each, and two stages may be quick.
    assert (space["legal"], space["plans"]) == (4, 2 * 5 + 2 * 10)
    threads, share, quick = space["knobs"]
    assert (threads["name"], threads["values"], threads["kind"]) == ("threads", [1, 2, "auto"], "categorical")
    assert (threads["way"], threads["told"], threads["meaning"]) == ("env", "MY_THREADS", "Threads of <a> rank.")
    assert (share["default"], share["when"], share["numerics"]) == (0.5, "threads != auto", "changes")
    assert quick["values"] == [False, True]
    plain = client.post("/v1/spaces", json=spec).json()
    assert (plain["knobs"], plain["plans"]) == ([], plain["legal"])


def test_the_spec_of_a_campaign_with_knobs_can_be_posted_again(client, knobs):
    shown = client.get(f"/v1/campaigns/{knobs}").json()["spec"]
    again = client.post("/v1/campaigns", json=shown)
    assert again.status_code == 201, again.text
    assert again.json()["spec"] == shown
    assert [knob["name"] for knob in shown["knobs"]] == list(KNOBS)


@pytest.mark.parametrize("kind", ["application/yaml", "application/json"])
def test_off_is_a_word_in_yaml_and_false_a_truth_value(client, spec, kind):
    asked = {
        "fp8": {"values": ["off", "on", False], "env": "FP8"},
        "size": {"values": [1], "env": "S", "when": "fp8 != off"},
    }
    body = json.dumps(spec | {"knobs": asked})
    if kind == "application/yaml":
        body = body.replace('"off"', "off").replace('"on"', "on")
    space = client.post("/v1/spaces", content=body, headers={"content-type": kind}).json()
    assert space["knobs"][0]["values"] == ["off", "on", False]


def why(client, id: str, *knobs: str, **fields: int) -> dict:
    asked = {"tp": 1, "pp": 1, "micro_batch_size": 1, "zero_stage": 0, **fields}
    answer = client.get(f"/v1/campaigns/{id}/space/why", params={**asked, "knob": knobs})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_why_not_takes_values_of_knobs_and_completes_the_others(client, knobs, spec):
    shown = why(client, knobs, "threads:2", "share:1")
    assert (shown["legal"], shown["plan"]["knobs"]) == (True, {"share": 1.0, "threads": 2})
    assert why(client, knobs, "quick:true", pp=2)["plan"]["knobs"] == {"quick": True, "share": 0.5, "threads": 1}
    plan = {"tp": 1, "pp": 1, "micro_batch_size": 1, "zero_stage": 0, "knobs": {"threads": 2, "share": 1.0}}
    body = {"spec": spec | {"knobs": KNOBS, "space": SPACE}, "plan": plan}
    told = client.post("/v1/spaces/why", json=body).json()
    assert (told["plan"], told["legal"]) == (shown["plan"], True)


@pytest.mark.parametrize(
    ("knob", "message"),
    [
        ("threads:3", "threads(3) is not among 1, 2"),
        ("quick:true", "quick(true) is inactive: it needs pp > 1"),
        ("thread:1", "thread is no knob of the spec; did you mean 'threads'?"),
    ],
)
def test_why_not_tells_what_is_wrong_with_a_knob(client, knobs, knob, message):
    shown = why(client, knobs, knob)
    assert shown["legal"] is False
    told = [each["message"] for each in shown["violations"] if each["constraint"] == "knobs"]
    assert any(message in each for each in told), told


def test_why_not_knows_the_trial_of_a_plan_with_knobs(client, knobs, tried):
    plans, _ = tried
    number, plan = next((number, plan) for number, plan in plans.items() if plan["knobs"]["threads"] == "auto")
    texts = [f"{name}:{str(value).lower()}" for name, value in plan["knobs"].items()]
    fields = {name: plan[name] for name in ("tp", "pp", "zero_stage", "recompute", "schedule", "sequence_parallel")}
    assert why(client, knobs, *texts, **fields)["trial"] == number


def test_mistakes_in_knobs_are_told_all_at_once_each_with_its_path(client, spec, problem):
    knobs = {
        "fp8": {"values": ["off", "on"], "env": "FP8", "when": "recompute = full"},
        "tp": {"values": [1, 2], "env": "TP"},
        "depth": {"values": [1, 2], "env": "DEPTH", "default": 3, "colour": "red"},
        "later": {"values": [1, 2], "env": "LATER", "when": "never == 1"},
    }
    told = problem(client.post("/v1/campaigns", json=spec | {"knobs": knobs}), 422, "/problems/invalid-spec")
    pointers = {each["pointer"] for each in told["errors"]}
    assert {"/knobs/fp8/when", "/knobs/tp", "/knobs/later/when"} <= pointers
    assert any(pointer.startswith("/knobs/depth") for pointer in pointers)


def test_the_catalogs_list_every_knob_with_its_source(shared_client):
    catalogs = {each["name"]: each["knobs"] for each in shared_client.get("/v1/catalog/knobs").json()["catalogs"]}
    assert {name: [knob["name"] for knob in knobs] for name, knobs in catalogs.items()} == {
        name: list(entries) for name, entries in knob_catalogs().items()
    }
    for knob in (knob for knobs in catalogs.values() for knob in knobs):
        assert knob["default"] in knob["values"], knob["name"]
        assert all(knob[key] for key in ("source", "meaning", "told", "way")), knob["name"]
