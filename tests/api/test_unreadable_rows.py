"""A row that this version does not read, in the database of a real service: lists show the rest and say so, and
`meshtune db check` names it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing

import pytest
from service_lab import ServiceLab
from service_process import meshtune
from specs import simulated

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceLab]:
    with ServiceLab(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture
def ids(service: ServiceLab) -> list[str]:
    """A campaign, and another one that the test spoils."""
    return [service.completed(simulated(budget={"trials": 3}, confirm=0)) for _ in range(2)]


def run(service: ServiceLab, *statements: str, **values: str) -> None:
    with closing(sqlite3.connect(service.home / "meshtune.db", isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement, values)


def command(service: ServiceLab, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*meshtune(*words, "--home", str(service.home))], capture_output=True, text=True, check=False)


def spoil(service: ServiceLab, statement: str, id: str) -> None:
    news = "INSERT INTO events (campaign_id, at, kind, data) VALUES (:id, 1.0, 'trial.done', '{\"number\": 1}')"
    run(service, statement, news, id=id)


@pytest.mark.parametrize(
    "change",
    [
        "spec = '{\"name\": 1}'",
        pytest.param("spec = '{torn'", marks=pytest.mark.long),
        "state = 'asleep'",
        "lessons = '[{\"x\": 1}]'",
        pytest.param("created_at = 'yesterday'", marks=pytest.mark.long),
        "updated_at = 9e999",
        "owner = x'ff'",
    ],
)
def test_one_unreadable_campaign_is_named_and_the_others_are_listed(service, ids, change):
    good, bad = ids
    spoil(service, f"UPDATE campaigns SET {change} WHERE id = :id", bad)
    page = service.call("GET", "/v1/campaigns")
    assert good in [each["id"] for each in page["campaigns"]]
    assert f"campaign {bad}" in [words.partition(" is stored as ")[0] for words in page["unreadable"]]
    status, problem = service.ask("GET", f"/v1/campaigns/{bad}")
    assert (status, problem["type"]) == (409, "/problems/unreadable")
    assert service.call("GET", f"/v1/campaigns/{bad}/events")["events"]
    shown = command(service, "show", "--all")
    assert (shown.returncode, good in shown.stdout, f"campaign {bad} is stored as" in shown.stderr) == (0, True, True)
    checked = command(service, "db", "check")
    assert (checked.returncode, f"campaign {bad} is stored as" in checked.stdout + checked.stderr) == (1, True)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("UPDATE trials SET tp = -3 WHERE campaign_id = :id AND number = 1", "trial 1 of campaign {}"),
        ("UPDATE trials SET origin = 'moon' WHERE campaign_id = :id AND number = 1", "trial 1 of campaign {}"),
        ("UPDATE attempts SET started_at = 'noon' WHERE job_name = :id || '-t0001-a1'", "attempt {}-t0001-a1"),
        ("UPDATE attempts SET cause = 'whim' WHERE job_name = :id || '-t0001-a1'", "attempt {}-t0001-a1"),
    ],
)
@pytest.mark.parametrize("view", ["full", "brief"])
def test_one_unreadable_trial_is_named_and_the_others_are_listed(service, ids, change, what, view):
    good, bad = ids
    spoil(service, change, bad)
    first = service.call("GET", f"/v1/campaigns/{bad}/trials?view={view}&page_size=2")
    rest = service.call(
        "GET", f"/v1/campaigns/{bad}/trials?view={view}&page_size=2&page_token={first['next_page_token']}"
    )
    assert [[each["number"] for each in page["trials"]] for page in (first, rest)] == [[0], [2]]
    assert [len(page["unreadable"]) for page in (first, rest)] == [1, 0]
    assert first["unreadable"][0].startswith(f"{what.format(bad)} is stored as")
    assert good in [each["id"] for each in service.call("GET", "/v1/campaigns")["campaigns"]]
    checked = command(service, "db", "check")
    assert json.dumps(checked.stdout + checked.stderr).count(f"{what.format(bad)} is stored as") == 1


def test_trials_left_open_by_a_campaign_that_is_over_are_told(service: ServiceLab, ids: list[str]):
    run(
        service,
        "UPDATE attempts SET state = 'planned', verdict = NULL WHERE job_name = :name",
        name=f"{ids[1]}-t0002-a1",
    )
    checked = command(service, "db", "check")
    assert f"trials that are open though their campaigns are over: {ids[1]}-t0002-a1" in checked.stdout + checked.stderr


def test_an_unreadable_campaign_that_was_under_way_stops_no_other_and_is_deleted(tmp_path):
    lab = ServiceLab(tmp_path)
    (lab.home / "limits.yaml").write_text("jobs: 4\n")
    with lab:
        for change in ("spec = '{\"name\": 1}'", "spec = '{torn'", "state = 'asleep'"):
            bad = lab.call("POST", "/v1/campaigns", simulated(budget={"trials": 2000}, confirm=0))["id"]
            spoil(lab, f"UPDATE campaigns SET {change} WHERE id = :id", bad)
            lab.completed(simulated(budget={"trials": 3}, confirm=0))
            status, problem = lab.ask("POST", f"/v1/campaigns/{bad}:cancel")
            assert (status, problem["type"]) == (409, "/problems/unreadable")
            assert problem["detail"].startswith(f"campaign {bad} is stored as this meshtune does not read it: ")
            helps = "; the version that wrote it does, and `meshtune clean CAMPAIGN --remove` deletes the campaign"
            assert problem["detail"].endswith(helps)
            cancelled = command(lab, "cancel", bad)
            assert (cancelled.returncode, helps in cancelled.stderr) == (2, True)
            if change == "state = 'asleep'":
                assert "no campaign none" in command(lab, "clean", "none", "--remove").stderr
                assert bad in command(lab, "clean", bad).stdout
                assert lab.call("GET", "/v1/campaigns")["unreadable"]
                assert command(lab, "clean", bad, "--remove").stdout == f"{bad} is deleted\n"
                assert [path for path in lab.home.rglob("*") if bad in path.name] == []
            else:
                lab.call("DELETE", f"/v1/campaigns/{bad}")
            assert lab.call("GET", "/v1/campaigns")["unreadable"] == []
        assert command(lab, "db", "check").returncode == 0


def test_what_others_measured_is_learned_without_what_is_unreadable(tmp_path):
    spec = simulated(budget={"trials": 3}, confirm=0, search="physics")
    with ServiceLab(tmp_path) as lab:
        good, bad = (lab.completed(spec) for _ in range(2))
        spoil(lab, "UPDATE attempts SET cause = 'whim' WHERE job_name = :id || '-t0001-a1'", bad)
        new = lab.completed(spec)
        lessons = lab.call("GET", f"/v1/campaigns/{new}")["lessons"]
        assert [lesson["campaign_id"] for lesson in lessons] == [good]


def test_unreadable_events_end_no_service_and_no_campaign(service: ServiceLab, ids: list[str]):
    campaign = service.call("POST", "/v1/campaigns", simulated(budget={"trials": 2}, confirm=0))["id"]
    news = "INSERT INTO events (campaign_id, at, kind, data) VALUES (:id, 1.0, 'trial.done', '{torn')"
    for id in (campaign, ids[0]):
        run(service, news, id=id)
    service.wait_state(campaign, "completed")
    assert {} in [event["data"] for event in service.call("GET", f"/v1/campaigns/{ids[0]}/events")["events"]]
    service.completed(simulated(budget={"trials": 2}, confirm=0))  # the reader of events is alive


def test_an_unreadable_token_opens_nothing_and_the_others_are_listed(service: ServiceLab):
    secret = service.new_token("bad", "read")
    run(service, "UPDATE tokens SET scopes = '[\"moon\"]' WHERE name = 'bad'")
    assert service.ask("GET", "/v1/campaigns", authorization=f"Bearer {secret}")[0] == 401
    listed = command(service, "token", "list")
    assert (listed.returncode, "lab" in listed.stdout, "token bad is stored as" in listed.stderr) == (0, True, True)
    checked = command(service, "db", "check")
    assert (checked.returncode, "token bad is stored as" in checked.stdout + checked.stderr) == (1, True)
    assert command(service, "token", "revoke", "bad").returncode == 0
    assert command(service, "token", "create", "bad", "--scope", "read").returncode == 0
    assert service.call("GET", "/v1/campaigns", authorization=f"Bearer {service.new_token('other', 'read')}")


def test_a_campaign_that_is_deleted_while_a_claim_is_open_leaves_no_files(service: ServiceLab):
    spec = simulated(budget={"trials": 2}, confirm=0, runner="external")
    id = service.call("POST", "/v1/campaigns", {name: spec[name] for name in spec if name != "workload"})["id"]
    assert service.call("POST", f"/v1/campaigns/{id}:suggest", {"wait_s": 30})["suggestions"]
    spoil(service, "UPDATE campaigns SET spec = '{torn' WHERE id = :id", id)
    service.call("DELETE", f"/v1/campaigns/{id}")
    assert [path for path in service.home.rglob("*") if id in path.name] == []
