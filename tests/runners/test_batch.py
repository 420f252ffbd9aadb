"""What the runners over schedulers share: what was sent is known again after any death, a command is heard out within
its time, and all campaigns of a process look at a scheduler together, and seldom."""

from __future__ import annotations

import os
import subprocess
import threading
import time

import pytest
from jobs import alive, wait_for

from meshtune.runners.base import JobState, JobStatus, RunnerUnavailable
from meshtune.runners.command import call
from meshtune.runners.schedulers.batch.records import Records
from meshtune.runners.schedulers.batch.script import CLAIM_FILE, CLAIMED_CODE, REQUEUED_FILE, SubmitHost, render_body
from meshtune.runners.schedulers.batch.shared_look import RETRY_S, SharedLook, SharedRunner, share
from meshtune.runners.schedulers.slurm.script import SlurmOptions


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
    options = SlurmOptions(setup=("echo $NUMBER >> ran", "sleep 0.2"))
    script = render_body("$NUMBER", SubmitHost(python="", environment={}), "script.sh", options)
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


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("cat; echo $LC_ALL; echo oh >&2; echo no >&2; exit 3", (3, "in\nC\n", "oh\nno\n", "oh no")),
        ("echo out; exit 1", (1, "out\n", "", "out")),
        ("exit 4", (4, "", "", "exit status 4")),
    ],
)
def test_a_command_says_what_it_says(script, expected, monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    answer = call(["sh", "-c", script], time_limit_s=60, stdin="in\n")
    assert (answer.code, answer.out, answer.err, answer.complaint) == expected
    assert call(["/usr/bin/env"], time_limit_s=60, environment={"ONLY": "this"}).out == "ONLY=this\n"


def test_a_command_that_is_not_there_is_unavailable():
    with pytest.raises(RunnerUnavailable, match=r"^no-such-program cannot be run: No such file or directory$"):
        call(["no-such-program"], time_limit_s=60)


def test_a_command_that_does_not_answer_is_ended_with_its_children(tmp_path):
    """A site's wrapper around squeue starts the real one, which holds the pipe."""
    script = f"sh -c 'echo $$ > {tmp_path}/child; exec sleep 60' & wait"
    for limit_s in (0.5, 2.0, 8.0):
        before = time.monotonic()
        with pytest.raises(RunnerUnavailable, match=rf"^sh did not answer within {limit_s:g} s$"):
            call(["sh", "-c", script], time_limit_s=limit_s)
        assert time.monotonic() - before < 40
        if (tmp_path / "child").exists() and (tmp_path / "child").read_text():
            break  # else it was ended before it could say its number
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not alive(child), 10)


def test_nothing_is_left_open():
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        call(["true"], time_limit_s=60)
        with pytest.raises(RunnerUnavailable):
            call(["sleep", "5"], time_limit_s=0.05)
    assert len(os.listdir("/proc/self/fd")) <= open_before


QUEUED, RUNNING, DONE = (JobStatus(state=state) for state in (JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED))


class Scheduler:
    """Knows the states that a test gives it, and keeps every request. One without any is silent."""

    cancel = find = None

    def __init__(self) -> None:
        self.states: dict[str, JobStatus] = {}
        self.requests: list[list[str]] = []
        self.now = 100.0
        self.look = SharedLook(lambda: self.now)

    def runner(self, period_s: float = 5.0) -> SharedRunner:
        return SharedRunner(self, self.look, period_s)

    def submit(self, spec):
        return spec

    def close(self):
        pass

    def poll(self, ids):
        self.requests.append(list(ids))
        if not self.states:
            raise RunnerUnavailable("silent")
        return {id: self.states[id] for id in ids}


