"""The home of an older meshtune in a newer one's hands: all that it held is shown, and what was under way goes on.

The home is one that real campaigns of schema 0100 left (`recorded_home`), on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_lab import run_meshtune
from postgres_lab import PostgresLab
from recorded_home import RECORDED, load
from service_lab import ServiceLab

from meshtune.tuner.campaign.campaign import Home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Columns of a table of trials that say what happened. The others are computed from it, and may be computed better.
FACTS = (
    *("campaign", "number", "origin", "round", "state", "verdict", "failure", "reason", "plan", "tp", "pp", "dp", "cp"),
    *("ep", "vpp", "micro_batch_size", "grad_accum_steps", "zero_stage", "recompute", "schedule", "context", "nodes"),
    *("planned_at", "submitted_at", "started_at", "finished_at", "attempts"),
)
# What the REST API says of a campaign, by its path; what takes seconds is asked of one.
OF_A_CAMPAIGN = ("", "/events", "/trials", "/best", "/pareto", "/record", "/data", "/space")
OF_ONE = ("/analysis", "/report")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresLab]:
    with PostgresLab() as lab:
        yield lab


@pytest.fixture(params=["file", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.long])])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of the home's database; empty for the file in it."""
    home = Home(tmp_path / "home")
    home.root.mkdir()
    if request.param == "file":
        load(home.database_url, home.root)
        yield ""
    else:
        server: PostgresLab = request.getfixturevalue("server")
        url = server.create("old_home")
        load(url, home.root)
        yield url
        server.drop("old_home")


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def recorded() -> dict[str, list[dict[str, str]]]:
    """What 0.1.0 exported, by campaign."""
    tables = [read(path) for path in RECORDED.glob("*.csv")]
    return {table[0]["campaign"]: table for table in tables}


def test_commands_show_all_that_an_old_home_held(db: str, tmp_path: Path):
    place = ("--home", "home", *(("--db", db) if db else ()))

    def said(*words: str) -> str:
        done = run_meshtune(tmp_path, *words, *place)
        assert (done.code, "Traceback" in done.out + done.err) == (0, False), done
        return done.out

    ids = recorded().keys()
    listed = said("show", "--all")
    assert all(id in listed for id in ids)
    for id, was in recorded().items():
        said("export-data", id, "-o", str(tmp_path / f"{id}.csv"))
        now = read(tmp_path / f"{id}.csv")
        assert [[row[name] for name in FACTS] for row in now] == [[row[name] for name in FACTS] for row in was]
        said("show", id)
        measured = [row["plan"] for row in was if row["verdict"] == "ok"]
        best = run_meshtune(tmp_path, "best", id, *place)
        assert not measured or any(plan in best.out for plan in measured), best
    few = [next(id for id in ids if id.startswith(name)) for name in ("toy", "script")]
    said("analyze", few[0])
    said("report", *few, "-o", str(tmp_path / "report.html"))
    assert "toy" in said("calibrate", "--list")
    assert "nothing is wrong" in said("db", "check")
    for name in ("ann", "bob", "eve"):
        assert name in said("token", "list")


def test_a_service_shows_an_old_home_and_ends_what_was_under_way(db: str, tmp_path: Path):
    place = ("--home", "home", *(("--db", db) if db else ()))
    assert run_meshtune(tmp_path, "token", "revoke", "lab", *place).code == 0  # its secret is not recorded
    with ServiceLab(tmp_path, db) as service:
        page = service.call("GET", "/v1/campaigns")["campaigns"]
        ids = {each["name"]: each["id"] for each in page}
        assert set(ids.values()) == recorded().keys()
        for name, id in ids.items():
            for path in (*OF_A_CAMPAIGN, *(OF_ONE if name == "toy" else ())):
                assert ask(service, f"/v1/campaigns/{id}{path}") in (200, 409), (id, path)
            for trial in trials(service, id):
                whole = service.call("GET", f"/v1/campaigns/{id}/trials/{trial['number']}")
                assert whole["plan_key"] == trial["plan_key"]
        assert "token create" in str(service.call("GET", "/v1/audit"))
        asked, resting = ids["asked"], ids["resting"]
        (claimed,) = [each["number"] for each in trials(service, asked) if each["state"] == "running"]
        tell(service, asked, claimed)
        while (found := suggested(service, asked))["state"] == "running":
            for each in found["suggestions"]:
                tell(service, asked, each["trial"])
        assert found["state"] == "completed"
        service.call("POST", f"/v1/campaigns/{resting}:resume")
        service.wait_state(resting, "completed")
        service.call("POST", f"/v1/campaigns/{ids['toy']}/trials/1:rerun")
        service.wait_state(ids["toy"], "completed")
        copy = service.call("POST", f"/v1/campaigns/{ids['faults']}:clone", {})["id"]
        service.wait_state(copy, "completed")
        for id in (asked, resting, ids["toy"]):
            numbers = [each["number"] for each in trials(service, id)]
            assert numbers == list(range(len(numbers)))
            assert all(each["state"] == "done" for each in trials(service, id))
    assert "nothing is wrong" in run_meshtune(tmp_path, "db", "check", *place).out


def ask(service: ServiceLab, path: str) -> int:
    """The status alone: not all answers are JSON."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(f"{service.url}{path}", headers={"authorization": f"Bearer {service.token}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def trials(service: ServiceLab, id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.call("GET", f"/v1/campaigns/{id}/trials")["trials"]
    return found


def suggested(service: ServiceLab, id: str) -> dict[str, Any]:
    answer: dict[str, Any] = service.call("POST", f"/v1/campaigns/{id}:suggest", {"wait_s": 5})
    return answer


def tell(service: ServiceLab, id: str, trial: int) -> None:
    service.call("POST", f"/v1/campaigns/{id}/trials/{trial}:complete", {"step_times_s": [0.3, 0.31, 0.3]})
