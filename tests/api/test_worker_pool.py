"""Work in another process gives what it returns or raises, the tokens in turn, and within bounds of time and memory; it
ends with the service, even in the middle."""

import os
import time
from functools import partial
from itertools import repeat

import pytest

from meshtune.api.errors import TooManyRequests, WorkerEnded
from meshtune.api.worker_pool import MAX_WAITING_EACH, MEMORY_LIMIT_BYTES, WorkerPool
from meshtune.tuner.specs.document import InvalidSpec
from meshtune.tuner.specs.read import parse_spec

pytestmark = pytest.mark.slow

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def pool():
    made = WorkerPool(processes=1, time_limit_s=1.0)
    yield made
    made.stop()


def done(pool, work, *arguments, token="somebody"):
    return pool.submit(token, partial(work, *arguments)).result(LIMIT_S)


def test_one_other_process_does_the_work_and_is_replaced_where_it_dies(pool):
    first, again = done(pool, os.getpid), done(pool, os.getpid)
    assert first == again != os.getpid()
    assert done(pool, os.nice, 0) > os.nice(0)
    with pytest.raises(WorkerEnded, match="has ended"):
        done(pool, os._exit, 1)
    assert done(pool, os.getpid) not in (first, os.getpid())


def test_what_work_raises_is_raised_with_all_its_parts(pool):
    with pytest.raises(InvalidSpec) as caught:
        done(pool, parse_spec, {"seed": -1, "serach": 1}, None)
    assert {"seed", "serach"} <= {problem.path for problem in caught.value.problems}


def test_work_that_needs_too_much_time_or_memory_ends_with_the_number(pool):
    with pytest.raises(WorkerEnded, match="it took longer than 1 s of a processor"):
        done(pool, sum, repeat(1))
    with pytest.raises(WorkerEnded, match="it needs more than 2 GiB"):
        done(pool, bytearray, MEMORY_LIMIT_BYTES)
    assert done(pool, int, "7") == 7


def test_work_that_waits_for_a_processor_is_not_broken_off(pool):
    """Jobs of this machine may hold it for longer than the limit."""
    assert done(pool, time.sleep, 1.5) is None
    with pytest.raises(WorkerEnded, match="it took longer"):
        done(pool, time.sleep, 600)


def test_tokens_take_turns_and_one_that_asks_too_much_waits_for_itself_alone(pool):
    finished = []
    first = pool.submit("greedy", partial(time.sleep, 0.5))
    while not first.running():
        time.sleep(0.01)
    waiting = [pool.submit("greedy", partial(time.sleep, 0.01)) for _ in range(MAX_WAITING_EACH)]
    with pytest.raises(TooManyRequests, match=f"{MAX_WAITING_EACH} requests of this token wait") as refusal:
        pool.submit("greedy", partial(time.sleep, 0.01))
    assert 1 <= int(refusal.value.headers["Retry-After"]) <= 3
    modest = pool.submit("modest", partial(time.sleep, 0.01))
    for name, future in [("modest", modest), *[(f"greedy {number}", one) for number, one in enumerate(waiting)]]:
        future.add_done_callback(lambda _, name=name: finished.append(name))
    for future in (*waiting, modest):
        future.result(LIMIT_S)
    assert finished == ["greedy 0", "modest", *[f"greedy {number}" for number in range(1, MAX_WAITING_EACH)]]


def test_what_is_under_way_or_waits_is_broken_off_at_the_end():
    pool = WorkerPool(processes=1)
    child = done(pool, os.getpid)
    under_way, waiting = (pool.submit("somebody", partial(time.sleep, 600)) for _ in range(2))
    time.sleep(0.2)
    pool.stop()
    for future in (under_way, waiting):
        with pytest.raises(WorkerEnded):
            future.result(LIMIT_S)
    with pytest.raises(WorkerEnded, match="ending"):
        done(pool, int, "7")
    pool.start()
    assert done(pool, os.getpid) != child
    pool.stop()
