"""Long work has one turn, and short work passes it by."""

import asyncio
import threading

import pytest

from meshtune.api.makers import Awaited, Turns, awaited, make


def test_long_work_takes_turns_and_short_work_passes_it():
    gate, running, most = threading.Event(), [0], [0]

    def long() -> str:
        running[0] += 1
        most[0] = max(most[0], running[0])
        gate.wait(30)
        running[0] -= 1
        return "long"

    async def all_of_it() -> list[str]:
        # More than the pool has threads: none of them is taken while they wait.
        waiting = [asyncio.create_task(make(Turns.LONG, long)) for _ in range(60)]
        while not running[0]:
            await asyncio.sleep(0.01)
        assert await asyncio.wait_for(make(Turns.SHORT, str, "short"), 30) == "short"
        assert await asyncio.wait_for(asyncio.to_thread(str, "pool"), 30) == "pool"
        gate.set()
        return await asyncio.gather(*waiting)

    assert set(asyncio.run(all_of_it())) == {"long"}
    assert most == [1]


def test_what_work_raises_is_raised_and_its_turn_is_over():
    async def twice() -> None:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await make(Turns.LONG, lambda: 1 // 0)

    asyncio.run(twice())


def test_what_is_made_ahead_gives_way_while_a_request_waits():
    waiting, way = Awaited(), threading.Event()
    waiting.add(1)
    waiting.add(1)
    thread = threading.Thread(target=lambda: (waiting.give_way(60), way.set()))
    thread.start()
    waiting.add(-1)
    assert not way.wait(0.05)
    waiting.add(-1)
    thread.join(30)
    assert way.is_set()


def test_it_gives_way_for_so_long_and_no_longer():
    waiting = Awaited()
    waiting.add(1)
    waiting.give_way(0.01)


@pytest.mark.parametrize(("turns", "counts"), [(Turns.LONG, 1), (Turns.SHORT, 1), (Turns.ANALYSIS, 0), (Turns.LOOK, 0)])
def test_a_request_waits_while_its_answer_is_made_in_this_process(turns, counts):
    def fail() -> None:
        assert awaited._count == counts
        raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(make(turns, fail))
    assert awaited._count == 0
