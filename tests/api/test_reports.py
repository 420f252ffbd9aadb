"""A job hands in its result over HTTP: with its own token, for itself alone, once, while it is in flight."""

import json
import os
import stat
import time
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from meshtune.runners import report
from meshtune.runners.base import JobSpec
from meshtune.runners.outcome import RESULT_FILE, Verdict, parse_result, read_result
from meshtune.tuner.campaign.trial import Choice, Origin
from meshtune.tuner.service.job_files import SLACK_S, Reports, token_of

OOM = {"version": 1, "verdict": "oom", "reason": "rank 0 is out of memory", "failed_rank": 0}


@pytest.fixture
def flying(service, create, client) -> tuple[str, str]:
    """A campaign and the name of its job, which is in flight."""
    id = create()
    campaign = service.store.campaign(id)
    [trial] = service.store.plan_trials(id, [Choice(campaign.spec.baseline)], Origin.BASELINE, now=1.0)
    service.store.mark_submitted(id, 0, "job-1", now=2.0)
    return id, trial.last.job_name


@pytest.fixture
def reports(service) -> Reports:
    service.reports.url = "http://here:8000/prefix"
    return service.reports


def job_of(service, id: str, name: str) -> JobSpec:
    return JobSpec(name=name, command=("true",), directory=service.home.job(id, name), time_limit_s=60.0)


@pytest.fixture
def nobody(app) -> TestClient:
    return TestClient(app)


@pytest.fixture
def shown(service, reports, flying) -> dict[str, str]:
    """The header of the job's own token, from its folder."""
    id, name = flying
    reports.equip(job_of(service, id, name), time.time())
    return {"Authorization": f"Bearer {(service.home.job(id, name) / report.TOKEN_FILE).read_text()}"}


def test_a_jobs_token_opens_no_other_job_and_no_other_route_and_no_other_token_opens_it(
    nobody, client, flying, shown, problem
):
    url = f"/v1/reports/{flying[1]}"
    for header in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer 99999999999.00"}, client.headers):
        problem(nobody.put(url, json=OOM, headers=header), 401, "/problems/report-refused")
    problem(nobody.put(f"{url}x", json=OOM, headers=shown), 401, "/problems/report-refused")
    problem(nobody.get("/v1/campaigns", headers=shown), 401, "/problems/unauthenticated")


def test_a_job_hands_in_its_result_once_with_its_own_token(nobody, service, flying, shown):
    id, name = flying
    response = nobody.put(f"/v1/reports/{name}", json=OOM, headers=shown)
    assert (response.status_code, response.content) == (204, b"")
    other = OOM | {"verdict": "crashed", "reason": "later"}
    assert nobody.put(f"/v1/reports/{name}", json=other, headers=shown).status_code == 204
    assert read_result(service.home.job(id, name)).verdict is Verdict.OOM
    assert [path.name for path in service.home.job(id, name).glob(".result*")] == []


def test_a_token_ends_with_the_jobs_time_and_its_slack(reports, service, flying):
    id, name = flying
    reports.equip(job_of(service, id, name), 1000.0)
    token = (service.home.job(id, name) / report.TOKEN_FILE).read_text()
    reports.check(name, token, 1000.0 + 59.0 + SLACK_S)
    with pytest.raises(Exception, match="has expired"):
        reports.check(name, token, 1000.0 + 60.0 + SLACK_S)
    later = token.replace(token.partition(".")[0], "99999999999")
    with pytest.raises(Exception, match="not the token"):
        reports.check(name, later, 1000.0)


def test_a_job_that_is_over_reports_no_more(nobody, service, flying, shown, problem):
    id, name = flying
    outcome = parse_result(json.dumps(OOM))
    service.store.finish(id, 0, outcome, started_at=3.0, finished_at=4.0, now=5.0)
    problem(nobody.put(f"/v1/reports/{name}", json=OOM, headers=shown), 404, "/problems/not-found")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[]", "must be an object"),
        (b'{"version": 1, "verdict": "ok"}', "measurement"),
        (b'{"version": 9}', "version"),
    ],
)
def test_what_is_no_result_is_refused_and_not_kept(nobody, service, flying, shown, problem, content, told):
    id, name = flying
    response = nobody.put(f"/v1/reports/{name}", content=content, headers=shown)
    assert told in problem(response, 422, "/problems/malformed-result")["detail"]
    assert not (service.home.job(id, name) / RESULT_FILE).exists()
    huge = nobody.put(f"/v1/reports/{name}", content=b" " * 1_000_001, headers=shown)
    problem(huge, 413, "about:blank")


def test_the_token_and_the_key_are_their_owners_alone_and_the_key_is_made_once(service, reports, flying):
    id, name = flying
    equipped = reports.equip(job_of(service, id, name), 1000.0)
    files = [service.home.job(id, name) / report.TOKEN_FILE, service.home.report_key]
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in files] == [0o600, 0o600]
    key = files[1].read_bytes()
    assert len(key) == 64
    Reports(service.home, "http://x").equip(job_of(service, id, name), 2000.0)
    assert files[1].read_bytes() == key
    assert Reports(service.home, "").equip(job_of(service, id, name), 1000.0) == job_of(service, id, name)
    assert equipped.env == {"MESHTUNE_REPORT_URL": f"http://here:8000/prefix/v1/reports/{name}"}
    token = files[0].read_text()
    assert token not in str(replace(equipped, directory=files[0].parent))
    assert token_of(key, name, int(token.partition(".")[0])) == token


def test_a_campaigns_jobs_get_their_address_and_token(service, reports, runner, create, drive, monkeypatch):
    sent: list[JobSpec] = []

    def submit(spec: JobSpec) -> str:
        sent.append(spec)
        return spec.name

    runner.hold = True
    monkeypatch.setattr(runner, "submit", submit)
    id = create(budget={"trials": 1})
    service.tick(id)
    service.tick(id)
    [job] = sent
    assert job.env["MESHTUNE_REPORT_URL"] == f"http://here:8000/prefix/v1/reports/{job.name}"
    token = (job.directory / report.TOKEN_FILE).read_text()
    reports.check(job.name, token, time.time())
    assert token not in str(job)
