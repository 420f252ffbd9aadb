"""What /metrics says: the store's figures as they are, this process's own from its start, labels with few values."""

import json
import logging
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select, update

from meshtune.api.app import create_app
from meshtune.api.routes import metrics
from meshtune.api.settings import ServiceSettings
from meshtune.runners.base import Cause, JobState, JobStatus
from meshtune.runners.outcome import Verdict
from meshtune.tuner.access.tokens import Scope
from meshtune.tuner.service import session
from meshtune.tuner.service.trouble import MOST_TRIES
from meshtune.tuner.store import StoreUnavailable
from meshtune.tuner.store.tables import attempts, trials

EXAMPLES = Path(__file__).parents[2] / "examples" / "service"
DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "service.md"


def read(client: TestClient) -> dict[tuple[str, ...], float]:
    """Values by name and label values."""
    response = client.get("/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=")
    found = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            key = (sample.name, *sample.labels.values())
            assert key not in found
            found[key] = sample.value
    return found


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch):
    monkeypatch.setattr(metrics, "FRESH_S", 0.0)
    monkeypatch.setattr(metrics, "TIMES_THE_QUERY", 0)


def test_trials_and_campaigns_are_counted_as_the_store_has_them(client, create, drive):
    done, waiting = create(), create(seed=1)
    drive(done)
    client.post(f"/v1/campaigns/{waiting}:pause")
    page = client.get(f"/v1/campaigns/{done}/trials", params={"page_size": 100}).json()["trials"]
    found = read(client)
    for verdict in Verdict:
        assert found["meshtune_trials", verdict] == sum(trial["verdict"] == verdict for trial in page)
    assert found["meshtune_campaigns", "completed"] == found["meshtune_campaigns", "paused"] == 1
    assert found["meshtune_campaigns", "failed"] == 0
    assert found["meshtune_trials_in_flight", "running"] == 0
    assert found["meshtune_store_up",] == 1


def test_a_job_that_waits_says_why_and_is_counted_by_its_runner(client, create, service, runner):
    runner.queue = "QOSMaxWallDurationPerJobLimit"
    id = create(budget={"trials": 1})
    while not (trials := service.store.trials(id)) or not trials[0].last.wait:
        service.tick(id)
    found = read(client)
    (kind,) = (key[1] for key in found if key[0] == "meshtune_trials_queued")
    assert found["meshtune_trials_queued", kind] == 1
    assert 0 <= found["meshtune_longest_queued_seconds", kind] < 60
    briefs = client.get(f"/v1/campaigns/{id}/trials", params={"view": "brief"}).json()["trials"]
    (attempt,) = client.get(f"/v1/campaigns/{id}/trials/0").json()["attempts"]
    assert [brief["wait"] for brief in briefs] == [runner.queue]
    assert (attempt["state"], attempt["wait"]) == ("submitted", runner.queue)
    assert attempt["submitted_at"] is not None


def test_jobs_in_flight_count_once_and_their_time_on_devices_grows(client, create, service, runner, monkeypatch):
    monkeypatch.setattr(session, "SAVE_ELAPSED_S", 0.0)
    runner.hold = True
    id = create(budget={"trials": 1})
    while not any(trial.state == "running" for trial in service.store.trials(id)):
        service.tick(id)
    for _ in range(2):  # what one look saw is saved by the next
        time.sleep(0.02)
        service.tick(id)
    before = read(client)
    assert before["meshtune_trials_in_flight", "running"] == 1
    time.sleep(0.02)
    service.tick(id)
    assert read(client)["meshtune_device_hours",] > before["meshtune_device_hours",] > 0
    runner.jobs.clear()  # lost: it is tried again
    while len(service.store.trial(id, 0).attempts) < 2:
        service.tick(id)
    found = read(client)
    assert found["meshtune_trials", "lost"] == 0
    assert sum(found["meshtune_trials_in_flight", state] for state in ("planned", "submitted", "running")) == 1


