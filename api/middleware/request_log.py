"""Every request gets an id, a line in the log and a place in the metrics; every response the security headers.

Routes are named by their templates and queries are left out, so that neither secrets nor endless ids get there.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshtune.api import errors
from meshtune.tuner.service.telemetry import request_id

REQUEST_ID = "X-Request-Id"
# The page loads nothing from elsewhere, is shown in no frame, and its links do not name it.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",  # unless a route says who may keep its answer
}
# Polled by machines: logged at DEBUG while they are answered.
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_log = logging.getLogger(__name__)


class RequestLog:
    """ASGI middleware. observe: called with method, route, status and seconds at the end of every response."""

    def __init__(self, app: ASGIApp, observe: Callable[[str, str, int, float], None]) -> None:
        self._app = app
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        given = Headers(scope=scope).get(REQUEST_ID, "")
        id = given if _GIVEN_ID.fullmatch(given) else uuid.uuid4().hex
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        token = request_id.set(id)
        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            if not status:  # else the framework would answer, without these headers
                await (await errors.defect(Request(scope), error))(scope, receive, send_with_headers)
            raise
        finally:
            self._report(scope, id, status, time.perf_counter() - start)
            request_id.reset(token)

    def _report(self, scope: Scope, id: str, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in errors.METHODS else "other"
        route: str = getattr(scope.get("route"), "path_format", "")
        if not route:  # a file, the answer of an earlier POST, or a refusal
            below = "repeated" if 200 <= status < 300 else "refused"
            route = below if scope["path"].startswith("/v1/") else "static"
        self._observe(method, route, status, seconds)
        caller = getattr(scope.get("state", {}).get("caller"), "name", "")
        level = logging.DEBUG if route in QUIET and status < 400 else logging.INFO
        campaign = scope.get("path_params", {}).get("campaign_id", "")
        fields = {"method": method, "route": route, "status": status, "ms": round(seconds * 1000, 1), "token": caller}
        words = f"{method} {route} {status or 'no answer'} in {fields['ms']} ms"
        _log.log(level, "%s", words, extra={**fields, "request_id": id, "campaign": campaign})
