"""Claims of external workers on real services: what they measured is taken, though the service was away meanwhile."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from service_lab import ServiceLab
from service_process import Postgres, Server, serving

pytestmark = pytest.mark.slow
SPEC = {
    "name": "claims",
    "model": "gpt-micro",
    "cluster": "local-cpu",
    "global_batch_size": 16,
    "search": "grid",
    "runner": "external",
    "parallel": 2,
    "budget": {"trials": 3},
    "confirm": 0,
    "trial": {"time_limit_s": 6},
}
TIMES = {"step_times_s": [0.41, 0.4, 0.42]}


@pytest.fixture
def lab(tmp_path) -> Iterator[ServiceLab]:
    with ServiceLab(tmp_path) as service:
        yield service


def claimed(lab: ServiceLab) -> tuple[str, dict]:
    """A campaign, and a claim of its first trial that the driver has seen."""
    id = lab.call("POST", "/v1/campaigns", SPEC)["id"]
    (one,) = lab.call("POST", f"/v1/campaigns/{id}:suggest", {"wait_s": 30})["suggestions"]
    lab.wait(lambda: lab.call("GET", f"/v1/campaigns/{id}/trials/{one['trial']}")["state"] == "running", 30)
    return id, one


def told(lab: ServiceLab, id: str, one: dict) -> dict:
    """The trial once it was told of."""
    path = f"/v1/campaigns/{id}/trials/{one['trial']}"
    lab.call("POST", f"{path}:complete", {**TIMES, "claim": one["claim"]})
    lab.wait(lambda: lab.call("GET", path)["state"] == "done", 30)
    return lab.call("GET", path)


@pytest.mark.parametrize("away", ["killed", pytest.param("stopped", marks=pytest.mark.long)])
def test_an_absence_of_the_service_counts_against_no_program(lab, away):
    """A limit of 6 s, and 7 s of absence: what was measured meanwhile is taken, also from a program that tries late."""
    id, one = claimed(lab)
    if away == "killed":
        lab.kill()
        time.sleep(7)
        lab.start()
    else:
        lab.process.send_signal(signal.SIGSTOP)
        time.sleep(7)
        lab.process.send_signal(signal.SIGCONT)
    time.sleep(8)  # between two tries
    trial = told(lab, id, one)
    assert (trial["verdict"], len(trial["attempts"])) == ("ok", 1)


@pytest.mark.long
def test_a_claim_ends_a_minute_after_an_absence(lab):
    id, one = claimed(lab)
    lab.kill()
    lab.start()
    begun, path = time.monotonic(), f"/v1/campaigns/{id}/trials/{one['trial']}"
    lab.wait(lambda: lab.call("GET", path)["state"] == "done", 90)
    assert time.monotonic() - begun > 55
    trial = lab.call("GET", path)
    assert (trial["verdict"], trial["attempts"][0]["failure"]) == ("timed_out", "time_limit")
    assert "told no result within its time limit of 6 s" in trial["attempts"][0]["reason"]
    status, problem = lab.ask("POST", f"{path}:complete", {**TIMES, "claim": one["claim"]})
    assert status == 409
    assert "it is timed_out: its claim told no result within its time limit of 6 s; " in problem["detail"]


@pytest.mark.postgres
def test_a_claim_outlives_the_service_that_gave_it(tmp_path):
    """With a limit of 6 s, 12 s after another service has taken the campaign over."""
    database = Postgres()
    try:
        with ExitStack() as ends:
            one, other = (ends.enter_context(serving(database.url, tmp_path)) for _ in range(2))
            id = one.post("/v1/campaigns", SPEC)["id"]
            (given,) = one.post(f"/v1/campaigns/{id}:suggest", {"wait_s": 30})["suggestions"]
            time.sleep(1)
            os.kill(one.pid, signal.SIGKILL)
            time.sleep(12)
            path = f"/v1/campaigns/{id}/trials/{given['trial']}"
            other.post(f"{path}:complete", {**TIMES, "claim": given["claim"]})
            while (trial := other.get(path))["state"] != "done":
                time.sleep(0.1)
            assert trial["verdict"] == "ok"
    finally:
        database.stop()


@pytest.mark.postgres
def test_of_two_services_each_trial_is_claimed_once_and_told_to_either(tmp_path):
    database = Postgres()
    try:
        with ExitStack() as ends:
            services: list[Server] = [ends.enter_context(serving(database.url, tmp_path)) for _ in range(2)]
            spec = {**SPEC, "parallel": 6, "budget": {"trials": 24}, "trial": {"time_limit_s": 60}}
            id = services[0].post("/v1/campaigns", spec)["id"]

            def loop(number: int) -> list[str]:
                asked, other, claims = services[number % 2], services[1 - number % 2], []
                while True:
                    found = asked.post(
                        f"/v1/campaigns/{id}:suggest", {"wait_s": 5, "worker": f"w{number}", "lease_s": 60}
                    )
                    for one in found["suggestions"]:
                        claims.append(one["claim"])
                        path = f"/v1/campaigns/{id}/trials/{one['trial']}:complete"
                        other.post(path, {**TIMES, "claim": one["claim"]})
                    if found["state"] != "running":
                        return claims

            with ThreadPoolExecutor(8) as pool:
                claims = Counter(claim for each in pool.map(loop, range(8)) for claim in each)
            trials = services[1].get(f"/v1/campaigns/{id}/trials")["trials"]
            assert [(trial["verdict"], len(trial["attempts"])) for trial in trials] == [("ok", 1)] * len(trials)
            assert set(claims) == {trial["attempts"][0]["job_name"] for trial in trials}
            assert set(claims.values()) == {1}
    finally:
        database.stop()
