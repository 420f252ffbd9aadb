"""The web application: REST /v1 over a service, and the thread that drives every active campaign. `run` serves it until
SIGTERM or SIGINT, which end its open streams at once and the process within seconds.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from socket import socket
from types import FrameType

import uvicorn
from fastapi import APIRouter, FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute

from meshtune.api import errors, openapi, static_files
from meshtune.api.campaign_cache import CampaignCache, Documents
from meshtune.api.connections import STREAMS, capacity_of, log_accept_failures_seldom, protocol, raise_file_limit
from meshtune.api.middleware.gate import Gate
from meshtune.api.middleware.idempotency import Idempotency
from meshtune.api.middleware.request_log import RequestLog
from meshtune.api.routes import (
    access,
    ask_tell,
    campaigns,
    catalog,
    changes,
    health,
    jobs,
    logs,
    metrics,
    plans,
    recommendation,
    records,
    stream,
    trials,
)
from meshtune.api.settings import DEFAULTS, ServiceSettings
from meshtune.api.settings import from_environment as read_settings
from meshtune.api.stream_hub import StreamHub
from meshtune.api.worker_pool import WorkerPool
from meshtune.tuner.access.home_folder import file_mode, home_mode, prepare_home
from meshtune.tuner.access.tokens import expiry
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.service.driving.loop import Driver
from meshtune.tuner.service.driving.rounds import drive_all
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.telemetry import TroubleLog, log_events
from meshtune.tuner.store import Store, StoreError

log = logging.getLogger(__name__)
# How long a stopping service waits for the tick under way. A search may think longer; to be killed in a tick is safe.
STOP_LIMIT_S = 1.0
# For requests under way; streams end by themselves.
GRACE_S = 1
# Between two times that files of ended campaigns are removed.
CLEAN_EVERY_S = 3600.0
# The status of a process that ends since one of its threads did (EX_SOFTWARE of sysexits.h).
DIED = 70


def create_app(
    service: Service,
    close: Callable[[], None] = lambda: None,
    settings: ServiceSettings = DEFAULTS,
    streams: int = STREAMS,
) -> FastAPI:
    """The application over a service, which it drives while it runs. streams: how many of events it serves at once.

    close: gives back what the service stands on, called once after the last tick; by default that stays the caller's.
    `app.state.end_soon` may be called when the end is near: it lets go of streams, which would not end by themselves.
    """
    driver = Driver(service)
    hub = StreamHub(service.store, on_events=log_events, max_streams=streams)
    figures = metrics.Metrics(service, driver, hub)
    readiness = health.Readiness(service, driver, hub)
    cache = CampaignCache(service.store)
    pool = WorkerPool()
    stop = threading.Event()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        stop.clear()
        await hub.start()
        thread = threading.Thread(target=_drive, args=(driver, service, stop), name="driver", daemon=True)
        app.state.thread = readiness.thread = thread
        thread.start()
        if (retention_s := expiry(settings.retention, 0.0)) is not None:
            threading.Thread(target=_clean, args=(service, retention_s, stop), name="cleaner", daemon=True).start()
        pool.start()
        try:
            yield
        finally:
            stop_by = time.monotonic() + STOP_LIMIT_S
            stop.set()
            hub.stop(0.0)
            pool.stop()
            # Both block the event loop, which has nobody left to serve. What still runs then needs the store; the
            # process ends without waiting for it.
            thread.join(STOP_LIMIT_S)
            ended = hub.stop(max(0.0, stop_by - time.monotonic()))
            if ended and not thread.is_alive():
                close()

    def end_soon() -> None:
        stop.set()
        hub.end_soon()
        pool.stop()

    app = FastAPI(
        title="meshtune",
        summary="Finds the fastest way to lay one training job over one cluster.",
        version=version("meshtune"),
        # Their pages load scripts from elsewhere; `openapi.install` serves the document.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # they go wherever the request's Host says
        lifespan=lifespan,
    )
    app.state.service = service
    app.state.driver = driver
    app.state.cache = cache
    app.state.pool = pool
    app.state.documents = Documents(service.store, cache, pool)
    app.state.hub = hub
    app.state.asks = ask_tell.WaitingAsks()
    app.state.end_soon = end_soon
    app.state.stop = stop
    app.state.thread = None
    app.state.readiness = readiness
    app.state.metrics = figures
    app.router.routes.extend(_all_routes(settings.metrics_open))
    # The last one is the first to see a request.
    app.add_middleware(Idempotency, keys=service.store.access.keys, holder=service.sessions.holder)
    app.add_middleware(Gate, access=service.store.access, settings=settings)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)
    app.add_middleware(RequestLog, observe=figures.observe)
    errors.install(app)
    openapi.install(app)
    static_files.install(app)
    return app


def from_environment(streams: int = STREAMS) -> FastAPI:
    """What `meshtune serve` runs: the home is MESHTUNE_HOME, the database MESHTUNE_DB or in the home.

    Raises InvalidValue for settings, and StoreUnavailable, also where another process serves the same SQLite database.
    """
    home = Home(Path(os.environ.get("MESHTUNE_HOME", ".meshtune")).absolute())
    settings, mode = read_settings(os.environ), home_mode(os.environ)
    for message in prepare_home(home, mode):
        log.warning("%s", message)
    url = os.environ.get("MESHTUNE_DB") or home.database_url
    with ExitStack() as opened:
        store = opened.enter_context(Store.open(url, file_mode=file_mode(mode)))
        opened.enter_context(store.serving())
        service = Service(store, home, public_url=settings.public_url)
        app = create_app(service, close=opened.pop_all().close, settings=settings, streams=streams)
    # Code and routes stay till the end; a search for garbage among them would hold up every request for 0.1 s.
    gc.collect()
    gc.freeze()
    return app


@cache
def _all_routes(metrics_open: bool) -> tuple[BaseRoute, ...]:
    """Those of every application of this process: what the framework derives from a route, it derives once."""
    made = APIRouter(generate_unique_id_function=lambda route: route.name)  # a generated client calls its method so
    for router in (
        campaigns.router,
        changes.router,
        ask_tell.router,
        trials.router,
        jobs.router,
        logs.router,
        plans.router,
        plans.public,
        catalog.router,
        recommendation.router,
        records.router,
        access.router,
        stream.router,
        jobs.reports,
    ):
        # Where 422 is not named, the framework puts its own form of it into the document.
        made.include_router(router, responses=openapi.problems(422))
    made.include_router(health.router)
    made.include_router(metrics.router(metrics_open))
    return tuple(made.routes)


def _drive(driver: Driver, service: Service, stop: threading.Event) -> None:
    log = TroubleLog()
    drive_all(driver, service, stop, lambda: log.update(driver.troubles))


def _clean(service: Service, retention_s: float, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            for id, left in service.clean(retention_s, remove=True).items():
                log.info("%s: removed %s; it ended long ago", id, left, extra={"campaign": id})
        except (StoreError, OSError) as error:
            log.warning("files of ended campaigns could not be removed: %s", error)
        stop.wait(CLEAN_EVERY_S)


def die_with_thread(died: threading.ExceptHookArgs) -> None:
    """End the process with the status DIED, with the traceback in the log: a service without one of its threads does
    not do its work, and nobody would start it again. Its leases run out."""
    try:
        name = "unknown" if died.thread is None else died.thread.name
        error = died.exc_value or died.exc_type()
        log.critical("the thread %s has died, and the service with it", name, exc_info=error)
        logging.shutdown()
    finally:  # also for want of memory
        os._exit(DIED)


class _Server(uvicorn.Server):
    def __init__(self, app: FastAPI, config: uvicorn.Config, begin: Callable[[int], None]) -> None:
        super().__init__(config)
        self._app, self._begin = app, begin

    async def startup(self, sockets: list[socket] | None = None) -> None:
        log_accept_failures_seldom(asyncio.get_running_loop())
        await super().startup(sockets)
        if self.started:
            self._begin(self.servers[0].sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # The framework hears of the end only when all requests have ended, and a stream never does.
        self._app.state.end_soon()
        super().handle_exit(sig, frame)


def run(host: str, port: int, begin: Callable[[int, bool], None]) -> None:
    """Serve what the environment names until a signal comes. begin: called when it listens, with its port and whether
    there is a dashboard. Raises StoreUnavailable, and InvalidValue for settings; ends the process, with a message in
    the log, where the address cannot be had, and with the status DIED where a thread dies of an error."""
    threading.excepthook = die_with_thread
    files = raise_file_limit()
    capacity = capacity_of(files)
    app = from_environment(capacity.streams)
    log.info(
        "at most %d connections, %d of them without a token, and %d streams: %d files may be open",
        capacity.connections,
        capacity.strangers,
        capacity.streams,
        files,
    )
    if capacity.streams < STREAMS:
        log.warning("fewer than %d streams, for want of files: raise the limit (LimitNOFILE=)", STREAMS)
    dashboard = (static_files.FOLDER / "index.html").is_file()
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=protocol(capacity),
        ws="none",
        backlog=capacity.backlog,
        timeout_graceful_shutdown=GRACE_S,
        # A client's address is the connection's: anybody can write a header.
        proxy_headers=False,
        server_header=False,
        # Logging is set up by `tuner.service.telemetry`; requests are logged by `api.middleware.request_log`.
        log_config=None,
        access_log=False,
    )
    server = _Server(app, config, lambda port: begin(port, dashboard))
    server.run()
    if not server.started:
        raise SystemExit(3)  # uvicorn has said why
