"""Ask and tell: people's own loops measure the trials of a campaign whose runner is `external`."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvicorn

from meshtune.api.routes import ask_tell
from meshtune.tuner.campaign import decide
from meshtune.tuner.service.clocks import Presence

EXTERNAL = {"runner": "external", "parallel": 3, "budget": {"trials": 6}}
WORDS = {"--tp": "tp", "--pp": "pp", "--size": "micro_batch_size", "--accumulate": "grad_accum_steps"}
COMMAND = {
    "kind": "command",
    "command": ["train.py", *(word for name, field in WORDS.items() for word in (name, f"{{{field}}}"))],
}


def ask(client, id, key="", **body):
    response = client.post(f"/v1/campaigns/{id}:suggest", json=body, headers={"Idempotency-Key": key} if key else {})
    assert response.status_code == 200, response.text
    return response.json()


def tell(client, id, trial, **body):
    return client.post(f"/v1/campaigns/{id}/trials/{trial}:complete", json=body)


def step_s(plan):
    return 0.1 * plan["tp"] + 0.4 / plan["micro_batch_size"]


def wait_done(client, id, trial):
    end = time.monotonic() + 60
    while (found := client.get(f"/v1/campaigns/{id}/trials/{trial}").json())["state"] != "done":
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def test_two_loops_measure_a_campaign_to_its_end_and_the_best_is_as_they_told(client, create):
    id = create(**EXTERNAL, confirm=2, confirm_rounds=2)

    def loop(number):
        done = []
        while True:
            found = ask(client, id, count=2, wait_s=10, worker=f"w{number}", lease_s=60)
            for each in found["suggestions"]:
                done.append(each["trial"])
                if each["plan"]["tp"] == 4:
                    assert tell(client, id, each["trial"], verdict="OOM", reason="rank 0: no memory").status_code == 200
                    continue
                times = [step_s(each["plan"])] * 5
                told = tell(client, id, each["trial"], step_times_s=times, peak_memory_bytes=[10**6])
                assert told.status_code == 200, told.text
            if found["state"] != "running":
                return done, found

    with client, ThreadPoolExecutor(2) as pool:  # with one event loop, and a driver
        (one, ended), (other, _) = pool.map(loop, range(2))
    assert ended["state"] == "completed"
    trials = client.get(f"/v1/campaigns/{id}/trials").json()["trials"]
    assert sorted(one + other) == [each["number"] for each in trials]
    for each in trials:
        expected = "oom" if each["plan"]["tp"] == 4 else "ok"
        assert (each["verdict"], len(each["attempts"])) == (expected, 1)
    best = client.get(f"/v1/campaigns/{id}/best").json()["best"][0]
    fastest = min((each for each in trials if each["verdict"] == "ok"), key=lambda each: step_s(each["plan"]))
    assert best["plan_key"] == fastest["plan_key"]
    assert best["step_time_s"] == pytest.approx(step_s(fastest["plan"]))


def test_a_suggestion_has_the_command_line_of_a_user_s_program_and_the_limits(client, create, service):
    id = create(**EXTERNAL, workload=COMMAND, trial={"time_limit_s": 120})
    service.tick(id)
    service.tick(id)
    (given,) = ask(client, id, count=5)["suggestions"]
    words = [word for name, field in WORDS.items() for word in (name, str(given["plan"][field]))]
    assert given["arguments"] == ["train.py", *words]
    assert (given["trial"], given["time_limit_s"], given["knobs"]) == (0, 120, {})
    assert ask(client, id, count=5)["suggestions"] == []


def test_the_same_request_gets_the_same_trial_though_its_answer_was_lost(client, create, service):
    id = create(**EXTERNAL)
    for _ in range(2):
        service.tick(id)
    lost = ask(client, id, key="worker-1-ask-7")
    with service.store._database.writing() as connection:  # the process died before it kept the answer
        connection.exec_driver_sql("UPDATE idempotency SET status = NULL, body = NULL")
    again = ask(client, id, key="worker-1-ask-7")
    assert lost["suggestions"] == again["suggestions"] != []
    assert ask(client, id, key="worker-2-ask-1")["suggestions"] == []


def test_who_asks_before_a_trial_is_planned_waits_for_it(client, create, service):
    id = create(**EXTERNAL)
    begun = time.monotonic()
    assert ask(client, id, wait_s=0.3)["suggestions"] == []
    assert time.monotonic() - begun >= 0.3
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, client, id, wait_s=20)
        time.sleep(0.3)
        service.tick(id)
        service.tick(id)
        assert [each["trial"] for each in asked.result()["suggestions"]] == [0]


def test_a_trial_is_told_of_once_and_by_who_claimed_it(client, create, service, problem, drive):
    id = create(**EXTERNAL)
    for _ in range(2):
        service.tick(id)
    measured = {"step_times_s": [1.0, 1.1, 1.0]}
    told = problem(tell(client, id, 0, **measured), 409, "/problems/illegal-move")
    assert "nobody has claimed it" in told["detail"]
    ask(client, id)
    assert tell(client, id, 0, **measured).json()["state"] in ("submitted", "running")
    assert tell(client, id, 0, **measured).status_code == 200, "the same word once more"
    problem(tell(client, id, 0, step_times_s=[9.0]), 409, "/problems/illegal-move")
    service.tick(id)
    done = wait_done(client, id, 0)
    assert (done["verdict"], done["measurement"]["step_times_s"]) == ("ok", [1.0, 1.1, 1.0])
    assert done["measurement"]["tokens_per_s"] > 0
    problem(tell(client, id, 0, step_times_s=[9.0]), 409, "/problems/illegal-move")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/step_times_s"),
        ({"step_times_s": [0.0]}, "/step_times_s"),
        ({"step_times_s": [1.0], "verdict": "oom"}, "/verdict"),
        ({"verdict": "cancelled"}, "/verdict"),
        ({"verdict": "oom", "why": "x"}, "/why"),
        ({"step_times_s": [1.0], "peak_memory_bytes": [-1]}, "/peak_memory_bytes"),
        ({"step_times_s": [1e-307]}, "/step_times_s"),
        ({"step_times_s": [1e308] * 6}, "/step_times_s"),
        ({"step_times_s": [1.0], "warmup_times_s": [1e308]}, "/warmup_times_s"),
        ({"step_times_s": [1.0], "peak_held_bytes": [10**18]}, "/peak_held_bytes"),
        ({"verdict": "oom", "failed_rank": 2**40}, "/failed_rank"),
    ],
)
def test_a_word_that_says_nothing_is_refused_with_its_place(client, create, service, problem, body, pointer):
    id = create(**EXTERNAL)
    for _ in range(2):
        service.tick(id)
    ask(client, id)
    told = problem(tell(client, id, 0, **body), 422, "/problems/invalid-body")
    assert told["errors"][0]["pointer"] == pointer


def test_a_megabyte_of_steps_is_told_and_shown_at_once_by_its_last_ones(client, create, service):
    id = create(**EXTERNAL)
    for _ in range(2):
        service.tick(id)
    ask(client, id)
    times = [1.0 + 1e-6 * number for number in range(99_000)]
    begun = time.process_time()
    for _ in range(2):
        tell(client, id, 0, step_times_s=times).raise_for_status()
    service.tick(id)
    measured = wait_done(client, id, 0)["measurement"]
    assert measured["step_times_s"] == times[-10_000:]
    assert time.process_time() - begun < 8.0  # 45 s each by exact integers


WORKERS = (
    ({"worker": "w" * 101}, "/worker"),
    ({"worker": "w\n1"}, "/worker"),
    ({"worker": 1}, "/worker"),
    ({"worker": "w\ud800"}, "/worker"),  # its words would be no result, and the driver could go no further
    ({"worker": "w1", "lease_s": 4.9}, "/lease_s"),
    ({"worker": "w1", "lease_s": 86401}, "/lease_s"),
)


def test_an_ask_out_of_its_bounds_is_refused(client, create, problem):
    url, headers = f"/v1/campaigns/{create(**EXTERNAL)}:suggest", {"content-type": "application/json"}
    for body, pointer in (({"count": 0}, "/count"), ({"wait_s": 31}, "/wait_s"), ({"n": 1}, "/n"), *WORKERS):
        answer = client.post(url, content=json.dumps(body), headers=headers)
        told = problem(answer, 422, "/problems/invalid-body")
        assert told["errors"][0]["pointer"] == pointer


def test_trials_of_another_runner_are_not_asked_for(client, create, problem):
    told = problem(client.post(f"/v1/campaigns/{create()}:suggest"), 409, "/problems/illegal-move")
    assert "the runner instant measures the trials" in told["detail"]


def test_what_nobody_tells_of_times_out_and_what_is_lost_is_tried_again(client, create, service, monkeypatch):
    monkeypatch.setattr(decide, "GRACE_S", 0.0)
    id = create(**EXTERNAL, baseline=None, trial={"time_limit_s": 0.2})
    for _ in range(5):
        service.tick(id)
    first, second = ask(client, id, count=2)["suggestions"]
    tell(client, id, second["trial"], verdict="lost", reason="my node went away").raise_for_status()
    service.tick(id)  # a claim's time counts from the first look at it
    time.sleep(0.3)
    for _ in range(5):
        service.tick(id)
    late = client.get(f"/v1/campaigns/{id}/trials/{first['trial']}").json()
    assert (late["verdict"], len(late["attempts"])) == ("timed_out", 1)
    assert "told no result within its time limit of 0.2 s" in late["attempts"][0]["reason"]
    assert len(client.get(f"/v1/campaigns/{id}/trials/{second['trial']}").json()["attempts"]) == 2


def test_no_word_of_an_old_claim_ends_a_new_one(client, create, service, problem):
    id = create(**EXTERNAL | {"parallel": 1})

    def claimed():
        for _ in range(5):
            service.tick(id)
        return ask(client, id)["suggestions"][0]

    lost = {"verdict": "lost", "reason": "my node went away"}
    first = claimed()
    assert tell(client, id, 0, **lost, claim=first["claim"]).status_code == 200
    second = claimed()
    assert (second["trial"], second["claim"] == first["claim"]) == (0, False)
    assert tell(client, id, 0, **lost, claim=first["claim"]).status_code == 200, "the same word once more"
    late = problem(tell(client, id, 0, step_times_s=[1.0], claim=first["claim"]), 409, "/problems/illegal-move")
    assert "cannot be completed: it is lost: my node went away; the trial is" in late["detail"]
    assert "name the claim" in problem(tell(client, id, 0, **lost), 409, "/problems/illegal-move")["detail"]
    assert "no claim 'x'" in problem(tell(client, id, 0, **lost, claim="x"), 409, "/problems/illegal-move")["detail"]
    for _ in range(3):
        service.tick(id)
    assert client.get(f"/v1/campaigns/{id}/trials/0").json()["state"] == "running"
    tell(client, id, 0, step_times_s=[2.0, 2.1], claim=second["claim"]).raise_for_status()
    service.tick(id)
    assert wait_done(client, id, 0)["verdict"] == "ok"


def test_an_older_program_completes_a_trial_that_was_lost_before_where_its_token_claimed_it(
    client, create, service, problem, token
):
    id = create(**EXTERNAL | {"parallel": 1})
    for verdict in ("lost", "ok"):
        for _ in range(5):
            service.tick(id)
        ask(client, id)
        if verdict == "lost":
            tell(client, id, 0, verdict="lost", reason="gone").raise_for_status()
    other, path = token("other", scopes=("admin",)), f"/v1/campaigns/{id}/trials/0:complete"
    refused = client.post(path, json={"step_times_s": [3.0]}, headers=other)
    assert "another token has claimed it anew" in problem(refused, 409, "/problems/illegal-move")["detail"]
    assert tell(client, id, 0, step_times_s=[2.0]).status_code == 200


def test_of_the_asks_that_wait_for_a_campaign_one_looks(client, create, service, monkeypatch, problem):
    looks, suggest = [], service.ask_tell.suggest
    monkeypatch.setattr(service.ask_tell, "suggest", lambda *words: looks.append(words) or suggest(*words))
    monkeypatch.setattr(ask_tell, "MAX_WAITING", 8)
    asks = client.app.state.asks
    with client, ThreadPoolExecutor(9) as pool:  # with one event loop
        id = create(**EXTERNAL | {"parallel": 1})
        assert len(ask(client, id, wait_s=20)["suggestions"]) == 1
        looks.clear()
        waiting = [pool.submit(ask, client, id, wait_s=3) for _ in range(8)]
        while not asks.places["tester"].locked():
            time.sleep(0.01)
        refused = problem(client.post(f"/v1/campaigns/{id}:suggest", json={"wait_s": 3}), 429, "/problems/rate-limited")
        assert "8 requests of this token wait for trials" in refused["detail"]
        assert ask(client, id)["suggestions"] == [], "it does not wait"
        assert [each.result()["suggestions"] for each in waiting] == [[]] * 8
        assert len(looks) <= 10 + 3 / ask_tell.LOOK_S + 8, "each looks at once, then one of them alone"
        client.post(f"/v1/campaigns/{id}:cancel")
        assert ask(client, id, wait_s=20)["state"] in ("cancelling", "cancelled")
    assert not asks.turns


def test_what_was_told_before_a_claim_was_ended_counts(client, create, service, monkeypatch):
    monkeypatch.setattr(decide, "GRACE_S", 0.0)
    id = create(**EXTERNAL, trial={"time_limit_s": 0.1})
    for _ in range(2):
        service.tick(id)
    (one,) = ask(client, id)["suggestions"]
    service.tick(id)
    time.sleep(0.2)
    keep, told = service.reports.keep, []

    def told_just_before(*words):
        monkeypatch.setattr(service.reports, "keep", keep)
        told.append(tell(client, id, 0, step_times_s=[1.0, 1.1], claim=one["claim"]).status_code)
        return keep(*words)

    monkeypatch.setattr(service.reports, "keep", told_just_before)
    for _ in range(5):
        service.tick(id)
    assert told == [200]
    assert wait_done(client, id, 0)["verdict"] == "ok"


def test_a_cancelled_campaign_gives_no_trials_and_takes_no_results(client, create, service, drive, problem):
    id = create(**EXTERNAL)
    for _ in range(2):
        service.tick(id)
    ask(client, id)
    client.post(f"/v1/campaigns/{id}:cancel")
    assert ask(client, id)["suggestions"] == []
    drive(id)
    assert ask(client, id, wait_s=20)["state"] == "cancelled", "nobody waits for what is over"
    problem(tell(client, id, 0, step_times_s=[1.0]), 409, "/problems/illegal-move")


def test_a_token_without_command_may_create_and_measure_such_a_campaign(app, client, spec, token):
    headers = token("loop", scopes=("read", "launch"))
    made = client.post("/v1/campaigns", json=spec | EXTERNAL, headers=headers)
    assert made.status_code == 201, made.text
    response = client.post(f"/v1/campaigns/{made.json()['id']}:suggest", headers=headers)
    assert (response.status_code, response.json()["state"]) == (200, "running")


@pytest.fixture
def present(service):
    """Let so many seconds pass for the service's presence, by a clock that this test turns; away: it was suspended."""
    now = [0.0]
    presence = service.sessions.holder.presence = Presence(4.0, lambda: now[0])

    def passes(seconds, away=False):
        for _ in range(1 if away else seconds):
            now[0] += seconds if away else 1.0
            presence.confirm()

    return passes


