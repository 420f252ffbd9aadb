"""Work in another process gives what it returns or raises, and ends with the service, even in the middle."""

import os
import threading
import time

import pytest

from meshtune.api.analysis_process import AnalysisProcess
from meshtune.api.errors import WorkerEnded


@pytest.fixture
def process():
    made = AnalysisProcess()
    yield made
    made.stop()


def test_work_is_done_by_one_other_process_behind_the_others(process):
    first, again = process.run(os.getpid), process.run(os.getpid)
    assert first == again != os.getpid()
    assert process.run(os.nice, 0) > os.nice(0)


def test_what_work_raises_is_raised_and_a_process_that_died_is_replaced(process):
    with pytest.raises(ValueError, match="invalid literal"):
        process.run(int, "x")
    with pytest.raises(WorkerEnded):
        process.run(os._exit, 1)
    assert process.run(int, "7") == 7


def test_work_under_way_is_broken_off_at_the_end(process):
    child = process.run(os.getpid)
    found: list[Exception] = []

    def wait() -> None:
        try:
            process.run(time.sleep, 600)
        except WorkerEnded as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    process.stop()
    thread.join(30)
    assert len(found) == 1
    with pytest.raises(WorkerEnded, match="ending"):
        process.run(int, "7")
    process.start()
    assert process.run(os.getpid) != child
