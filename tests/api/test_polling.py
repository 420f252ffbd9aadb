"""Answers that pages poll hold until something changes, are computed once for each version, and go only to those who
may read them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest

import meshtune
from meshtune.api.campaign_cache import ENTRY_BYTES, CampaignCache
from meshtune.tuner.access.tokens import Scope

pytestmark = pytest.mark.slow

POLLED = ["", "/{id}", "/{id}/trials", "/{id}/trials?view=brief", "/{id}/best", "/{id}/pareto", "/{id}/analysis"]


@pytest.mark.parametrize("path", POLLED)
def test_who_has_an_answer_is_told_that_it_holds(client, create, drive, path):
    id = create()
    drive(id)
    url = "/v1/campaigns" + path.format(id=id)
    first = client.get(url)
    assert first.headers["etag"].startswith('W/"')
    assert "private" in first.headers["cache-control"]
    for _ in range(2):  # made, and kept
        again = client.get(url, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        assert client.get(url, headers={"If-None-Match": 'W/"other"'}).json() == first.json()


@pytest.mark.parametrize("path", ["", "/{id}/trials"])
def test_a_list_that_is_kept_takes_few_functions_of_ours(client, over, path):
    """Middleware, dependencies and the store's query for the version; comprehensions count as functions, too."""
    ours, called = str(Path(meshtune.__file__).parent), set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            called.add(frame.f_code)

    url = "/v1/campaigns" + path.format(id=over)
    etag = client.get(url).headers["etag"]
    threading.setprofile(note)  # the application runs in threads of its own
    try:
        assert client.get(url).headers["etag"] == etag
    finally:
        threading.setprofile(None)
    assert 20 < len(called) <= 43, sorted(code.co_qualname for code in called)


@pytest.mark.parametrize("path", POLLED)
def test_a_change_shows_at_once(client, create, service, path):
    id = create()
    url = "/v1/campaigns" + path.format(id=id)
    before = client.get(url)
    client.get(url)
    while not service.store.trials(id) or not service.store.trials(id)[0].state.final:
        service.tick(id)
    after = client.get(url, headers={"If-None-Match": before.headers["etag"]})
    assert after.status_code == 200
    assert after.json() != before.json()


def test_an_answer_that_is_kept_is_for_those_who_may_read_and_goes_with_its_campaign(client, create, drive, token):
    id, other = create(), create()
    drive(id)
    launcher = token("launcher", Scope.LAUNCH)
    urls = ["/v1/campaigns" + path.format(id=id) for path in POLLED]
    for url in urls:
        assert client.get(url).status_code == 200
        assert client.get(url, headers=launcher).status_code == 403
        assert client.get(url, headers={"Authorization": ""}).status_code == 401
    assert client.delete(f"/v1/campaigns/{id}").status_code == 204
    assert [client.get(url).status_code for url in urls[1:]] == [404] * len(urls[1:])
    assert [campaign["id"] for campaign in client.get("/v1/campaigns").json()["campaigns"]] == [other]


