"""Every route answers what the store holds, moves campaigns, and refuses illegal moves."""

from dataclasses import replace
from datetime import datetime

import pytest

from meshtune.runners.documents import plain
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.views import best_view
from meshtune.tuner.specs.read import read_spec


def test_a_created_campaign_is_at_its_location(client, spec):
    response = client.post("/v1/campaigns", json=spec)
    created = response.json()
    assert (response.status_code, response.headers["location"]) == (201, f"/v1/campaigns/{created['id']}")
    assert created["id"].startswith("demo-")
    assert (created["state"], created["legal"]) == ("running", 52)
    assert client.get(response.headers["location"]).json() == created


def test_campaigns_are_listed_newest_first_page_by_page(client, create):
    ids = [create() for _ in range(5)]
    seen, token, pages = [], None, 0
    while pages == 0 or token:
        page = client.get("/v1/campaigns", params={"page_size": 2, **({"page_token": token} if token else {})}).json()
        seen += [campaign["id"] for campaign in page["campaigns"]]
        token, pages = page["next_page_token"], pages + 1
    assert sorted(seen) == sorted(ids)
    assert pages == 3
    times = [client.get(f"/v1/campaigns/{id}").json()["created_at"] for id in seen]
    assert times == sorted(times, reverse=True)
    assert client.get("/v1/campaigns", params={"page_size": 5}).json()["next_page_token"] is None


def test_campaigns_are_filtered_by_states(client, create):
    running, paused, cancelling = create(), create(), create()
    client.post(f"/v1/campaigns/{paused}:pause")
    client.post(f"/v1/campaigns/{cancelling}:cancel")

    def ids(*states: str) -> set[str]:
        found = client.get("/v1/campaigns", params={"state": list(states)}).json()
        return {campaign["id"] for campaign in found["campaigns"]}

    assert ids("running") == {running}
    assert ids("paused", "cancelling") == {paused, cancelling}
    assert ids("failed") == set()


def test_a_finished_campaign_shows_its_trials_by_verdict(client, create, drive):
    id = create(budget={"trials": 40})
    drive(id)
    campaign = client.get(f"/v1/campaigns/{id}").json()
    assert campaign["state"] == "completed"
    assert campaign["reason"]
    assert set(campaign["trials"]) == {"ok", "oom", "pruned"}
    assert sum(campaign["trials"].values()) == 40
    listed = client.get("/v1/campaigns").json()["campaigns"][0]
    assert listed["trials"] == campaign["trials"]


def test_trials_come_in_order_page_by_page(client, create, drive):
    id = create()
    drive(id)
    first = client.get(f"/v1/campaigns/{id}/trials", params={"page_size": 3}).json()
    assert [trial["number"] for trial in first["trials"]] == [0, 1, 2]
    assert isinstance(first["next_page_token"], str)
    rest = client.get(f"/v1/campaigns/{id}/trials", params={"page_token": first["next_page_token"]}).json()
    assert [trial["number"] for trial in rest["trials"]] == [3, 4]
    assert rest["next_page_token"] is None


def test_a_trial_shows_its_plan_its_measurement_and_its_attempts(client, create, drive):
    id = create()
    drive(id)
    trial = client.get(f"/v1/campaigns/{id}/trials/0").json()
    assert trial == client.get(f"/v1/campaigns/{id}/trials").json()["trials"][0]
    assert (trial["origin"], trial["state"], trial["verdict"]) == ("baseline", "done", "ok")
    assert (trial["plan"]["dp"], trial["plan"]["schedule"]) == (4, "1f1b")
    measured = trial["measurement"]
    assert len(measured["step_times_s"]) == 8
    assert measured["step_time_low_s"] <= measured["step_time_s"] <= measured["step_time_high_s"]
    assert measured["tokens_per_s_per_device"] == pytest.approx(2048 / measured["step_time_s"] / 4)
    (attempt,) = trial["attempts"]
    assert attempt["job_id"] == attempt["job_name"] == f"{id}-t0000-a1"


def test_a_failed_trial_says_why_and_has_no_measurement(client, create, drive):
    id = create(space={"tp": [4], "pp": [1]}, budget={"trials": 3})
    drive(id)
    trial = client.get(f"/v1/campaigns/{id}/trials/1").json()
    assert (trial["verdict"], trial["measurement"]) == ("oom", None)
    told = {"reason": "rank 0 is out of memory", "failed_rank": 0, "phase": "forward"}
    assert told.items() <= trial["attempts"][0].items()


