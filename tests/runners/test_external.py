"""Jobs of the external runner: claimed by one program each, over when it tells a result or its time is up.

What any runner promises of any job is in test_life_cycle.py.
"""

from __future__ import annotations

import fcntl
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from external_jobs import ExternalLaboratory

from meshtune.runners.base import JobState, WorkerLease
from meshtune.runners.schedulers.external import NotClaimed, create
from meshtune.runners.schedulers.file_queue import CLAIMS, OVER
from meshtune.search_spaces.checks import InvalidValue


@pytest.fixture
def lab(tmp_path: Path) -> ExternalLaboratory:
    return ExternalLaboratory(tmp_path)


def names(jobs) -> list[str]:
    return [job.name for job in jobs]


def test_a_job_waits_until_it_is_claimed_and_has_its_files_by_then(lab):
    id = lab.runner.submit(lab.spec_of("job", files={"plan.json": "{}"}))
    lab.now += 1e6
    waits = lab.status(id)
    assert (waits.state, waits.reason) == (JobState.QUEUED, "waits for a program that claims it")
    (job,) = lab.runner.claim([id, "unknown"], 5)
    assert job.command == ("train", "--tp", "2")
    assert (job.directory / "plan.json").read_text() == "{}"
    assert (lab.status(id).state, lab.status(id).started_at) == (JobState.RUNNING, lab.now)


def test_of_programs_that_claim_at_once_each_gets_another_job(lab):
    jobs = [lab.runner.submit(lab.spec_of(f"job-{number}")) for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        claimed = list(pool.map(lambda _: names(lab.open().claim(jobs, 2)), range(8)))
    assert sorted(name for each in claimed for name in each) == sorted(jobs)
    assert max(map(len, claimed)) == 2


def test_the_same_request_gets_the_same_jobs_as_long_as_they_are_open(lab):
    jobs = [lab.runner.submit(lab.spec_of(f"job-{number}")) for number in range(3)]
    assert names(lab.runner.claim(jobs, 2, "a")) == names(lab.open().claim(jobs, 1, "a")) == jobs[:2]
    assert names(lab.runner.claim(jobs, 2, "b")) == jobs[2:]
    for name in jobs[:2]:
        lab.tell(name)
    assert lab.runner.claim(jobs, 2, "a") == []


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_claimed_job_runs_until_somebody_tells_whatever_the_clock_says(lab, jump_s):
    id = lab.runner.submit(lab.spec_of("job"))
    lab.runner.claim([id], 1)
    lab.now += jump_s
    assert lab.status(id).state is JobState.RUNNING
    with lab.runner.telling(id):
        pass
    lab.tell(id)
    assert lab.status(id).state is JobState.SUCCEEDED


def test_a_claim_is_one_programs_where_no_lock_holds(lab, monkeypatch):
    """As between two machines whose file server keeps locks to each."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    jobs = [lab.runner.submit(lab.spec_of(f"job-{number}")) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        claimed = list(pool.map(lambda _: names(lab.open().claim(jobs, 5)), range(16)))
    assert sorted(name for each in claimed for name in each) == sorted(jobs)


def test_of_two_reports_the_longer_counts_in_any_order_until_the_worker_starts_anew(lab):
    jobs = [lab.runner.submit(lab.spec_of(f"job-{number}")) for number in range(3)]
    lease = WorkerLease(worker="w1", seconds=60.0)
    assert names(lab.runner.claim(jobs, 2, claimant="me", lease=lease)) == jobs[:2]
    for times in ([1.0], [1.0, 1.1], [1.0], []):
        lab.open().heartbeat(jobs[0], times)
    assert lab.status(jobs[0]).lease == replace(lease, heard=4, step_times_s=(1.0, 1.1))
    assert names(lab.runner.claim(jobs, 1, claimant="me", lease=lease)) == jobs[:1]
    assert lab.status(jobs[0]).lease == replace(lease, heard=5)
    assert names(lab.runner.claim(jobs, 3, claimant="you", lease=lease)) == jobs[2:]
    lab.tell(jobs[0])
    assert lab.runner.heartbeat(jobs[0], [1.0]).state is JobState.SUCCEEDED
    assert lab.status(jobs[0]).lease is None
    assert lab.runner.heartbeat("unknown", [1.0]) is None
    assert names(lab.runner.claim(jobs, 3, claimant="me", lease=lease)) == [jobs[1]]


def test_a_claim_of_an_older_version_holds(lab):
    id = lab.runner.submit(lab.spec_of("job"))
    path = lab.folder / "root" / "jobs" / id
    known = json.loads(path.read_text())
    del known["claimant"], known["lease"]
    (lab.folder / "root" / CLAIMS).rmdir()
    written = {"time_limit_s": 60.0, "submitted_at": 990.0, "claimed_at": lab.now, "claimed_by": "word"}
    path.write_text(json.dumps(known | written))
    assert lab.runner.claim([id], 1) == []
    assert names(lab.runner.claim([id], 1, "word")) == [id]
    assert lab.status(id).lease == WorkerLease()
    assert lab.open().heartbeat(id, [1.0]).lease == WorkerLease(heard=1, step_times_s=(1.0,))
    assert lab.status(id).state is JobState.RUNNING


def test_only_what_is_claimed_can_be_told_of(lab):
    id = lab.runner.submit(lab.spec_of("job"))
    with pytest.raises(NotClaimed, match="nobody has claimed it"), lab.runner.telling(id):
        pass
    lab.runner.claim([id], 1, claimant="me")
    with lab.runner.telling(id) as claimant:
        assert claimant == "me"
    lab.runner.cancel(id)
    with pytest.raises(NotClaimed, match="its job is cancelled"), lab.runner.telling(id):
        pass


def test_a_process_that_died_between_two_writes_leaves_a_job_that_is_over(lab):
    id = lab.runner.submit(lab.spec_of("job"))
    lab.runner.claim([id], 1)
    open_file = lab.folder / "root" / "jobs" / id
    text = open_file.read_text()
    lab.tell(id)
    ended = lab.status(id)
    open_file.write_text(text)  # as if it had died before it removed the file
    assert lab.status(id) == ended
    assert lab.runner.claim([id], 1) == []
    assert [path.name for path in (lab.folder / "root" / OVER).iterdir()] == [id]


def test_it_has_no_options(tmp_path):
    with pytest.raises(InvalidValue, match="slots: is not a known key"):
        create(tmp_path, None, {"slots": 2})
