"""GET /healthz and /readyz: whether this process lives, and can do its work; answered within seconds even where the
database or a disk hangs."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from fastapi import APIRouter, Depends
from starlette.exceptions import HTTPException

from meshtune.api import errors
from meshtune.api.dependencies import state
from meshtune.api.openapi import problems
from meshtune.api.stream_hub import StreamHub
from meshtune.runners.command import answered
from meshtune.tuner.service.driving.loop import ALL, Driver
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import StoreError

T = TypeVar("T")
router = APIRouter(tags=["health"])
# Shorter than a balancer waits for an answer; a scrape answers without the store's figures rather than not at all.
LIMIT_S = 4.0
# A row that was written counts for so long: nobody without a token keeps the database writing.
WRITTEN_EVERY_S = 1.0
# Since the last sign of life of the threads: a tick may ask a search for long, and the others wait for the database.
DRIVER_LIMIT_S = 120.0
THREAD_LIMIT_S = 30.0
# A job's files and SQLite's log of a busy minute have less.
FREE_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthView:
    status: str
    version: str


HEALTHY = HealthView(status="ok", version=version("meshtune"))


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
        with self._lock:
            if self._call is None or self._call.done():
                self._call = answered(self._function, "shared call")
            call = self._call
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(call)), limit_s)


class Readiness:
    """Whether the service can do its work, and what keeps it from that."""

    def __init__(self, service: Service, driver: Driver, hub: StreamHub) -> None:
        self._driver, self._hub = driver, hub
        self._holder = service.sessions.holder
        self._database = SharedCall(lambda: service.store.check())
        folders = {"the home": service.home.root}
        if service.store.file is not None:
            folders["the database"] = service.store.file.parent
        self._disks = SharedCall(lambda: full_disks(folders))
        # The thread that drives the campaigns; None where nobody started one.
        self.thread: threading.Thread | None = None
        self._written_until = 0.0

    async def troubles(self) -> list[str]:
        """All that is wrong, empty where nothing is; LIMIT_S after the question at the latest."""
        looks = (self._look_at_database(), self._look_at_disks())
        return [trouble for troubles in await asyncio.gather(*looks) for trouble in troubles] + self._threads()

    async def _look_at_database(self) -> list[str]:
        if time.monotonic() < self._written_until:
            return []
        try:
            await self._database.result(LIMIT_S)
            self._written_until = time.monotonic() + WRITTEN_EVERY_S
        except TimeoutError:
            return [f"the database has not answered within {LIMIT_S:g} s"]
        except StoreError as error:
            return [str(error)]
        return []

    async def _look_at_disks(self) -> list[str]:
        try:
            return await self._disks.result(LIMIT_S)
        except TimeoutError:
            return [f"the disks have not told their free space within {LIMIT_S:g} s"]

    def _threads(self) -> list[str]:
        """What is wrong with the threads and with what they do."""
        if self.thread is None:
            return []
        if not self.thread.is_alive():
            driver = "the thread that drives the campaigns has ended"
        else:
            driver = self._driver.heartbeat.trouble("the thread that shares campaigns out", DRIVER_LIMIT_S)
        lanes = [
            beat.trouble(f"the thread that drives the campaigns of {scheduler}", DRIVER_LIMIT_S)
            for scheduler, beat in sorted(self._driver.lanes.items())
        ]
        if not self._hub.running:
            events = "the thread that reads the events has ended, or the service is ending"
        else:
            events = self._hub.heartbeat.trouble("the thread that reads the events", THREAD_LIMIT_S)
        leases = self._holder.heartbeat.trouble("the thread that renews the leases", THREAD_LIMIT_S)
        undriven = str(self._driver.troubles.get(ALL, ""))
        driven = undriven and f"no campaign is driven: {undriven}"
        troubles = (driver, *lanes, driven, events, leases, self._holder.trouble)
        return [each for each in troubles if each]


def full_disks(folders: Mapping[str, Path]) -> list[str]:
    """Sentences about the folders whose file systems have too little room. folders: by what is there."""
    full = []
    for what, folder in folders.items():
        try:
            disk = os.statvfs(folder)
        except OSError as error:
            full.append(f"the folder of {what}, {folder}, cannot be read: {error.strerror}")
            continue
        free = disk.f_bavail * disk.f_frsize
        if free < FREE_BYTES:
            full.append(f"the disk of {what}, {folder}, has {free / 2**20:.1f} MiB left, less than {FREE_BYTES >> 20}")
        elif disk.f_files and not disk.f_favail:
            full.append(f"the disk of {what}, {folder}, takes no more files")
    return full


# On the event loop: they answer while every thread of the pool is busy.
@router.get("/healthz")
async def live() -> HealthView:
    """The process answers."""
    return HEALTHY


@router.get("/readyz", responses=problems(503))
async def ready(readiness: Annotated[Readiness, Depends(state("readiness"))]) -> HealthView:
    """A row was written and read, the disks have room, every thread works, and campaigns are driven; 503 with all
    that is not so."""
    if troubles := await readiness.troubles():
        raise HTTPException(503, "; ".join(troubles), errors.RETRY_AFTER)
    return HEALTHY


# As monitors ask. Outside of the document, where an operation has one method.
router.add_api_route("/healthz", live, methods=["HEAD"], include_in_schema=False)
router.add_api_route("/readyz", ready, methods=["HEAD"], include_in_schema=False)
