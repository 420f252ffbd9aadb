"""The web application: REST /v1 over a service, and the thread that drives every active campaign."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI

from api import errors
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


def create_app(service: Service) -> FastAPI:
    """The application over a service, which it drives while it runs. The caller closes the service's store."""
    driver = Driver(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=_drive, args=(driver, service, stop), name="driver", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=10.0)

    app = FastAPI(
        title="meshtune",
        summary="Finds the fastest way to lay one training job over one cluster.",
        version=version("meshtune"),
        lifespan=lifespan,
    )
    app.state.service = service
    app.state.driver = driver
    app.include_router(router)
    errors.install(app)

    @app.get("/healthz", tags=["health"])
    def live() -> HealthView:
        """The process answers."""
        return HealthView(status="ok", version=version("meshtune"))

    @app.get("/readyz", tags=["health"])
    def ready(service: ServiceHandle) -> HealthView:
        """The database answers and takes writes; 503 when not."""
        service.store.check()
        return HealthView(status="ok", version=version("meshtune"))

    return app


def from_environment() -> FastAPI:
    """What `meshtune serve` runs: the home is MESHTUNE_HOME, the database MESHTUNE_DB or in the home."""
    home = Home(Path(os.environ.get("MESHTUNE_HOME", ".meshtune")).absolute())
    home.root.mkdir(parents=True, exist_ok=True)
    store = Store.open(os.environ.get("MESHTUNE_DB") or home.database_url)
    return create_app(Service(store, home))


def _drive(driver: Driver, service: Service, stop: threading.Event) -> None:
    def active() -> list[str]:
        return [campaign.id for campaign in service.store.campaigns(limit=MOST_ACTIVE, states=ACTIVE)]

    drive_all(driver, service, active, stop)
