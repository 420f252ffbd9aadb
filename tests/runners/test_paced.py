"""A paced runner looks as seldom as it was told to, and still sees everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from meshtune.runners.base import JobState, JobStatus, RunnerUnavailable
from meshtune.runners.batch.throttle import PacedRunner

QUEUED, RUNNING, DONE = (JobStatus(state=state) for state in (JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED))


class Scheduler:
    """Knows the states that a test gives it, and keeps every request."""

    def __init__(self) -> None:
        self.states: dict[str, JobStatus] = {}
        self.requests: list[list[str]] = []
        self.answers = True

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        self.requests.append(list(ids))
        if not self.answers:
            raise RunnerUnavailable("silent")
        return {id: self.states[id] for id in ids}


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


@pytest.fixture
def paced(scheduler, clock) -> PacedRunner:
    return PacedRunner(scheduler, 5.0, lambda: clock[0])


def test_between_two_looks_the_last_one_is_given_again(paced, scheduler, clock):
    scheduler.states = {"a": QUEUED, "b": QUEUED}
    assert paced.poll(["a", "b"]) == {"a": QUEUED, "b": QUEUED}
    scheduler.states = {"a": RUNNING, "b": DONE}
    clock[0] += 4.9
    assert paced.poll(["a", "b"]) == {"a": QUEUED, "b": QUEUED}
    clock[0] += 0.2
    assert paced.poll(["a", "b"]) == {"a": RUNNING, "b": DONE}
    assert scheduler.requests == [["a", "b"]] * 2


def test_what_has_ended_is_not_asked_for_again(paced, scheduler, clock):
    scheduler.states = {"a": DONE, "b": RUNNING}
    paced.poll(["a", "b"])
    clock[0] += 6
    assert paced.poll(["a", "b"]) == {"a": DONE, "b": RUNNING}
    clock[0] += 6
    assert paced.poll(["a"]) == {"a": DONE}
    assert scheduler.requests == [["a", "b"], ["b"]]


def test_a_new_job_is_looked_at_without_waiting(paced, scheduler, clock):
    scheduler.states = {"a": RUNNING, "b": QUEUED}
    paced.poll(["a"])
    assert paced.poll(["a", "b"]) == {"a": RUNNING, "b": QUEUED}
    assert scheduler.requests == [["a"], ["a", "b"]]


def test_a_silent_scheduler_is_asked_again_at_the_next_chance(paced, scheduler, clock):
    scheduler.states, scheduler.answers = {"a": RUNNING}, False
    with pytest.raises(RunnerUnavailable):
        paced.poll(["a"])
    scheduler.answers = True
    assert paced.poll(["a"]) == {"a": RUNNING}
