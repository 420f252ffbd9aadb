"""The requests that go to the audit log: what changes something, and what was refused to somebody."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from meshtune.api.middleware.rates import TokenBuckets
from meshtune.api.requests.authorization import Caller
from meshtune.tuner.access.tokens import AuditRecord
from meshtune.tuner.service.telemetry import mask
from meshtune.tuner.store import StoreError
from meshtune.tuner.store.access import Access

log = logging.getLogger(__name__)
REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
# Refusals to one address that are written down: a flood of them shall not fill the log.
REFUSALS_PER_S, REFUSALS_BURST = 0.2, 20


class Audit:
    """Writes to the log before the answer goes out: a caller that has the answer finds the entry."""

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
        caller: Caller | None = getattr(request.state, "caller", None)
        route = request.scope.get("route")
        location = next((value.decode("latin-1") for name, value in headers if name.lower() == b"location"), "")
        named = "/".join(str(value) for value in request.path_params.values()) or location.rpartition("/")[2]
        problem = getattr(request.state, "problem", "")
        return AuditRecord(
            at=self._now(),
            token="" if caller is None else caller.name,
            action=mask(f"{request.method} {getattr(route, 'path', request.url.path)}"),
            object=mask(named),
            outcome=f"{status} {problem}".strip(),
            detail=detail,
        )