def test_what_is_lost_is_counted_by_its_cause_and_repeated_with_a_line_in_the_log(
    client, create, service, runner, caplog
):
    caplog.set_level(logging.INFO)
    runner.hold = True
    id = create(budget={"trials": 1})
    while not service.store.trials(id) or service.store.trial(id, 0).state != "running":
        service.tick(id)
    assert read(client)["meshtune_repeated_trials_total", "instant"] == 0
    (name,) = runner.jobs
    runner.jobs[name] = JobStatus(state=JobState.LOST, reason="n7 is down", cause=Cause.NODE_FAULT)
    while len(service.store.trial(id, 0).attempts) < 2:
        service.tick(id)
    found = read(client)
    assert found["meshtune_lost_attempts_total", "node_fault", "instant"] == 1
    assert found["meshtune_repeated_trials_total", "instant"] == 1
    (line,) = (record for record in caplog.records if "run again" in record.getMessage())
    assert line.getMessage() == f"{id}: trial 0 is run again, as attempt 2: node_fault: n7 is down"
    assert (line.levelname, line.campaign, line.trial) == ("INFO", id, 0)


def test_each_refusal_of_a_job_is_counted(client, create, service, runner):
    id = create(budget={"trials": 1})
    runner.refusal = "no such partition"
    while service.store.campaign(id).state != "failed":
        service.tick(id)
    assert read(client)["meshtune_refusals_total", "instant"] == MOST_TRIES


def test_refusals_of_what_a_look_sends_such_as_pilots_are_counted(client, create, service, runner, monkeypatch):
    runner.queue = "waits for its pilot allocation"
    id = create(budget={"trials": 1})
    while not service.store.trials(id) or service.store.trial(id, 0).state != "submitted":
        service.tick(id)
    monkeypatch.setattr(service.sessions.get(id).runner, "refusals", lambda: 1)
    for count in (1, 2):
        service.tick(id)
        assert read(client)["meshtune_refusals_total", "instant"] == count


def test_device_hours_are_told_by_owner_and_those_with_fewest_together(
    client, app, token, spec, drive, service, monkeypatch
):
    monkeypatch.setattr(metrics, "MAX_OWNERS", 2)
    owners = [*(TestClient(app, headers=token(name)) for name in ("ann", "bob", "eve")), None]
    for number, owner in enumerate(owners):
        document = {**spec, "seed": number, "budget": {"trials": 1}}
        id = service.create(document).id if owner is None else owner.post("/v1/campaigns", json=document).json()["id"]
        drive(id)
        with service.store._database.writing() as connection:
            jobs = select(trials.c.id).where(trials.c.campaign_id == id)
            longer = update(attempts).where(attempts.c.trial_id.in_(jobs))
            connection.execute(longer.values(running_s=900 * (number + 1), finished_at=1e10))
    found = read(client)
    told = {key[1]: value for key, value in found.items() if key[0] == "meshtune_owner_device_hours"}
    assert told == {"-": 4 * 0.25 * 4, "eve": 4 * 0.25 * 3, "*": 4 * 0.25 * 3}
    assert found["meshtune_device_hours",] == sum(told.values())


def names_of(text: str) -> tuple[set[str], dict[str, set[str]]]:
    """The names that an endpoint exposes, and those of the labels that each has here."""
    names, labels = set(), {}
    for family in text_string_to_metric_families(text):
        kinds = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}.get(family.type, ("",))
        names |= {family.name + kind for kind in kinds}
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return names, labels


def expressions() -> list[str]:
    """Of the alert rules and the dashboard in examples/service."""
    rules = yaml.safe_load((EXAMPLES / "alerts.yaml").read_text())["groups"]
    panels = json.loads((EXAMPLES / "dashboard.json").read_text())["panels"]
    asked = [target["expr"].replace("$__rate_interval", "5m") for panel in panels for target in panel["targets"]]
    return [*(rule["expr"] for group in rules for rule in group["rules"]), *asked]


def test_alert_rules_and_dashboard_ask_for_what_there_is(client, create, drive, service, runner):
    drive(create())
    runner.queue = "Priority"
    service.tick(create(seed=1))
    service.metrics.lost.labels("instant", "node_fault").inc()
    service.metrics.skews.note("the database", 0.0)
    names, labels = names_of(client.get("/metrics").text)
    added = {"instance", "job", "le"}
    for expression in expressions():
        asked = set(re.findall(r"\b(?:meshtune|process)_\w+", expression))
        assert asked - names == set(), expression
        grouped = [word for group in re.findall(r"by \(([\w, ]+)\)", expression) for word in group.split(", ")]
        words = {*grouped, *re.findall(r"[{,](\w+)[!=]", expression)} - added
        for name in asked:
            assert words <= labels[name], (expression, name)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on PATH")
