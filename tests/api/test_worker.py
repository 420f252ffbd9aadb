"""Work in another process gives what it returns or why it failed, and ends with the service, even in the middle."""

from __future__ import annotations

import os
import threading
import time

import pytest

from meshtune.api.worker import Worker, WorkerEnded, WorkFailed


@pytest.fixture
def worker():
    made = Worker()
    yield made
    made.stop()


def test_work_is_done_by_one_other_process_behind_the_others(worker):
    first, again = worker.run(os.getpid), worker.run(os.getpid)
    assert first == again != os.getpid()
    assert worker.run(os.nice, 0) > os.nice(0)


def test_work_that_fails_tells_where_and_the_next_is_done(worker):
    with pytest.raises(WorkFailed, match="invalid literal"):
        worker.run(int, "x")
    assert worker.run(int, "7") == 7


def test_a_process_that_died_is_told_of_and_another_one_takes_its_place(worker):
    with pytest.raises(WorkerEnded):
        worker.run(os._exit, 1)
    assert worker.run(int, "7") == 7


def test_work_under_way_is_broken_off_at_the_end(worker):
    worker.run(int, "7")
    found: list[Exception] = []

    def wait() -> None:
        try:
            worker.run(time.sleep, 600)
        except WorkerEnded as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not worker._turn.locked():
        time.sleep(0.01)
    worker.stop()
    thread.join(30)
    assert len(found) == 1
    with pytest.raises(WorkerEnded, match="ending"):
        worker.run(int, "7")
    worker.start()
    assert worker.run(int, "7") == 7
