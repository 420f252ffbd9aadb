"""Long work has one turn, and short work passes it by."""

import asyncio
import threading

import pytest

from api.makers import Turns, make


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
        await asyncio.sleep(0.1)
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
