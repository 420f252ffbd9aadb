"""What was sent is known again after any death, of two copies of a job only the first one runs, and a scheduler is
asked seldom."""

from __future__ import annotations

import os
import subprocess

import pytest

from meshtune.runners.base import JobState, JobStatus, RunnerUnavailable
from meshtune.runners.batch.base import Records, ThrottledRunner
from meshtune.runners.batch.script import CLAIM_FILE, CLAIMED_CODE, REQUEUED_FILE, SubmitHost, render_body


@pytest.fixture
def records(tmp_path) -> Records:
    return Records(tmp_path / "root")


@pytest.mark.parametrize("content", [None, "", "{}", '{"name": "job"}'])
def test_what_cannot_be_read_was_perhaps_sent(content, records, tmp_path):
    """Taken for a job that never was, it would be sent again. None: a folder in its place."""
    file = tmp_path / "root" / "jobs" / "job.json"
    file.parent.mkdir(parents=True)
    file.mkdir() if content is None else file.write_text(content)
    with pytest.raises(RunnerUnavailable, match="the record of job cannot be read"):
        records.get("job")
    with pytest.raises(RunnerUnavailable):
        records.of("17")


def test_of_two_copies_of_a_script_one_runs(tmp_path):
    setup = ["echo $NUMBER >> ran", "sleep 0.2"]
    script = render_body("$NUMBER", SubmitHost(python="", environment={}), "script.sh", setup)
    copies = [
        subprocess.Popen(["bash", "-c", script], cwd=tmp_path, env={**os.environ, "NUMBER": str(number)})
        for number in (17, 18, 19)
    ]
    codes = [copy.wait(60) for copy in copies]
    winner = str(17 + codes.index(0))
    assert sorted(codes) == [0, CLAIMED_CODE, CLAIMED_CODE]
    assert (tmp_path / "ran").read_text() == (tmp_path / CLAIM_FILE).read_text() == f"{winner}\n"
    assert not (tmp_path / REQUEUED_FILE).exists()
    again = subprocess.run(["bash", "-c", script], cwd=tmp_path, env={**os.environ, "NUMBER": winner}, check=False)
    assert again.returncode == CLAIMED_CODE
    assert (tmp_path / REQUEUED_FILE).exists()


QUEUED, RUNNING, DONE = (JobStatus(state=state) for state in (JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED))


class Scheduler:
    """Knows the states that a test gives it, and keeps every request."""

    submit = cancel = find = close = None

    def __init__(self) -> None:
        self.states: dict[str, JobStatus] = {}
        self.requests: list[list[str]] = []
        self.now = 100.0
        self.throttled = ThrottledRunner(self, 5.0, lambda: self.now)

    def poll(self, ids):
        self.requests.append(list(ids))
        if not self.states:
            raise RunnerUnavailable("silent")
        return {id: self.states[id] for id in ids}


def test_between_two_looks_the_last_one_is_given_again_and_what_has_ended_is_not_asked_for():
    scheduler = Scheduler()
    scheduler.states = {"a": QUEUED, "b": QUEUED}
    assert scheduler.throttled.poll(["a", "b"]) == {"a": QUEUED, "b": QUEUED}
    scheduler.states = {"a": RUNNING, "b": DONE}
    scheduler.now += 4.9
    assert scheduler.throttled.poll(["a", "b"]) == {"a": QUEUED, "b": QUEUED}
    for _ in range(2):
        scheduler.now += 5.1
        assert scheduler.throttled.poll(["a", "b"]) == {"a": RUNNING, "b": DONE}
    assert scheduler.requests == [["a", "b"], ["a", "b"], ["a"]]


def test_a_new_job_and_one_whose_scheduler_was_silent_are_looked_at_without_waiting():
    scheduler = Scheduler()
    with pytest.raises(RunnerUnavailable):
        scheduler.throttled.poll(["a"])
    scheduler.states = {"a": RUNNING, "b": QUEUED}
    assert scheduler.throttled.poll(["a"]) == {"a": RUNNING}
    assert scheduler.throttled.poll(["a", "b"]) == {"a": RUNNING, "b": QUEUED}
    assert scheduler.requests == [["a"], ["a"], ["a", "b"]]