def test_the_best_settings_are_those_of_the_command_line(client, create, drive, service):
    id = create(budget={"trials": 12}, confirm=1, confirm_rounds=2)
    drive(id)
    best = client.get(f"/v1/campaigns/{id}/best", params={"top": 3}).json()
    campaign, trials = service.store.campaign(id), service.store.trials(id)
    assert best == plain(best_view(campaign, rank(campaign, trials), 3))
    assert [entry["rank"] for entry in best["best"]] == [1, 2, 3]
    assert best["recommendation"]["better_than_baseline"] is True


def test_a_paused_campaign_goes_on_after_resume(client, create, drive):
    id = create()
    paused = client.post(f"/v1/campaigns/{id}:pause")
    assert (paused.status_code, paused.json()["state"]) == (200, "paused")
    drive(id)
    assert client.get(f"/v1/campaigns/{id}/trials").json()["trials"] == []
    resumed = client.post(f"/v1/campaigns/{id}:resume")
    assert (resumed.status_code, resumed.json()["state"]) == (200, "running")
    drive(id)
    assert client.get(f"/v1/campaigns/{id}").json()["state"] == "completed"


def test_a_cancelled_campaign_keeps_what_was_measured(client, create, drive, service):
    id = create(budget={"trials": 30})
    while not service.store.trials(id) or not service.store.trials(id)[0].state.final:
        service.tick(id)
    cancelling = client.post(f"/v1/campaigns/{id}:cancel")
    assert (cancelling.status_code, cancelling.json()["state"]) == (202, "cancelling")
    drive(id)
    assert client.get(f"/v1/campaigns/{id}").json()["state"] == "cancelled"
    assert client.get(f"/v1/campaigns/{id}/trials/0").json()["verdict"] == "ok"


@pytest.mark.parametrize("before", ["pause", "cancel", "drive"])
def test_an_illegal_move_is_a_conflict_that_names_both_states(client, create, drive, problem, before):
    id = create()
    drive(id) if before == "drive" else client.post(f"/v1/campaigns/{id}:{before}")
    state = client.get(f"/v1/campaigns/{id}").json()["state"]
    for move in ("pause",) if before == "pause" else ("pause", "resume", "cancel"):
        refused = problem(client.post(f"/v1/campaigns/{id}:{move}"), 409, "/problems/illegal-move")
        assert state in refused["detail"]
        assert client.get(f"/v1/campaigns/{id}").json()["state"] == state


def test_the_space_says_what_rejects_the_others(client, create, spec):
    space = client.get(f"/v1/campaigns/{create()}/space").json()
    assert space["combinations"] == 180
    assert space["legal"] == 52
    assert space["rejected"]["devices"] > 0
    assert space["dimensions"]["tp"] == [1, 2, 4]
    posted = client.post("/v1/spaces", json=spec).json()
    assert posted["limits"]["time_limit_s"] > 0
    assert posted | {"limits": None} == space


def test_events_are_told_in_order_and_from_any_point(client, create, drive):
    id = create()
    create()
    drive(id)
    events = client.get(f"/v1/campaigns/{id}/events").json()["events"]
    assert [event["kind"] for event in events][:3] == ["campaign.created", "trial.planned", "trial.submitted"]
    assert events[-1]["kind"] == "campaign.completed"
    assert {event["campaign_id"] for event in events} == {id}
    ids = [event["id"] for event in events]
    assert ids == sorted(set(ids))
    later = client.get(f"/v1/campaigns/{id}/events", params={"after": ids[2], "page_size": 2}).json()
    assert later == {"events": events[3:5], "next_page_token": str(ids[4])}
    rest = client.get(f"/v1/campaigns/{id}/events", params={"page_token": later["next_page_token"]}).json()
    assert rest == {"events": events[5:], "next_page_token": None}
    assert client.get(f"/v1/campaigns/{id}/events", params={"after": 2**63 - 1}).json()["events"] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"global_batch_size": "free"},
        {"baseline": None},
        {"workload": {"kind": "torch", "dtype": "bfloat16", "measuring": {"min_steps": 3}}, "search": "grid"},
        {
            "cluster": {"preset": "local-cpu", "device": {"memory_bytes": 10**9}},
            "runner": {"kind": "local", "slots": 9},
        },
        {"objective": "step_time", "budget": {"wall_time_s": 5}, "trial": {"attempts": 1}},
    ],
    ids=str,
)
def test_the_spec_that_a_campaign_shows_can_be_posted_again(client, spec, service, changes):
    given = spec | changes
    shown = client.post("/v1/campaigns", json=given).json()["spec"]
    again = client.post("/v1/campaigns", json=shown)
    assert again.status_code == 201, again.text
    assert again.json()["spec"] == shown
    known = read_spec(given, service.home)[0]
    assert replace(read_spec(shown, service.home)[0], trial=known.trial, budget=known.budget) == known