def test_between_two_looks_the_last_one_is_given_again_and_what_has_ended_is_not_asked_for():
    scheduler = Scheduler()
    runner = scheduler.runner()
    scheduler.states = {"a": QUEUED, "b": QUEUED}
    assert runner.poll(["a", "b"]) == {"a": QUEUED, "b": QUEUED}
    scheduler.states = {"a": RUNNING, "b": DONE}
    scheduler.now += 4.9
    assert runner.poll(["a", "b"]) == {"a": QUEUED, "b": QUEUED}
    assert runner.answered_ago_s == pytest.approx(4.9)
    for _ in range(2):
        scheduler.now += 5.1
        assert runner.poll(["a", "b"]) == {"a": RUNNING, "b": DONE}
    assert scheduler.requests == [["a", "b"], ["a", "b"], ["a"]]


def test_a_job_that_was_just_sent_waits_for_the_next_look_and_one_that_was_found_does_not():
    scheduler = Scheduler()
    runner = scheduler.runner()
    scheduler.states = {"a": RUNNING, "b": RUNNING}
    runner.poll(["a"])
    assert runner.submit("b") == "b"
    assert runner.poll(["a", "b"])["b"].state is JobState.QUEUED
    assert scheduler.requests == [["a"]]
    other = scheduler.runner()
    assert other.poll(["a"]) == {"a": RUNNING}
    scheduler.states["c"] = RUNNING
    assert other.poll(["c"]) == {"c": RUNNING}
    assert scheduler.requests == [["a"], ["a", "b", "c"]]
    assert runner.poll(["a", "b"])["b"] == RUNNING


def test_one_request_has_the_jobs_of_all_as_often_as_the_most_eager_wants_it():
    scheduler = Scheduler()
    many = [scheduler.runner(period_s) for period_s in (5.0, 2.0, 5.0)]
    scheduler.states = dict.fromkeys("abc", RUNNING)
    for runner, id in zip(many, "abc", strict=True):
        runner.poll([id])
    del scheduler.requests[:]
    for _ in range(100):  # ten seconds
        scheduler.now += 0.1
        for runner, id in zip(many, "abc", strict=True):
            assert runner.poll([id]) == {id: RUNNING}
    assert len(scheduler.requests) in (4, 5)
    assert all(asked == ["a", "b", "c"] for asked in scheduler.requests)
    many[1].close()
    del scheduler.requests[:]
    for _ in range(100):
        scheduler.now += 0.1
        many[0].poll(["a"])
        many[2].poll(["c"])
    assert scheduler.requests in ([["a", "c"]] * 2, [["a", "c"]])


def test_a_silent_scheduler_is_asked_once_for_all_and_soon_again():
    scheduler = Scheduler()
    one, other = scheduler.runner(), scheduler.runner()
    for runner, id in ((one, "a"), (other, "b")):
        with pytest.raises(RunnerUnavailable, match="silent"):
            runner.poll([id])
    assert scheduler.requests == [["a"]]
    scheduler.states = {"a": RUNNING, "b": QUEUED}
    scheduler.now += RETRY_S
    assert other.poll(["b"]) == {"b": QUEUED}
    assert one.poll(["a"]) == {"a": RUNNING}
    assert scheduler.requests == [["a"], ["a", "b"]]


def test_who_asks_during_a_look_of_another_thread_waits_for_its_answer():
    scheduler, began, go_on = Scheduler(), threading.Event(), threading.Event()
    one, other = scheduler.runner(), scheduler.runner()
    scheduler.states = {"a": RUNNING}
    real = scheduler.poll

    def slowly(ids):
        began.set()
        go_on.wait(20)
        return real(ids)

    scheduler.poll = slowly
    found: list[object] = []
    threads = [threading.Thread(target=lambda each=each: found.append(each.poll(["a"]))) for each in (one, other)]
    threads[0].start()
    began.wait(20)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert found == [{"a": RUNNING}] * 2
    assert scheduler.requests == [["a"]]


def test_runners_share_a_look_by_scheduler_and_root(tmp_path):
    first = share(Scheduler(), "slurm", tmp_path, 1.0)
    assert share(Scheduler(), "slurm", tmp_path / ".." / tmp_path.name, 5.0).look is first.look
    assert share(Scheduler(), "pbs", tmp_path, 1.0).look is not first.look
    assert share(Scheduler(), "slurm", tmp_path / "other", 1.0).look is not first.look
