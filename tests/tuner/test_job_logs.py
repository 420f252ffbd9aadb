"""What the service tells of jobs and runners: log files that are still written, polls and their troubles."""

import pytest
from prometheus_client import Counter

from meshtune.runners.base import RunnerUnavailable
from meshtune.tuner.service.clocks import Skews
from meshtune.tuner.service.job_files import MAX_FILES, list_logs, open_log
from meshtune.tuner.service.telemetry import RunnerHealth, ServiceMetrics


def test_a_log_that_grows_is_read_as_long_as_it_was(tmp_path):
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"a" * 100_000)
    log = open_log(tmp_path, "rank-0.log")
    chunks = log.read(0, log.size_bytes)
    first = next(chunks)
    with path.open("ab") as file:
        file.write(b"b" * 100_000)
    assert first + b"".join(chunks) == b"a" * 100_000
    log.close()


def test_a_log_that_was_cut_ends_early(tmp_path):
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"a" * 100_000)
    log = open_log(tmp_path, "rank-0.log")
    path.write_bytes(b"b")
    assert b"".join(log.read(0, log.size_bytes)) == b"b"
    log.close()


def test_a_list_is_bounded(tmp_path):
    for number in range(MAX_FILES + 10):
        (tmp_path / f"rank-{number}.log").touch()
    files = list_logs(tmp_path)
    assert [file.name for file in files] == [f"rank-{number}.log" for number in range(MAX_FILES)]


def test_polls_and_errors_are_counted_by_kind_and_an_answer_ends_the_trouble():
    now = 100.0
    metrics = ServiceMetrics(Counter("changes", "", registry=None), Skews(), lambda: now)

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
    with metrics.polling("slurm", lambda: 4.0):  # an answer that others had before
        pass
    assert metrics.runners()["slurm"] == RunnerHealth(poll_errors=1, answered_at=196.0)
    assert metrics.polls.labels("slurm")._value.get() == 3
