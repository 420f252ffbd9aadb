"""GET /metrics: the service in figures, in the text format of Prometheus. Every label has few values.

What the store knows (campaigns, trials, device-hours) is read from it, at most every 5 s and for at most a twentieth of
the time: all processes on one database say the same, restarts change nothing, and what is deleted is counted no more,
so that these are gauges. Counters and histograms are this process's own and begin with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from meshtune.api.dependencies import reads_all, state
from meshtune.api.routes.health import LIMIT_S, SharedCall
from meshtune.api.stream_hub import StreamHub
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.service.driving.loop import Driver
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.telemetry import gauge
from meshtune.tuner.store import StoreError
from meshtune.tuner.store.usage import Figures

FRESH_S = 5.0
# A query of 1 s is repeated after 20 s.
TIMES_THE_QUERY = 20
# Those with the most device-hours have a series each. The two are no names of tokens.
MAX_OWNERS, NO_OWNER, OTHER_OWNERS = 50, "-", "*"
REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
DOCUMENTED = {"content": {"text/plain": {"schema": {"type": "string"}, "example": "meshtune_store_up 1.0\n"}}}


class Metrics:
    """The metrics of one application: its requests, its service's, and what the store knows."""

    def __init__(
        self, service: Service, driver: Driver, hub: StreamHub, clock: Callable[[], float] = time.time
    ) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "meshtune_http_requests", "Requests answered.", ("method", "route", "status"), registry=registry
        )
        words = "From a request to the end of its answer, streams left out."
        self._request_s = Histogram(
            "meshtune_http_request_seconds", words, ("route",), buckets=REQUEST_SECONDS, registry=registry
        )
        ProcessCollector(registry=registry)
        Gauge("meshtune_info", "Always 1.", ("version",), registry=registry).labels(version("meshtune")).set(1)
        own = service.metrics
        for metric in (*own.collectors, hub.cut_off, service.answers):
            registry.register(metric)
        troubled = Gauge("meshtune_troubled_campaigns", "Campaigns with a trouble here.", registry=registry)
        troubled.set_function(lambda: len(driver.troubles))
        streams = Gauge("meshtune_open_streams", "Streams of events that are open.", registry=registry)
        streams.set_function(lambda: hub.open_streams)
        registry.register(QueueCollector(service))
        self._store = StoreCollector(service, clock)
        registry.register(self._store)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request. status: 0 for a client that went before its answer."""
        self._requests.labels(method, route, str(status)).inc()
        if route != "/v1/stream":
            self._request_s.labels(route).observe(seconds)

    async def text(self) -> bytes:
        await self._store.refresh()
        return generate_latest(self._registry)


class QueueCollector(Collector):
    """The jobs that wait in queues, of the campaigns that this process drives."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        words = "Trials whose job waits in a queue, of campaigns of this process."
        queued = self._service.sessions.queued()
        yield gauge("trials_queued", words, "runner", {kind: len(waits) for kind, waits in queued.items()})
        longest = {kind: max(waits, default=0.0) for kind, waits in queued.items()}
        yield gauge("longest_queued_seconds", "The longest such wait.", "runner", longest)


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
                self._figures = await self._query.result(LIMIT_S)
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
        campaigns = {stage: figures.campaigns.get(stage, 0) for stage in CampaignState}
        yield gauge("campaigns", "Campaigns in the database.", "state", campaigns)
        verdicts = {verdict: figures.verdicts.get(verdict, 0) for verdict in Verdict}
        yield gauge("trials", "Ended trials in the database.", "verdict", verdicts)
        in_flight = {step: figures.in_flight.get(step, 0) for step in TrialState if not step.final}
        yield gauge("trials_in_flight", "Trials that have not ended.", "state", in_flight)
        words = "Devices times the hours that jobs held them."
        hours = {owner: held_s / 3600 for owner, held_s in figures.device_s.items()}
        yield GaugeMetricFamily("meshtune_device_hours", words, value=sum(hours.values()))
        most = sorted(hours, key=lambda owner: -hours[owner])[:MAX_OWNERS]
        named = {owner or NO_OWNER: hours.pop(owner) for owner in most}
        yield gauge("owner_device_hours", words, "owner", {**named, OTHER_OWNERS: sum(hours.values())})


def router(metrics_open: bool) -> APIRouter:
    """metrics_open: it needs no token."""
    made = APIRouter(tags=["health"], dependencies=[] if metrics_open else [reads_all])

    # On the event loop: it answers while every thread of the pool is busy.
    @made.get("/metrics", response_class=Response, responses={200: DOCUMENTED})
    async def read_metrics(metrics: Annotated[Metrics, Depends(state("metrics"))]) -> Response:
        """The service in figures, for Prometheus."""
        return Response(await metrics.text(), media_type=CONTENT_TYPE_LATEST)

    # As monitors ask. Outside of the document, where an operation has one method.
    made.add_api_route("/metrics", read_metrics, methods=["HEAD"], include_in_schema=False)
    return made
