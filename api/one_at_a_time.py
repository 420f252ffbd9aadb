"""Asks a question that may hang, such as one to a paused database, once at a time and waits no longer than it is told.

Who asks while an earlier question hangs waits for its answer: however many ask, one thread is lost to it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class OneAtATime(Generic[T]):
    """`question`, asked on a thread of its own, which keeps no process from ending."""

    def __init__(self, question: Callable[[], T]) -> None:
        self._question = question
        self._lock = threading.Lock()
        self._asked: Future[T] | None = None

    async def ask(self, limit_s: float) -> T:
        """The answer. Raises TimeoutError after limit_s, and what the question raises."""
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._answer())), limit_s)

    def _answer(self) -> Future[T]:
        with self._lock:
            if self._asked is None or self._asked.done():
                self._asked = Future()
                threading.Thread(target=self._run, args=(self._asked,), name="question", daemon=True).start()
            return self._asked

    def _run(self, answer: Future[T]) -> None:
        try:
            answer.set_result(self._question())
        except BaseException as error:
            answer.set_exception(error)
