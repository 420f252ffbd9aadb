"""What every runner promises of any job, whatever it is made of: simulated ones keep it too, on their own clock."""

from __future__ import annotations

import pytest

from meshtune.runners.base import InvalidJob, JobState

UNKNOWN = ("jo", "job ", "", ".", "..", "../job", "a/b", "x" * 300, "nul\0")


def test_a_job_that_ends_well_has_succeeded_and_stays_as_it_is(life):
    id = life.short("good")
    done = life.wait(id)
    assert (done.state, done.exit_code, done.reason) == (JobState.SUCCEEDED, 0, "")
    assert done.started_at <= done.finished_at
    life.runner.cancel(id)
    life.pass_time(0.2)
    assert life.status(id) == done
    life.runner.cancel("never-submitted")


def test_a_running_job_says_so_and_can_be_cancelled(life):
    id = life.long("long")
    running = life.wait(id, JobState.RUNNING)
    assert (running.exit_code, running.finished_at) == (None, None)
    assert running.started_at is not None
    life.runner.cancel(id)
    life.runner.cancel(id)
    status = life.wait(id)
    assert (status.state, status.reason) == (JobState.CANCELLED, "cancelled")


def test_queued_jobs_can_be_cancelled_wherever_they_stand(life):
    first = life.long("first", processes=life.slots)
    life.wait(first, JobState.RUNNING)
    second, third, fourth = (life.short(name, processes=3) for name in ("second", "third", "fourth"))
    life.runner.cancel(third)
    assert life.wait(third).state is JobState.CANCELLED
    assert life.status(third).started_at is None
    assert life.status(second).state is JobState.QUEUED
    life.runner.cancel(second)
    assert life.wait(second).state is JobState.CANCELLED
    life.runner.cancel(first)
    assert life.wait(fourth).state is JobState.SUCCEEDED
    assert not life.ran("third")
    assert life.ran("fourth")


def test_a_job_cancelled_at_once_ends_cancelled(life):
    id = life.long("short")
    life.runner.cancel(id)
    assert life.wait(id).state is JobState.CANCELLED


def test_a_job_is_found_by_its_name_in_every_state(life):
    assert life.runner.find("job") is None
    blocker = life.long("blocker", processes=life.slots)
    id = life.short("job")
    assert life.runner.find("job") == id
    life.wait(blocker, JobState.RUNNING)
    life.runner.cancel(blocker)
    life.wait(id)
    assert life.runner.find("job") == id
    assert life.runner.find("blocker") == blocker


def test_what_was_never_submitted_is_lost_and_not_found(life):
    life.short("job")
    for name in UNKNOWN:
        assert life.runner.find(name) is None
        status = life.status(name)
        assert status.state is JobState.LOST
        assert status.reason
    ids = [life.short(f"job{number}") for number in range(3)]
    statuses = life.runner.poll([*ids, "unknown"])
    assert set(statuses) == {*ids, "unknown"}
    assert [statuses[id].state is JobState.LOST for id in (*ids, "unknown")] == [False, False, False, True]
    assert life.runner.poll([]) == {}


def test_names_unfit_for_a_file_are_refused_and_leave_nothing(life):
    for name in ("a/b", "..", ".hidden", "", "a b", "x" * 201, "line\n"):
        with pytest.raises(InvalidJob, match=r"job name .*200 characters at most"):
            life.short(name)
        assert life.runner.find(name) is None
    assert not (life.folder / "work").exists()