def beat(client, id, given, *times):
    path = f"/v1/campaigns/{id}/trials/{given['trial']}:heartbeat"
    answer = client.post(path, json={"claim": given["claim"], "step_times_s": times})
    assert answer.status_code == 200, answer.text
    return answer.json()


def claimed_by(client, service, id, worker, **asked):
    """A trial that the worker has claimed, and the driver has seen so."""
    for _ in range(5):
        service.tick(id)
    (given,) = ask(client, id, worker=worker, **asked)["suggestions"]
    for _ in range(2):
        service.tick(id)
    return given


LONG = {**EXTERNAL, "parallel": 1, "trial": {"time_limit_s": 1e5}}


def test_heartbeats_keep_a_trial_beyond_its_lease_and_silence_gives_it_to_another(
    client, create, service, present, problem
):
    id, path = create(**LONG), "/problems/illegal-move"
    given = claimed_by(client, service, id, "w1", lease_s=60)
    for minute in range(5):
        present(59)
        assert beat(client, id, given, *[1.21] * 3 * minute) == {"should_stop": False, "reason": "", "lease_s": 60.0}
        service.tick(id)
    assert client.get(f"/v1/campaigns/{id}/trials/0").json()["state"] == "running"
    present(61)
    assert beat(client, id, given, 1.21)["should_stop"] is False, "an earlier report that comes late renews the lease"
    service.tick(id)
    present(61)
    for _ in range(5):
        service.tick(id)
    shown = client.get(f"/v1/campaigns/{id}/trials/0").json()
    words = "worker w1 was silent for 61 s of a lease of 60 s; it had reported 12 steps of 1.21 s"
    assert [each["verdict"] for each in shown["attempts"]] == ["lost", None]
    assert shown["attempts"][0]["reason"] == words
    assert beat(client, id, given) == {"should_stop": True, "reason": f"it is lost: {words}", "lease_s": None}
    late = {"step_times_s": [1.2, 1.3], "claim": given["claim"]}
    refused = problem(tell(client, id, 0, **late), 409, path)["detail"]
    assert refused.endswith(f"it is lost: {words}; the trial is submitted: ask for it while it waits, else `:rerun` it")
    problem(tell(client, id, 0, verdict="ok", claim=given["claim"]), 409, path)
    second = claimed_by(client, service, id, "w2", lease_s=60)
    assert (second["trial"], second["claim"] == given["claim"]) == (0, False)
    assert "the trial is running" in problem(tell(client, id, 0, **late), 409, path)["detail"]
    tell(client, id, 0, step_times_s=[2.0, 2.1], claim=second["claim"]).raise_for_status()
    service.tick(id)
    assert wait_done(client, id, 0)["measurement"]["step_times_s"] == [2.0, 2.1]