def test_an_answer_comes_packed_to_who_takes_it_and_plain_to_who_does_not(client, create, drive):
    id = create()
    drive(id)
    url = f"/v1/campaigns/{id}/trials?view=brief"
    packed = client.get(url, headers={"Accept-Encoding": "gzip"})
    plain = client.get(url, headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.json() == plain.json()
    assert packed.headers["etag"] == plain.headers["etag"]


def test_a_campaign_shows_what_became_of_its_trials(client, create, drive):
    id = create(budget={"trials": 40})
    drive(id)
    campaign = client.get(f"/v1/campaigns/{id}").json()
    best = client.get(f"/v1/campaigns/{id}/best").json()
    summary = campaign["summary"]
    assert (summary["done"], summary["in_flight"]) == (40, 0)
    assert summary["failures"] == {"oom": campaign["trials"]["oom"]}
    assert summary["failed"] == campaign["trials"]["oom"]
    assert summary["budget"]["trials"] == 40
    assert summary["budget"] == campaign["spec"]["budget"]
    chosen = best["recommendation"]["setting"]
    assert {name: chosen[name] for name in summary["recommended"]} == summary["recommended"]
    assert summary["baseline"]["trial"] == 0
    assert (campaign["nodes"], campaign["devices"], campaign["cluster"]) == (1, 4, "local-cpu")
    assert (campaign["model"], campaign["owner"]) == ("gpt-micro", "tester")
    assert client.get("/v1/campaigns").json()["campaigns"] == [campaign]
    assert client.get(f"/v1/campaigns/{id}/pareto").json() == {"campaign": id, "front": best["front"]}


def test_a_brief_is_a_line_of_the_whole_trial(client, create, drive):
    id = create(budget={"trials": 20})
    drive(id)
    briefs = client.get(f"/v1/campaigns/{id}/trials", params={"view": "brief"}).json()["trials"]
    whole = client.get(f"/v1/campaigns/{id}/trials").json()["trials"]
    assert len(briefs) == 20
    for brief, trial in zip(briefs, whole, strict=True):
        for name in ("number", "origin", "state", "verdict", "plan", "plan_key", "expectation"):
            assert brief[name] == trial[name]
        measured = trial["measurement"]
        if measured is None:
            assert brief["objective"] is brief["step_time_s"] is brief["headroom_bytes"] is None
        else:
            for name in ("step_time_s", "step_time_low_s", "step_time_high_s", "tokens_per_s_per_device"):
                assert brief[name] == measured[name]
            assert brief["objective"]["value"] == measured["tokens_per_s_per_device"]
            assert brief["peak_memory_bytes"] == max(measured["peak_memory_bytes"])
        assert (brief["failure"], brief["attempts"]) == (trial["attempts"][-1]["failure"], len(trial["attempts"]))
        assert brief["finished_at"] == trial["attempts"][-1]["finished_at"]


def test_sorted_pages_go_on_and_their_tokens_fit_no_other_question(client, create, drive, problem):
    id = create(budget={"trials": 20})
    drive(id)
    url = f"/v1/campaigns/{id}/trials"
    asked = {"view": "brief", "sort": "-step_time_s", "page_size": 6}
    seen, token = [], None
    while not seen or token:
        page = client.get(url, params=asked | ({"page_token": token} if token else {})).json()
        seen += page["trials"]
        first, token = token or page["next_page_token"], page["next_page_token"]
    assert len({trial["number"] for trial in seen}) == 20
    times = [trial["step_time_s"] for trial in seen if trial["step_time_s"] is not None]
    assert times == sorted(times, reverse=True)
    assert all(trial["step_time_s"] is None for trial in seen[len(times) :])
    for other in ({"sort": "step_time_s"}, {"verdict": "ok"}, {"tp": 1}):
        problem(client.get(url, params=asked | {"page_token": first} | other), 422, "/problems/malformed-request")
    fewer = client.get(url, params=asked | {"page_token": first, "page_size": 2})
    assert len(fewer.json()["trials"]) == 2


def test_trials_are_filtered_by_verdicts_and_by_values_of_their_plans(client, create, drive):
    id = create(budget={"trials": 40})
    drive(id)
    url = f"/v1/campaigns/{id}/trials"
    whole = client.get(url).json()["trials"]

    def numbers(query: str) -> list[int]:
        return [trial["number"] for trial in client.get(f"{url}?{query}").json()["trials"]]

    assert numbers("verdict=oom&verdict=pruned") == [
        trial["number"] for trial in whole if trial["verdict"] in ("oom", "pruned")
    ]
    assert numbers("tp=1&tp=2&zero_stage=1&view=brief") == [
        trial["number"] for trial in whole if trial["plan"]["tp"] in (1, 2) and trial["plan"]["zero_stage"] == 1
    ]
    assert numbers("failure=oom&number=0&number=1") == [
        trial["number"] for trial in whole[:2] if trial["attempts"][-1]["failure"] == "oom"
    ]
    assert numbers("state=planned") == []


@pytest.fixture
def cache(service):
    return CampaignCache(service.store)


def test_of_threads_that_ask_at_once_one_computes_and_other_questions_pass(cache):
    gate, runs = threading.Event(), []

    def compute() -> str:
        runs.append(1)
        gate.wait(30)
        return "computed"

    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(cache.get, "a", 1, compute) for _ in range(7)]
        assert threads.submit(cache.get, "b", 1, lambda: "other").result(30) == "other"
        gate.set()
        assert {each.result(30) for each in waiting} == {"computed"}
    assert len(runs) == 1


def test_the_least_recently_used_entries_go_when_it_is_full(service):
    cache = CampaignCache(service.store, max_bytes=2 * ENTRY_BYTES + 200)
    for key in "ab":
        cache.get(key, 1, lambda: b"four")
    cache.get("a", 1, lambda: b"else")
    cache.get("c", 1, lambda: b"four")
    assert [cache.find(key, 1) for key in "abc"] == [b"four", None, b"four"]
    assert cache.get("d", 1, lambda: bytes(10_000)) == bytes(10_000)
    assert cache.find("d", 1) is None
