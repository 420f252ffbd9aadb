"""All campaigns of a process look at a scheduler together, and seldom."""

from __future__ import annotations

import threading

import pytest

from meshtune.runners.base import JobState, JobStatus, RunnerUnavailable
from meshtune.runners.schedulers.batch.shared_look import RETRY_S, SharedLook, SharedRunner, share

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
