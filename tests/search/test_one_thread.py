"""An ask has one thread for its linear algebra, and leaves to others what they had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from threadpoolctl import ThreadpoolController

from meshtune.search_spaces.columns import Columns
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.space import Space
from meshtune.tuner.search.base import Task
from meshtune.tuner.search.physics.prior import Rows, rows_of
from meshtune.tuner.search.physics.search import PhysicsSearch, one_thread


def threads() -> list[int]:
    """Of each library of linear algebra in this process."""
    return [library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()]


def test_the_limit_is_lifted_again_also_after_an_error() -> None:
    def fail() -> None:
        with one_thread:
            assert set(threads()) == {1}
            raise KeyError

    with ThreadpoolController().limit(limits=2, user_api="blas"):
        with pytest.raises(KeyError):
            fail()
        assert set(threads()) == {2}


def test_an_ask_has_one_thread(space: Space, task: Callable[..., Task]) -> None:
    seen: list[list[int]] = []

    def looking(training: Training, columns: Columns, campaign: int = 0, **how: Any) -> Rows:
        seen.append(threads())
        return rows_of(training, columns, campaign, **how)

    with ThreadpoolController().limit(limits=2, user_api="blas"):
        PhysicsSearch(0, rows_of=looking).ask(task(space), [], 2)
    assert seen
    assert {count for each in seen for count in each} == {1}
