"""GET /metrics: the service in figures, in the text format of Prometheus. Every label has few values.

What the store knows (campaigns, trials, device-hours) is read from it, at most every 5 s and for at most a twentieth of
the time: all processes on one database say the same, restarts change nothing, and what is deleted is counted no more,
so that these are gauges. Counters and histograms are this process's own and begin with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version

from fastapi import APIRouter, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from meshtune.api.one_at_a_time import OneAtATime
from meshtune.api.stream_hub import StreamHub
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.service.loop import Driver
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.telemetry import Histogram
from meshtune.tuner.store import StoreError
from meshtune.tuner.store.usage import Figures

FRESH_S = 5.0
# A query of 1 s is repeated after 20 s.
TIMES_THE_QUERY = 20
# A scrape answers without the store's figures rather than not at all.
STORE_LIMIT_S = 4.0
DOCUMENTED = {"content": {"text/plain": {"schema": {"type": "string"}, "example": "meshtune_store_up 1.0\n"}}}
# Or each counter has a series more, which says when it began; so does the process's start time.
disable_created_metrics()  # type: ignore[no-untyped-call]
REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The figures of one application."""

    def __init__(
        self, service: Service, driver: Driver, hub: StreamHub, clock: Callable[[], float] = time.time
    ) -> None:
        self._service, self._driver, self._hub, self._clock = service, driver, hub, clock
        self._question = OneAtATime(self._read)
        self._figures: Figures | None = None
        self._fresh_until = 0.0
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "meshtune_http_requests", "Requests answered.", ("method", "route", "status"), registry=self._registry
        )
        self._request_s = PrometheusHistogram(
            "meshtune_http_request_seconds",
            "From a request to the end of its answer, streams left out.",
            ("route",),
            buckets=REQUEST_SECONDS,
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)
        self._registry.register(_Given(self._own))

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request. status: 0 for a client that went before its answer."""
        self._requests.labels(method, route, str(status)).inc()
        if route != "/v1/stream":
            self._request_s.labels(route).observe(seconds)

    async def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        try:
            stored: Iterable[Metric] = store_metrics(await self._known())
        except (StoreError, TimeoutError):
            stored = [_gauge("meshtune_store_up", "1 while the database answers.", 0)]
        return generate_latest(self._registry) + generate_latest(_joined(stored))

    async def _known(self) -> Figures:
        if self._figures is None or time.monotonic() > self._fresh_until:
            self._figures = await self._question.ask(STORE_LIMIT_S)
        return self._figures

    def _read(self) -> Figures:
        start = time.monotonic()
        figures = self._service.store.figures(self._clock())
        end = time.monotonic()
        self._fresh_until = end + max(FRESH_S, TIMES_THE_QUERY * (end - start))
        return figures

    def _own(self) -> Iterator[Metric]:
        """What this process did, besides its answers to requests."""
        telemetry = self._service.telemetry
        yield _gauge("meshtune_info", "Always 1.", 1, ("version",), (version("meshtune"),))
        yield _histogram("meshtune_tick_seconds", "One step of one campaign.", telemetry.tick_s)
        yield _histogram("meshtune_ask_seconds", "One question to a search for new plans.", telemetry.ask_s)
        yield _gauge("meshtune_troubled_campaigns", "Campaigns with a trouble here.", len(self._driver.troubles))
        polls = CounterMetricFamily("meshtune_polls", "Looks at running jobs.", labels=("runner",))
        failed = CounterMetricFamily("meshtune_poll_errors", "Looks without an answer.", labels=("runner",))
        for kind, health in self._service.health.runners().items():
            polls.add_metric((kind,), health.polls)
            failed.add_metric((kind,), health.poll_errors)
        yield polls
        yield failed
        leases = CounterMetricFamily("meshtune_lease_changes", "Campaigns that changed hands.", labels=("change",))
        for change, count in telemetry.leases.read().items():
            leases.add_metric((change,), count)
        yield leases
        yield _gauge("meshtune_open_streams", "Streams of events that are open.", self._hub.open_streams)
        cut = CounterMetricFamily("meshtune_streams_cut_off", "Streams ended since their client was too slow.")
        cut.add_metric((), self._hub.cut_off)
        yield cut


def store_metrics(figures: Figures) -> Iterator[Metric]:
    """What the database holds; a state that nothing is in has a 0."""
    yield _gauge("meshtune_store_up", "1 while the database answers.", 1)
    campaigns = GaugeMetricFamily("meshtune_campaigns", "Campaigns in the database.", labels=("state",))
    for state in CampaignState:
        campaigns.add_metric((state,), figures.campaigns.get(state, 0))
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
    yield _gauge("meshtune_device_hours", "Devices times the hours that jobs held them.", figures.device_s / 3600)


def router(metrics: Metrics, dependencies: list[object]) -> APIRouter:
    """The route. dependencies: who may read it."""
    made = APIRouter(dependencies=dependencies)  # type: ignore[arg-type]

    @made.get("/metrics", response_class=Response, responses={200: DOCUMENTED}, tags=["health"])
    async def read_metrics() -> Response:
        """The service in figures, for Prometheus."""
        return Response(await metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return made


class _Given(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()

    def describe(self) -> Iterable[Metric]:
        return ()  # so that registering does not collect


def _joined(metrics: Iterable[Metric]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Given(lambda: metrics))
    return registry


def _gauge(
    name: str, words: str, value: float, labels: tuple[str, ...] = (), values: tuple[str, ...] = ()
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=labels)
    family.add_metric(values, value)
    return family


def _histogram(name: str, words: str, histogram: Histogram) -> HistogramMetricFamily:
    counts, total = histogram.read()
    bounds = [*map(repr, histogram.bounds), "+Inf"]
    family = HistogramMetricFamily(name, words)
    family.add_metric((), buckets=list(zip(bounds, counts, strict=True)), sum_value=total)
    return family
