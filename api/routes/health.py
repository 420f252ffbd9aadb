"""GET /healthz and /readyz: whether this process lives, and can do its work; answered within seconds even where the
database or a disk hangs. GET /metrics: the service in figures, in the text format of Prometheus. Every label has few
values.

What the store knows (campaigns, trials, device-hours) is read from it, at most every 5 s and for at most a twentieth of
the time: all processes on one database say the same, restarts change nothing, and what is deleted is counted no more,
so that these are gauges. Counters and histograms are this process's own and begin with it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from fastapi import APIRouter, Depends, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException

from meshtune.api import errors
from meshtune.api.dependencies import reads_all, state
from meshtune.api.openapi import problems
from meshtune.api.stream_hub import StreamHub
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.service.driving.loop import ALL, Driver
from meshtune.tuner.service.reading import answered
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import StoreError
from meshtune.tuner.store.usage import Figures

T = TypeVar("T")
# Shorter than a balancer waits for an answer.
LIMIT_S = 4.0
# A row that was written counts for so long: nobody without a token keeps the database writing.
WRITTEN_EVERY_S = 1.0
# Since the last sign of life of the threads: a tick may ask a search for long, and the others wait for the database.
DRIVER_LIMIT_S = 120.0
THREAD_LIMIT_S = 30.0
# A job's files and SQLite's log of a busy minute have less.
FREE_BYTES = 32 * 2**20
FRESH_S = 5.0
# A query of 1 s is repeated after 20 s.
TIMES_THE_QUERY = 20
# A scrape answers without the store's figures rather than not at all.
STORE_LIMIT_S = 4.0
REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
DOCUMENTED = {"content": {"text/plain": {"schema": {"type": "string"}, "example": "meshtune_store_up 1.0\n"}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthView:
    status: str
    version: str


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
                self._call = answered(self._function, "shared call")
            return self._call


class Readiness:
    """Whether the service can do its work, and what keeps it from that."""

    def __init__(self, service: Service, driver: Driver, hub: StreamHub) -> None:
        self._driver, self._hub = driver, hub
        self._leases = service.sessions.holder.heartbeat
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
        return [trouble for found in await asyncio.gather(*looks) for trouble in found] + self._threads()

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
        leases = self._leases.trouble("the thread that renews the leases", THREAD_LIMIT_S)
        undriven = str(self._driver.troubles.get(ALL, ""))
        told = (driver, *lanes, undriven and f"no campaign is driven: {undriven}", events, leases)
        return [each for each in told if each]


def full_disks(folders: Mapping[str, Path]) -> list[str]:
    """Sentences about the folders whose file systems have too little room. folders: by what is there."""
    found = []
    for what, folder in folders.items():
        try:
            disk = os.statvfs(folder)
        except OSError as error:
            found.append(f"the folder of {what}, {folder}, cannot be read: {error.strerror}")
            continue
        free = disk.f_bavail * disk.f_frsize
        if free < FREE_BYTES:
            found.append(f"the disk of {what}, {folder}, has {free / 2**20:.1f} MiB left, less than {FREE_BYTES >> 20}")
        elif disk.f_files and not disk.f_favail:
            found.append(f"the disk of {what}, {folder}, takes no more files")
    return found


class Metrics:
    """The metrics of one application: its requests, its service's, and what the store knows."""

    def __init__(
        self, service: Service, driver: Driver, hub: StreamHub, clock: Callable[[], float] = time.time
    ) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "meshtune_http_requests", "Requests answered.", ("method", "route", "status"), registry=registry
        )
        self._request_s = Histogram(
            "meshtune_http_request_seconds",
            "From a request to the end of its answer, streams left out.",
            ("route",),
            buckets=REQUEST_SECONDS,
            registry=registry,
        )
        ProcessCollector(registry=registry)
        Gauge("meshtune_info", "Always 1.", ("version",), registry=registry).labels(version("meshtune")).set(1)
        own = service.metrics
        for metric in (
            own.tick_s,
            own.ask_s,
            own.polls,
            own.poll_errors,
            own.lease_changes,
            own.skews.gauge,
            hub.cut_off,
            service.answers,
        ):
            registry.register(metric)
        troubled = Gauge("meshtune_troubled_campaigns", "Campaigns with a trouble here.", registry=registry)
        troubled.set_function(lambda: len(driver.troubles))
        streams = Gauge("meshtune_open_streams", "Streams of events that are open.", registry=registry)
        streams.set_function(lambda: hub.open_streams)
        registry.register(QueueCollector(service, clock))
        self._store = StoreCollector(service, clock)
        registry.register(self._store)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request. status: 0 for a client that went before its answer."""
        self._requests.labels(method, route, str(status)).inc()
        if route != "/v1/stream":
            self._request_s.labels(route).observe(seconds)

    async def text(self) -> bytes:
        """All metrics, as Prometheus reads them."""
        await self._store.refresh()
        return generate_latest(self._registry)


class QueueCollector(Collector):
    """The jobs that wait in queues, of the campaigns that this process drives. clock: epoch seconds."""

    def __init__(self, service: Service, clock: Callable[[], float]) -> None:
        self._service, self._clock = service, clock

    def collect(self) -> Iterator[Metric]:
        words = "Trials whose job waits in a queue, of campaigns of this process."
        waiting = GaugeMetricFamily("meshtune_trials_queued", words, labels=("runner",))
        longest = GaugeMetricFamily("meshtune_longest_queued_seconds", "The longest such wait.", labels=("runner",))
        for kind, waits in self._service.sessions.queued(self._clock()).items():
            waiting.add_metric((kind,), len(waits))
            longest.add_metric((kind,), max(waits, default=0.0))
        yield waiting
        yield longest


class StoreCollector(Collector):
    """What the database holds, as of the last refresh. clock: epoch seconds."""

    def __init__(self, service: Service, clock: Callable[[], float]) -> None:
        self._service, self._clock = service, clock
        self._query = SharedCall(self._read)
        self._figures: Figures | None = None
        self._fresh_until = 0.0
        self._up = False

    async def refresh(self) -> None:
        """Read the figures where those at hand are old. A database that does not answer in time is told as down."""
        try:
            if self._figures is None or time.monotonic() > self._fresh_until:
                self._figures = await self._query.result(STORE_LIMIT_S)
            self._up = True
        except (StoreError, TimeoutError):
            self._up = False

    def _read(self) -> Figures:
        start = time.monotonic()
        figures = self._service.figures(self._clock())
        end = time.monotonic()
        self._fresh_until = end + max(FRESH_S, TIMES_THE_QUERY * (end - start))
        return figures

    def collect(self) -> Iterator[Metric]:
        """A state that nothing is in has a 0."""
        yield GaugeMetricFamily("meshtune_store_up", "1 while the database answers.", value=self._up)
        figures = self._figures
        if not self._up or figures is None:
            return
        campaigns = GaugeMetricFamily("meshtune_campaigns", "Campaigns in the database.", labels=("state",))
        for stage in CampaignState:
            campaigns.add_metric((stage,), figures.campaigns.get(stage, 0))
        yield campaigns
        trials = GaugeMetricFamily("meshtune_trials", "Ended trials in the database.", labels=("verdict",))
        for verdict in Verdict:
            trials.add_metric((verdict,), figures.verdicts.get(verdict, 0))
        yield trials
        in_flight = GaugeMetricFamily("meshtune_trials_in_flight", "Trials that have not ended.", labels=("state",))
        for progress in TrialState:
            if not progress.final:
                in_flight.add_metric((progress,), figures.in_flight.get(progress, 0))
        yield in_flight
        yield GaugeMetricFamily(
            "meshtune_device_hours", "Devices times the hours that jobs held them.", value=figures.device_s / 3600
        )


def router(metrics_open: bool) -> APIRouter:
    """The routes, which run on the event loop: they answer while every thread of the pool is busy. metrics_open:
    /metrics needs no token."""
    made = APIRouter(tags=["health"])
    may_read_metrics = [] if metrics_open else [reads_all]
    healthy = HealthView(status="ok", version=version("meshtune"))

    @made.get("/healthz")
    async def live() -> HealthView:
        """The process answers."""
        return healthy

    @made.get("/readyz", responses=problems(503))
    async def ready(readiness: Annotated[Readiness, Depends(state("readiness"))]) -> HealthView:
        """A row was written and read, the disks have room, every thread works, and campaigns are driven; 503 with all
        that is not so."""
        if troubles := await readiness.troubles():
            raise HTTPException(503, "; ".join(troubles), errors.RETRY_AFTER)
        return healthy

    @made.get("/metrics", response_class=Response, responses={200: DOCUMENTED}, dependencies=may_read_metrics)
    async def read_metrics(metrics: Annotated[Metrics, Depends(state("metrics"))]) -> Response:
        """The service in figures, for Prometheus."""
        return Response(await metrics.text(), media_type=CONTENT_TYPE_LATEST)

    # As monitors ask. Outside of the document, where an operation has one method.
    for path, endpoint in (("/healthz", live), ("/readyz", ready)):
        made.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    made.add_api_route(
        "/metrics", read_metrics, methods=["HEAD"], include_in_schema=False, dependencies=may_read_metrics
    )
    return made
