"""Runs the application until SIGTERM or SIGINT, which end its open streams at once and the process within seconds."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from meshtune.api.app import from_environment
from meshtune.api.static_files import FOLDER

# For requests under way; streams end by themselves.
GRACE_S = 1


class _Server(uvicorn.Server):
    def __init__(self, app: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # The framework hears of the end only when all requests have ended, and a stream never does.
        self._app.state.end_soon()
        super().handle_exit(sig, frame)


def run(host: str, port: int, begin: Callable[[bool], None]) -> None:
    """Serve what the environment names until a signal comes. begin: called before the first request, with whether
    there is a dashboard. Raises StoreUnavailable, and InvalidValue for settings; ends the process, with a message in
    the log, where the address cannot be had."""
    app = from_environment()
    begin((FOLDER / "index.html").is_file())
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        timeout_graceful_shutdown=GRACE_S,
        # A client's address is the connection's, not a header's: loopback may be trusted.
        proxy_headers=False,
        server_header=False,
        # Logging is set up by `tuner.service.telemetry`; requests are logged by `api.middleware.request_log`.
        log_config=None,
        access_log=False,
    )
    server = _Server(app, config)
    server.run()
    if not server.started:
        raise SystemExit(3)  # uvicorn has said why
