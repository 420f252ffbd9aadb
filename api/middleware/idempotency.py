"""Idempotency-Key on a POST or PATCH: the same request sent again gets the same answer, and nothing is done twice.

An answer is kept for a day. Where nothing was done (the statuses NOTHING_DONE), the key may be used again. A request
that was cut off, by a defect or the death of its process, is answered at the next attempt.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshtune.api import errors
from meshtune.api.dependencies import MAX_BYTES, read_up_to
from meshtune.api.errors import IdempotencyBusy, IdempotencyReused, NotAdmitted
from meshtune.tuner.access.tokens import Token
from meshtune.tuner.service.leases import Holder
from meshtune.tuner.store import StoreError
from meshtune.tuner.store.access import Busy, Claim, KeptAnswer, Keys

log = logging.getLogger(__name__)
HEADER = "Idempotency-Key"
METHODS = ("post", "patch")
REPLAYED = "Idempotent-Replayed"
_KEY = re.compile(r"[!-~]{1,200}")
_KEPT_HEADERS = (b"content-type", b"location", b"etag")
NOTHING_DONE = (401, 403, 408, 412, 413, 429, 502, 503, 504)
PARAMETER: dict[str, Any] = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "The same key with the same request, within 24 h, does nothing again and gets the same answer.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
}


class Idempotency:
    """ASGI middleware, behind the gate. holder: this process. now: epoch seconds."""

    def __init__(self, app: ASGIApp, keys: Keys, holder: Holder, now: Callable[[], float] = time.time) -> None:
        self._app, self._keys = app, keys
        self._holder, self._now = holder, now
        # Caller and key of the requests that are answered here just now.
        self._under_way: set[tuple[str, str]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Token | None = scope.get("state", {}).get("caller")
        if scope["type"] != "http" or scope["method"].lower() not in METHODS or caller is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        key = request.headers.get(HEADER)
        if key is None:
            await self._app(scope, receive, send)
            return
        try:
            await self._once(request, caller.sha256, key, send)
        except (NotAdmitted, StoreError, RequestValidationError) as error:
            await (await errors.answer_to(request, error))(scope, receive, send)

    async def _once(self, request: Request, caller: str, key: str, send: Send) -> None:
        """Raises NotAdmitted, StoreError and RequestValidationError before anything is sent."""
        if not _KEY.fullmatch(key):
            message = "must have 1 to 200 characters, no spaces among them"
            raise RequestValidationError([{"loc": ("header", HEADER), "msg": message, "type": "value_error"}])
        body, receive = await _body_of(request)
        if len(body) > MAX_BYTES:  # the route refuses it
            await self._app(request.scope, receive, send)
            return
        # The caller is kept beside it.
        fingerprint = hashlib.sha256()
        for part in (request.method.encode(), request.url.path.encode(), request.url.query.encode(), body):
            fingerprint.update(len(part).to_bytes(8, "big") + part)
        busy = (caller, key) in self._under_way
        self._under_way.add((caller, key))
        try:
            claim = await run_in_threadpool(self._claim, caller, key, fingerprint.hexdigest(), busy)
            match claim:
                case Claim.REUSED:
                    raise IdempotencyReused("this Idempotency-Key came with another request within the last 24 h")
                case Busy():
                    raise IdempotencyBusy("the first request with this Idempotency-Key is still being answered")
                case KeptAnswer():
                    headers = {**claim.headers, REPLAYED: "true"}
                    await Response(claim.body, claim.status, headers)(request.scope, receive, send)
                case Claim.FIRST:
                    await self._act(request, caller, key, receive, send)
        finally:
            if not busy:
                self._under_way.discard((caller, key))

    def _claim(self, caller: str, key: str, fingerprint: str, busy: bool) -> Claim | Busy | KeptAnswer:
        """As `Keys.claim`; a process that died on this machine is not waited for."""
        while True:
            claim = self._keys.claim(caller, key, fingerprint, self._holder.name, self._now(), busy=busy)
            if busy or not isinstance(claim, Busy) or not self._holder.bury(claim.holder):
                return claim

    async def _act(self, request: Request, caller: str, key: str, receive: Receive, send: Send) -> None:
        """Let the application answer, and keep the answer before it goes out."""
        held: list[Message] = []

        async def hold(message: Message) -> None:
            held.append(message)

        # A defect leaves the key as it is: what was done is noted with it.
        with self._keys.acting(caller, key):
            await self._app(request.scope, receive, hold)
        await self._keep(caller, key, held)
        for message in held:
            await send(message)

    async def _keep(self, caller: str, key: str, held: list[Message]) -> None:
        """An answer that cannot be kept leaves the key as it is: the next request finds what was done."""
        start, *rest = held
        status = start["status"]
        body = b"".join(message.get("body", b"") for message in rest)
        kept = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in start["headers"]
            if name.lower() in _KEPT_HEADERS
        }
        try:
            if status in NOTHING_DONE:
                await run_in_threadpool(self._keys.forget, caller, key)
            else:
                await run_in_threadpool(
                    self._keys.keep, caller, key, KeptAnswer(status=status, headers=kept, body=body)
                )
        except StoreError as error:
            log.warning("the answer to a request with an Idempotency-Key is not kept: %s", error)


async def _body_of(request: Request) -> tuple[bytes, Receive]:
    """The body, of which no more is read than a body may have, and a `receive` that gives it once more."""
    body, connected = await read_up_to(request, MAX_BYTES)
    last: Message = {"type": "http.request", "more_body": False} if connected else {"type": "http.disconnect"}
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": True}, last]

    async def receive() -> Message:
        return left.pop(0) if left else await request.receive()

    return body, receive
