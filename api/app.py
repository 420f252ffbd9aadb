"""The web application: REST /v1 over a service, and the thread that drives every active campaign."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from api import errors, recommendation_routes, schema
from api.routes import ServiceHandle, router
from api.views import HealthView
from tuner.campaign import CampaignState
from tuner.driver import Driver, drive_all
from tuner.paths import Home
from tuner.service import Service
from tuner.store import Store

ACTIVE = frozenset(state for state in CampaignState if state.active)
# Far above what one service drives; the page is bounded all the same.
MOST_ACTIVE = 10_000
# How long a stopping service waits for the tick under way. A search may think longer; to be killed in a tick is safe.
STOP_LIMIT_S = 1.0


def create_app(service: Service, close: Callable[[], None] = lambda: None) -> FastAPI:
    """The application over a service, which it drives while it runs.

    close: gives back what the service stands on, called once after the last tick; by default that stays the caller's.
    """
    driver = Driver(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=_drive, args=(driver, service, stop), name="driver", daemon=True)
        app.state.thread = thread
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(STOP_LIMIT_S)  # blocks the event loop, which has nobody left to serve
            # A tick that still runs needs the store; the process ends without waiting for it.
            if not thread.is_alive():
                close()

    app = FastAPI(
        title="meshtune",
        summary="Finds the fastest way to lay one training job over one cluster.",
        version=version("meshtune"),
        lifespan=lifespan,
        generate_unique_id_function=_operation_id,
    )
    app.state.service = service
    app.state.driver = driver
    app.state.thread = None
    app.include_router(router)
    app.include_router(recommendation_routes.router)
    errors.install(app)
    schema.install(app)

    # On the event loop, so that it answers while every thread of the pool is busy.
    @app.get("/healthz", tags=["health"])
    async def live() -> HealthView:
        """The process answers."""
        return HealthView(status="ok", version=version("meshtune"))

    @app.get("/readyz", tags=["health"], responses=schema.problems(503))
    def ready(service: ServiceHandle) -> HealthView:
        """The database answers and takes writes, and campaigns are driven; 503 when not."""
        service.store.check()
        thread: threading.Thread | None = app.state.thread
        if thread is not None and not thread.is_alive():
            raise HTTPException(503, "the thread that drives the campaigns has died; restart", errors.RETRY_AFTER)
        return HealthView(status="ok", version=version("meshtune"))

    return app


def from_environment() -> FastAPI:
    """What `meshtune serve` runs: the home is MESHTUNE_HOME, the database MESHTUNE_DB or in the home."""
    home = Home(Path(os.environ.get("MESHTUNE_HOME", ".meshtune")).absolute())
    home.root.mkdir(parents=True, exist_ok=True)
    store = Store.open(os.environ.get("MESHTUNE_DB") or home.database_url)
    return create_app(Service(store, home), close=store.close)


def _operation_id(route: APIRoute) -> str:
    """The function's name: what a generated client calls its method."""
    return route.name


def _drive(driver: Driver, service: Service, stop: threading.Event) -> None:
    def active() -> list[str]:
        return [campaign.id for campaign in service.store.campaigns(limit=MOST_ACTIVE, states=ACTIVE)]

    drive_all(driver, service, active, stop)
