"""GET /healthz and /readyz: whether this process lives, and whether it can do its work; answered within a few seconds
even where the database hangs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from importlib.metadata import version
from typing import Generic, TypeVar

from fastapi import APIRouter
from starlette.exceptions import HTTPException

from meshtune.api import errors
from meshtune.api.openapi import problems
from meshtune.api.schemas.campaigns import HealthView
from meshtune.api.stream_hub import StreamHub

T = TypeVar("T")
# Shorter than a balancer waits for an answer.
LIMIT_S = 4.0


class SharedCall(Generic[T]):
    """Calls a function that may hang, such as a query to a paused database, on a daemon thread, one call at a time.

    Further callers wait for the call under way: however many wait, one thread is lost to a call that hangs.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._call: Future[T] | None = None

    async def result(self, limit_s: float) -> T:
        """The function's result. Raises TimeoutError after limit_s, and what the function raises."""
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._started())), limit_s)

    def _started(self) -> Future[T]:
        with self._lock:
            if self._call is None or self._call.done():
                self._call = Future()
                threading.Thread(target=self._run, args=(self._call,), name="shared call", daemon=True).start()
            return self._call

    def _run(self, call: Future[T]) -> None:
        try:
            call.set_result(self._function())
        except BaseException as error:
            call.set_exception(error)


class Readiness:
    """check: returns when the database answers and takes writes."""

    def __init__(self, check: Callable[[], None], hub: StreamHub) -> None:
        self._hub = hub
        self._check = SharedCall(check)
        # The thread that drives the campaigns; None where nobody started one.
        self.driver: threading.Thread | None = None

    async def trouble(self) -> str:
        """What is wrong here, empty where nothing is. Raises what the check raises."""
        try:
            await self._check.result(LIMIT_S)
        except TimeoutError:
            return f"the database has not answered within {LIMIT_S:g} s"
        if self.driver is not None and not self.driver.is_alive():
            return "the thread that drives the campaigns has died; restart"
        if self.driver is not None and not self._hub.running:
            return "the thread that reads the events has died, or the service is ending"
        return ""


def router(readiness: Readiness) -> APIRouter:
    """The routes, which run on the event loop: they answer while every thread of the pool is busy."""
    made = APIRouter(tags=["health"])
    healthy = HealthView(status="ok", version=version("meshtune"))

    @made.get("/healthz")
    async def live() -> HealthView:
        """The process answers."""
        return healthy

    @made.get("/readyz", responses=problems(503))
    async def ready() -> HealthView:
        """The database answers and takes writes, and campaigns are driven; 503 when not."""
        if trouble := await readiness.trouble():
            raise HTTPException(503, trouble, errors.RETRY_AFTER)
        return healthy

    return made
