"""Authentication and rate limits before /v1 and /metrics, and their entries in the audit log.

A request without a caller is refused, whatever the routes say and wherever it comes from, except at /metrics, which
decides itself, at /v1/fit, where nothing is anybody's, and at /v1/reports, where jobs show tokens of their own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from http import HTTPStatus
from threading import Lock

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshtune.api import errors
from meshtune.api.errors import NotAdmitted, TooManyRequests, Unauthenticated
from meshtune.api.settings import ServiceSettings
from meshtune.tuner.access.tokens import PREFIX, AuditRecord, Token, digest
from meshtune.tuner.service.telemetry import mask
from meshtune.tuner.store import StoreError
from meshtune.tuner.store.access import Access

log = logging.getLogger(__name__)
# A token that was looked up is trusted for so long: a revocation counts after it.
TRUST_S = 5.0
MAX_TRUSTED = 10_000
USED_EVERY_S = 60.0
REPORTS = "/v1/reports/"
METRICS = "/metrics"
WITHOUT_TOKEN = (METRICS, "/v1/fit")
# The caller that was not seen for longest is forgotten, with a full bucket.
MAX_CALLERS = 10_000
REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
# Refusals to one address that are written down: a flood of them shall not fill the log.
REFUSALS_PER_S, REFUSALS_BURST = 0.2, 20


class TokenBuckets:
    """A token bucket for each of a bounded number of callers. rate_per_s: how fast one fills; burst: how much it holds.
    Thread-safe.

    The strategies of `limits` count in windows: they have neither a burst with a steady refill, nor fractions of a
    request a second, nor a monotonic clock, nor a bound on how many callers they remember.
    """

    def __init__(self, rate_per_s: float, burst: int) -> None:
        self._rate_per_s, self._burst = rate_per_s, float(burst)
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = Lock()

    def take(self, caller: str, now: float) -> float:
        """0 where the caller may go on now, else the seconds to wait; then nothing was taken. now: monotonic."""
        with self._lock:
            level, seen_at = self._levels.pop(caller, (self._burst, now))
            level = min(self._burst, level + (now - seen_at) * self._rate_per_s)
            wait_s = 0.0 if level >= 1.0 else (1.0 - level) / self._rate_per_s
            self._levels[caller] = (level if wait_s else level - 1.0, now)
            if len(self._levels) > MAX_CALLERS:
                self._levels.popitem(last=False)
        return wait_s


class Audit:
    """Writes what changes something, and what was refused to somebody, to the audit log, before the answer goes out: a
    caller that has the answer finds the entry."""

    def __init__(self, access: Access, now: Callable[[], float], clock: Callable[[], float]) -> None:
        self._access = access
        self._now, self._clock = now, clock
        self._refusals = TokenBuckets(REFUSALS_PER_S, REFUSALS_BURST)

    async def write(self, request: Request, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Record the request, if it is one to record. Where the audit log cannot be written, the service's log has a
        line, and the request goes on."""
        refused = status in REFUSALS
        changed = getattr(request.state, "changes", False) and status != HTTPStatus.SERVICE_UNAVAILABLE
        if not (refused or changed):
            return
        address = request.client.host if request.client else ""
        if refused and self._refusals.take(address, self._clock()):
            return
        record = self._audit_record(request, status, headers, f"from {address}" if refused else "")
        try:
            await run_in_threadpool(self._access.record, record)
        except StoreError as error:
            log.warning("the audit log misses %s: %s", record, error)

    def _audit_record(
        self, request: Request, status: int, headers: Sequence[tuple[bytes, bytes]], detail: str
    ) -> AuditRecord:
        caller: Token | None = getattr(request.state, "caller", None)
        route = request.scope.get("route")
        location = next((value.decode("latin-1") for name, value in headers if name.lower() == b"location"), "")
        named = "/".join(str(value) for value in request.path_params.values())
        made = location.rpartition("/")[2]
        if made and named:  # a clone
            detail = f"of {mask(named)}"
        problem = getattr(request.state, "problem", "")
        return AuditRecord(
            at=self._now(),
            token="" if caller is None else caller.name,
            action=mask(f"{request.method} {getattr(route, 'path_format', request.url.path)}"),
            object=mask(made or named),
            outcome=f"{status} {problem}".strip(),
            detail=detail,
        )


