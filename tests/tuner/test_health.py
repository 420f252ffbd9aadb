"""What polls say of a runner."""

import pytest

from meshtune.runners.base import RunnerUnavailable
from meshtune.tuner.service.health import Health, RunnerHealth


def fail(health: Health, message: str) -> None:
    with health.polling("slurm"):
        raise RunnerUnavailable(message)


def test_polls_and_errors_are_counted_by_kind():
    now = 100.0
    health = Health(lambda: now)
    with health.polling("slurm"):
        pass
    now = 200.0
    with pytest.raises(RunnerUnavailable):
        fail(health, "squeue timed out")
    with health.polling("local"):
        pass
    assert health.runners() == {
        "slurm": RunnerHealth(polls=2, poll_errors=1, answered_at=100.0, trouble="squeue timed out"),
        "local": RunnerHealth(polls=1, poll_errors=0, answered_at=200.0),
    }


def test_an_answer_ends_the_trouble_and_keeps_the_count():
    health = Health(lambda: 1.0)
    with pytest.raises(RunnerUnavailable):
        fail(health, "no")
    with health.polling("slurm"):
        pass
    assert health.runners()["slurm"] == RunnerHealth(polls=2, poll_errors=1, answered_at=1.0)


def test_a_defect_of_ours_is_not_the_runners():
    health = Health(lambda: 1.0)
    with pytest.raises(ZeroDivisionError), health.polling("slurm"):
        raise ZeroDivisionError
    assert health.runners() == {}