def test_a_service_that_was_suspended_ends_no_lease(client, create, service, present):
    id = create(**LONG)
    given = claimed_by(client, service, id, "w1", lease_s=5)
    present(100)
    beat(client, id, given)
    service.tick(id)
    present(3600, away=True)
    present(59)
    for _ in range(3):
        service.tick(id)
    assert beat(client, id, given)["should_stop"] is False
    service.tick(id)
    present(5)
    service.tick(id)
    assert "silent for 5 s" in beat(client, id, given)["reason"]


def test_without_a_lease_the_time_limit_alone_counts(client, create, service, present):
    id = create(**LONG)
    given = claimed_by(client, service, id, "w1")
    present(99_990)
    service.tick(id)
    assert beat(client, id, given) == {"should_stop": False, "reason": "", "lease_s": None}
    present(20)
    service.tick(id)
    reason = "it is timed_out: its claim told no result within its time limit of 100000 s"
    assert beat(client, id, given)["reason"] == reason


def test_a_worker_that_asks_again_gets_its_own_trials_first_and_starts_them_anew(client, create, service, token):
    id = create(**EXTERNAL, baseline=None)
    for _ in range(5):
        service.tick(id)
    (own,) = ask(client, id, key="one", worker="w1", lease_s=60)["suggestions"]
    beat(client, id, own, 1.0, 1.1)
    assert ask(client, id, key="two", worker="w1")["suggestions"] == [own]
    assert tell(client, id, own["trial"], verdict="ok", claim=own["claim"]).status_code == 422, "steps of before"
    same_name = client.post(f"/v1/campaigns/{id}:suggest", json={"worker": "w1"}, headers=token("x", scopes=("admin",)))
    (other,) = same_name.json()["suggestions"]
    both = ask(client, id, worker="w1", count=3)["suggestions"]
    assert both[0] == own
    assert len({each["claim"] for each in (*both, other)}) == 3
    assert ask(client, id, worker="w2")["suggestions"] == ask(client, id)["suggestions"] == []
    tell(client, id, own["trial"], step_times_s=[1.0], claim=own["claim"]).raise_for_status()
    assert ask(client, id, worker="w1", count=3)["suggestions"] == both[1:], "what is completed is not its to measure"