def test_a_brief_list_is_a_tenth_of_a_full_one_says_the_same_and_is_kept_as_it_is(client, create, drive):
    for number in range(10):
        drive(create(name=f"one of ten {number}", tags=["paper"]))
    full, brief = (client.get("/v1/campaigns", params={"view": view}) for view in ("full", "brief"))
    assert len(full.content) > 10 * 3000
    assert len(brief.content) < 10 * 700
    assert len(brief.content) * 5 < len(full.content)
    for whole, line in zip(full.json()["campaigns"], brief.json()["campaigns"], strict=True):
        summary = whole["summary"]
        best = summary["recommended"]
        assert line == {name: whole[name] for name in line if name in whole} | {
            "done": summary["done"],
            "planned": summary["budget"]["trials"],
            "objective": best["objective"]["value"],
            "unit": best["objective"]["unit"],
            "gain": best["gain_over_baseline"]["value"],
        }
    known = {"If-None-Match": brief.headers["etag"]}
    assert client.get("/v1/campaigns", params={"view": "brief"}, headers=known).status_code == 304
    page = client.get("/v1/campaigns", params={"view": "brief", "page_size": 4}).json()
    rest = client.get("/v1/campaigns", params={"page_token": page["next_page_token"]}).json()
    assert len(page["campaigns"]) + len(rest["campaigns"]) == 10, "a token is good for both views"


def test_campaigns_are_filtered_by_times_and_sizes(client, create, problem):
    ids = [create(cluster={"preset": "local-cpu", "devices_per_node": devices}) for devices in (2, 4, 8)]

    def found(**query):
        return {one["id"] for one in client.get("/v1/campaigns", params={"view": "brief", **query}).json()["campaigns"]}

    first, second = (datetime.fromisoformat(client.get(f"/v1/campaigns/{id}").json()["created_at"]) for id in ids[:2])
    between = (first + (second - first) / 2).isoformat()
    assert found(created_after=between) == {*ids[1:]}
    assert found(created_before=between) == {ids[0]}
    assert found(updated_after="2020-01-01", updated_before="2021-01-01T00:00:00+02:00") == set()
    assert found(created_after="2020-01-01T00:00:00Z") == {*ids}
    assert found(min_devices=4) == {*ids[1:]}
    assert found(min_devices=3, max_devices=4) == {ids[1]}
    for query, pointer, words in (
        (
            {"created_after": "yesterday"},
            "/query/created_after",
            "RFC 3339 or a date, its + sent as %2B, not 'yesterday'",
        ),
        ({"updated_before": "1700000000"}, "/query/updated_before", "'1700000000'"),
        ({"created_after": "2022-01-01", "created_before": "2021-01-01"}, "/query/created_after", "created_before"),
        ({"min_devices": 8, "max_devices": 4}, "/query/min_devices", "must be at most max_devices, which is 4, not 8"),
    ):
        [mistake] = problem(client.get("/v1/campaigns", params=query), 422, "/problems/malformed-request")["errors"]
        assert mistake["pointer"] == pointer
        assert words in mistake["detail"]


def test_trials_are_sorted_and_filtered_by_what_was_measured(client, create, drive, problem):
    id = create(budget={"trials": 8})
    drive(id)
    url = f"/v1/campaigns/{id}/trials"

    def found(**query):
        return [one["number"] for one in client.get(url, params={"view": "brief", **query}).json()["trials"]]

    every = client.get(url, params={"view": "brief", "sort": "-tflops_per_device"}).json()["trials"]
    assert [one["number"] for one in every] == found(sort="-tokens_per_s_per_device"), "of one model"
    least = every[3]["tokens_per_s_per_device"]
    fast = [one["number"] for one in every if one["tokens_per_s_per_device"] >= least]
    assert found(min_tokens_per_s_per_device=least, sort="-tflops_per_device") == fast
    assert len(fast) < len(every)
    assert found(max_step_time_s=0) == found(min_mfu=2) == found(finished_before="2020-01-01") == []
    assert len(found(finished_after="2020-01-01", min_number=1)) == 7
    for query in ({"min_mfu": "nan"}, {"min_step_time_s": 2, "max_step_time_s": 1}):
        told = problem(client.get(url, params=query), 422, "/problems/malformed-request")
        assert told["errors"][0]["pointer"] == f"/query/{next(iter(query))}"