class Gate:
    """ASGI middleware. now: epoch seconds; clock: one that never goes back."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        settings: ServiceSettings,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app, self._access = app, access
        self._now, self._clock = now, clock
        self._audit = Audit(access, now, clock)
        self._known: dict[str, tuple[Token, float]] = {}
        self._looking = threading.Lock()
        # Threads of their own: a look-up does not wait for slow answers.
        self._lookups = CapacityLimiter(2)
        self._requests = TokenBuckets(settings.requests_per_s, settings.requests_burst)
        self._posts = TokenBuckets(settings.posts_per_s, settings.posts_burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path.startswith("/v1/") or path == METRICS):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        scope.setdefault("state", {})

        async def audited_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._audit.write(request, message["status"], message["headers"])
            await send(message)

        try:
            caller = await self._admit(request, path)
        except (NotAdmitted, StoreError) as error:
            await (await errors.answer_to(request, error))(scope, receive, audited_send)
            return
        scope["state"]["caller"] = caller
        try:
            await self._app(scope, receive, audited_send)
        except Exception:
            await self._audit.write(request, 500, ())  # the framework answers, outside of us
            raise
        if caller is not None:
            await self._keep_use(caller.sha256)

    async def _admit(self, request: Request, path: str) -> Token | None:
        """The caller's token; None where the route takes requests without one. Raises NotAdmitted, StoreUnavailable."""
        address = request.client.host if request.client else ""
        if path.startswith(REPORTS):
            self._pace(f"at {address}", request.method)
            return None
        secret = _secret(request.headers)
        if secret is None:
            self._pace(f"at {address}", request.method)
            if path in WITHOUT_TOKEN:
                return None
            raise Unauthenticated("this needs a token: send the header `Authorization: Bearer mt_...`")
        sha256 = digest(secret)
        # The first use of a token counts for its address, so that nobody tries many secrets; later ones for the token.
        if sha256 not in self._known:
            self._pace(f"at {address}", request.method)
        token = self._trusted(sha256) or await run_sync(self._look_up, sha256, secret, limiter=self._lookups)
        refusal = "there is no such token" if token is None else token.refusal(self._now())
        if token is None or refusal:
            raise Unauthenticated(refusal)
        self._pace(sha256, request.method)
        return token

    def _pace(self, bucket: str, method: str) -> None:
        now = self._clock()
        wait_s = self._requests.take(bucket, now)
        if not wait_s and method == "POST":
            wait_s = self._posts.take(bucket, now)
        if wait_s:
            raise TooManyRequests(f"too many requests; the next one may come in {wait_s:.2g} s", wait_s)

    def _trusted(self, sha256: str) -> Token | None:
        token, seen_at = self._known.get(sha256, (None, 0.0))
        return token if self._clock() - seen_at < TRUST_S else None

    def _look_up(self, sha256: str, secret: str) -> Token | None:
        """The token as the store has it now. Of requests that come at once, one asks."""
        with self._looking:
            if token := self._trusted(sha256):
                return token
            asked_at = self._clock()
            token = self._access.by_digest(sha256)
            if token is None or not token.matches(secret):
                self._known.pop(sha256, None)
                return None
            if sha256 not in self._known and len(self._known) >= MAX_TRUSTED:
                self._known.clear()
            self._known[sha256] = (token, asked_at)
            return token

    async def _keep_use(self, sha256: str) -> None:
        """Write when the token was used, at most once a minute; a failure is only logged."""
        token, seen_at = self._known.get(sha256, (None, 0.0))
        now = self._now()
        if token is None or (token.last_used_at is not None and now - token.last_used_at < USED_EVERY_S):
            return
        self._known[sha256] = (replace(token, last_used_at=now), seen_at)
        try:
            await run_in_threadpool(self._access.used_at, sha256, now)
        except StoreError as error:
            log.warning("when a token was used is not kept: %s", error)


def _secret(headers: Headers) -> str | None:
    """The token in the request, None without the header. Raises Unauthenticated for what is no token of ours."""
    given = headers.getlist("authorization")
    if not given:
        return None
    scheme, _, secret = given[0].partition(" ")
    if len(given) > 1 or scheme.lower() != "bearer" or not secret.startswith(PREFIX) or len(secret) > 200:
        raise Unauthenticated("the Authorization header must be `Bearer mt_...`")
    return secret