def test_with_racing_a_slow_trial_is_to_stop_and_ends_with_the_steps_that_it_took(client, create, service):
    id = create(**EXTERNAL | {"parallel": 1}, trial={"racing": True})
    for verdict, step_s in (("", 1.0), ("", 0.5), ("pruned", 0.7)):
        given = claimed_by(client, service, id, "w1", lease_s=60)
        times = [step_s * (1 + 0.001 * number) for number in range(12)]
        assert beat(client, id, given, *times[:3])["should_stop"] is False
        found = beat(client, id, given, *times)
        assert found["should_stop"] is (verdict == "pruned"), found
        done = tell(client, id, given["trial"], verdict=verdict, reason=found["reason"], claim=given["claim"])
        assert done.status_code == 200, done.text
        service.tick(id)
        shown = wait_done(client, id, given["trial"])
    assert shown["verdict"] == "pruned"
    assert shown["attempts"][0]["reason"].startswith("steps of 0.7038 s are surely slower than the incumbent's of 0.5")
    partial = service.store.trial(id, given["trial"]).outcome.partial
    assert list(partial.step_times_s) == pytest.approx(times)


def test_what_was_reported_is_completed_by_a_word_that_may_come_twice(client, create, service, problem):
    id = create(**EXTERNAL)
    given = claimed_by(client, service, id, "w1", lease_s=60)
    word = {"verdict": "OK", "claim": given["claim"], "peak_memory_bytes": [10**6]}
    refused = problem(tell(client, id, 0, **word), 422, "/problems/invalid-body")
    assert refused["errors"][0]["pointer"] == "/step_times_s"
    beat(client, id, given, 1.0, 1.1)
    beat(client, id, given, 1.0)
    for _ in range(2):
        assert tell(client, id, 0, **word).status_code == 200
        service.tick(id)
    assert wait_done(client, id, 0)["measurement"]["step_times_s"] == [1.0, 1.1]
    assert tell(client, id, 0, **word).status_code == 200
    assert beat(client, id, given, 1.0) == {"should_stop": True, "reason": "it is ok", "lease_s": None}


