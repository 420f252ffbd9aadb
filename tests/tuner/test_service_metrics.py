"""The state of runners, as polls tell it."""

import pytest
from prometheus_client import Counter

from meshtune.runners.base import RunnerUnavailable
from meshtune.tuner.service.telemetry import RunnerHealth, ServiceMetrics


def test_polls_and_errors_are_counted_by_kind_and_an_answer_ends_the_trouble():
    now = 100.0
    metrics = ServiceMetrics(Counter("changes", "", registry=None), lambda: now)

    def poll(kind: str, error: Exception | None = None) -> None:
        with metrics.polling(kind):
            if error:
                raise error

    poll("slurm")
    now = 200.0
    poll("local")
    with pytest.raises(RunnerUnavailable):
        poll("slurm", RunnerUnavailable("squeue timed out"))
    with pytest.raises(ZeroDivisionError):  # a defect of ours
        poll("slurm", ZeroDivisionError())
    assert metrics.runners() == {
        "slurm": RunnerHealth(poll_errors=1, answered_at=100.0, trouble="squeue timed out"),
        "local": RunnerHealth(answered_at=200.0),
    }
    poll("slurm")
    assert metrics.runners()["slurm"] == RunnerHealth(poll_errors=1, answered_at=200.0)