def test_prometheus_takes_the_rules_the_dashboards_queries_and_the_endpoint(client, create, drive, tmp_path):
    drive(create())
    asked = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(expressions())]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "asked", "rules": asked}]}))
    for rules in (EXAMPLES / "alerts.yaml", tmp_path / "rules.yaml"):
        subprocess.run(["promtool", "check", "rules", rules], check=True)
    text = client.get("/metrics").text
    done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
    # It prefers seconds to the hours in which devices are paid for.
    assert [line for line in done.stderr.splitlines() if "_device_hours use base unit" not in line and line] == []


def test_asks_ticks_polls_and_leases_are_this_process_s_own_and_every_metric_is_documented(client, create, drive):
    drive(create())
    found = read(client)
    assert found["meshtune_ask_seconds_count",] >= 1
    assert found["meshtune_tick_seconds_count",] > found["meshtune_ask_seconds_count",]
    assert found["meshtune_tick_seconds_bucket", "+Inf"] == found["meshtune_tick_seconds_count",]
    buckets = [value for key, value in found.items() if key[0] == "meshtune_tick_seconds_bucket"]
    assert buckets == sorted(buckets)
    assert found["meshtune_polls_total", "instant"] >= 1
    assert found["meshtune_poll_errors_total", "instant"] == 0
    assert found["meshtune_scheduler_answer_age_seconds", "instant"] == 0
    assert found["meshtune_lease_changes_total", "taken"] == found["meshtune_lease_changes_total", "released"] == 1
    assert found["process_resident_memory_bytes",] > 1e6
    shown = {line.split()[2] for line in client.get("/metrics").text.splitlines() if line.startswith("# TYPE meshtune")}
    assert shown == set(re.findall(r"`(meshtune_[a-z_]+)`", DOCUMENT.read_text()))


def requests_of(found: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    return {key[1:]: value for key, value in found.items() if key[0] == "meshtune_http_requests_total"}


def test_requests_are_counted_by_route_and_never_by_what_they_name(client, create):
    id = create()
    for path in (f"/v1/campaigns/{id}", "/v1/campaigns/no-such", "/v1/campaigns/x%20y", "/no-such-file", "/v1/no-such"):
        client.get(path)
    client.request("BREW", "/v1/campaigns")
    requests = requests_of(found := read(client))
    route = "/v1/campaigns/{campaign_id}"
    assert requests["GET", route, "200"] == requests["GET", route, "404"] == requests["GET", "static", "404"] == 1
    assert {method for method, _, _ in requests} <= {"GET", "POST", "other"}
    assert not any(id in route or "no-such" in route for _, route, _ in requests)
    assert found["meshtune_http_request_seconds_count", route] == 3  # one was malformed


def test_a_post_that_is_sent_again_is_counted_as_repeated_and_not_as_refused(client, spec):
    for body in (spec, spec, {}):
        client.post("/v1/campaigns", json=body, headers={"Idempotency-Key": "k"})
    counted = [("/v1/campaigns", "201"), ("repeated", "201"), ("refused", "422")]
    assert requests_of(read(client)) == {("POST", *each): 1 for each in counted}


def test_a_database_that_is_away_or_hangs_is_told_and_the_rest_as_well(client, service, monkeypatch):
    go_on = threading.Event()

    def away(now: float) -> None:
        raise StoreUnavailable("away", transient=True)

    monkeypatch.setattr(metrics, "LIMIT_S", 0.05)
    for figures in (away, lambda now: go_on.wait(120)):
        monkeypatch.setattr(service, "figures", figures)
        found = read(client)
        assert found["meshtune_store_up",] == 0
        assert not any(key[0] == "meshtune_campaigns" for key in found)
        assert ("meshtune_open_streams",) in found
    go_on.set()


def test_metrics_need_the_scope_to_read_everything_unless_they_are_open(app, service, token, problem):
    assert TestClient(app).get("/metrics").status_code == 401
    writer = TestClient(app, headers=token("w", Scope.READ, Scope.LAUNCH))
    problem(writer.get("/metrics"), 403, "/problems/scope-missing")
    assert TestClient(app, headers=token("r", Scope.READ_ALL)).get("/metrics").status_code == 200
    opened = create_app(service, settings=ServiceSettings(metrics_open=True))
    assert TestClient(opened).get("/metrics").status_code == 200