def test_a_cancelled_campaign_stops_its_workers(client, create, service, drive):
    id = create(**EXTERNAL)
    given = claimed_by(client, service, id, "w1", lease_s=60)
    client.post(f"/v1/campaigns/{id}:cancel")
    told = beat(client, id, given, 1.0)
    assert (told["should_stop"], told["reason"]) == (True, "the campaign is cancelling: cancelled")
    drive(id)
    told = beat(client, id, given, 1.0)
    assert (told["should_stop"], told["reason"]) == (True, "it is cancelled: cancelled")


def test_heartbeats_of_no_claim_and_bad_ones_are_refused_and_none_is_in_the_audit_log(client, create, service, problem):
    id = create(**EXTERNAL)
    for _ in range(2):
        service.tick(id)
    path, waits = f"/v1/campaigns/{id}/trials/0:heartbeat", service.store.trial(id, 0).last.job_name
    for claim in (waits, "x", ""):
        told = problem(client.post(path, json={"claim": claim}), 409, "/problems/illegal-move")
        assert f"has no claim {claim!r}" in told["detail"]
    missing = f"/v1/campaigns/{id}/trials/7:heartbeat"
    problem(client.post(missing, json={"claim": waits}), 404, "/problems/not-found")
    given = claimed_by(client, service, id, "w1", lease_s=60)
    for body, pointer in (
        ({}, "/claim"),
        ({"claim": given["claim"], "step_times_s": [0.0]}, "/step_times_s"),
        ({"claim": given["claim"], "steps": []}, "/steps"),
    ):
        told = problem(client.post(path, json=body), 422, "/problems/invalid-body")
        assert told["errors"][0]["pointer"] == pointer
    beat(client, id, given, 1.0)
    assert [each["action"].rpartition(":")[2] for each in client.get("/v1/audit").json()["entries"]][-1] == "suggest"


WORKER = """
import json, sys, urllib.request

def post(path, **body):
    headers = {"authorization": sys.argv[2], "content-type": "application/json"}
    request = urllib.request.Request(sys.argv[1] + path, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))

(one,) = post(":suggest", wait_s=30, worker="w1", lease_s=5)["suggestions"]
print(post(f"/trials/{one['trial']}:heartbeat", claim=one["claim"], step_times_s=[1.0]), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_the_trial_of_a_worker_that_was_killed_is_measured_by_another(app, client, create, monkeypatch):
    monkeypatch.setattr(decide, "GRACE_S", 0.0)
    id = create(**EXTERNAL | {"parallel": 1})
    server = uvicorn.Server(uvicorn.Config(app, port=0, ws="none", log_config=None))
    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(server.run)
        try:
            while not server.started:
                assert not ran.done(), ran.result()
                time.sleep(0.05)
            url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1/campaigns/{id}"
            command = [sys.executable, "-c", WORKER, url, client.headers["authorization"]]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
                assert "'should_stop': False" in worker.stdout.readline()
                worker.kill()
            claims = []
            while (found := ask(client, id, wait_s=20, worker="w2", lease_s=60))["state"] == "running":
                for each in found["suggestions"]:
                    claims.append((each["trial"], each["claim"]))
                    tell(client, id, each["trial"], step_times_s=[1.0, 1.1], claim=each["claim"]).raise_for_status()
        finally:
            server.should_exit = True
    assert found["state"] == "completed"
    first, *others = client.get(f"/v1/campaigns/{id}/trials").json()["trials"]
    assert [each["verdict"] for each in first["attempts"]] == ["lost", "ok"]
    assert "worker w1 was silent for" in first["attempts"][0]["reason"]
    assert first["attempts"][0]["reason"].endswith("s of a lease of 5 s; it had reported 1 step of 1 s")
    assert claims[0] == (0, first["attempts"][1]["job_name"])
    assert [len(each["attempts"]) for each in others] == [1] * len(others)
