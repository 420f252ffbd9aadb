"""The only table from our errors to HTTP: problem+json (RFC 9457). 422 is for malformed requests alone.

Types, below /problems/: `invalid-spec` (well-formed, but no campaign can be made of it), `invalid-body` (of another
route) and `malformed-body` carry `errors` whose pointers (RFC 6901) lead into the body; `malformed-request` has
pointers /path/name and /query/name; the others are in PROBLEMS. What HTTP alone says (an unknown route, a wrong method)
is about:blank.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from http import HTTPStatus
from math import ceil
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from meshtune.runners.base import RunnerError
from meshtune.runners.extras import MissingExtra
from meshtune.runners.job_files import FULL
from meshtune.runners.outcome import ResultMalformed
from meshtune.runners.programs.dialects.base import CannotExpress
from meshtune.runners.registry import UnknownBackend
from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner import store
from meshtune.tuner.access.quotas import QuotaExceeded
from meshtune.tuner.campaign.changes import CannotChange, VersionConflict
from meshtune.tuner.results.export import NothingToExport
from meshtune.tuner.results.known_best import NothingKnown
from meshtune.tuner.service.job_files import ReportRefused
from meshtune.tuner.service.views.problems import Mistake, ProblemDetails
from meshtune.tuner.specs.document import CommandNotAllowed, InvalidSpec

PROBLEM_JSON = "application/problem+json"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# What the client may wait before it tries a 503 again.
RETRY_AFTER = {"Retry-After": "5"}


class Malformed(ValueError):
    """The body is no document; trying again with the same body fails again. The message goes on after "the body"."""


class InvalidBody(InvalidValue):
    """The body is a document, and none that this route takes; `problems` has every mistake with its path."""


class InvalidQuery(InvalidValue):
    """Parameters that no type describes are wrong; `problems` has their names and, after a dot, parts."""


class RangeNotSatisfiable(Exception):
    """The range has no byte of what it is a range of; `headers` tell its size."""

    def __init__(self, message: str, size_bytes: int) -> None:
        self.headers = {"Content-Range": f"bytes */{size_bytes}"}
        super().__init__(message)


class Unanswerable(Exception):
    """What is known of the campaign does not suffice for an answer; the message says what is missing."""


class TooCostly(ValueError):
    """What was asked for would compute too much; nothing was begun, and trying again fails again. The message has the
    number and the limit."""


class WorkerEnded(Exception):
    """The process that computes was ended in its work, or is not started any more. Trying again may help."""


class NotAdmitted(Exception):
    """The request was not let in, and nothing was done. The message is fit for a user and names no token's secret.
    `headers` go into the answer."""

    headers: Mapping[str, str] = {}


class Unauthenticated(NotAdmitted):
    """There is no token, or one that opens nothing; the same request fails again."""

    headers = {"WWW-Authenticate": "Bearer"}  # noqa: RUF012  # read only, as the base class says


class ScopeMissing(NotAdmitted):
    """The caller is known, and its token does not allow this; the same request fails again."""


class TooManyRequests(NotAdmitted):
    """The caller's rate limit; trying again after `wait_s` helps."""

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.headers = {"Retry-After": str(max(1, ceil(wait_s)))}


class IdempotencyReused(NotAdmitted):
    """The same key came with another request before; the same request fails again."""


class IdempotencyBusy(NotAdmitted):
    """Another request with the same key is being answered; trying again helps."""

    headers = {"Retry-After": "1"}  # noqa: RUF012


# error -> (status, type, title). The first match in order of specificity wins.
PROBLEMS: Mapping[type[Exception], tuple[HTTPStatus, str, str]] = {
    InvalidSpec: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-spec", "The campaign spec has mistakes"),
    InvalidBody: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-body", "The body has mistakes"),
    Malformed: (HTTPStatus.UNPROCESSABLE_ENTITY, "malformed-body", "The body is malformed"),
    RequestValidationError: (HTTPStatus.UNPROCESSABLE_ENTITY, "malformed-request", "The request is malformed"),
    CommandNotAllowed: (HTTPStatus.FORBIDDEN, "command-not-allowed", "The spec names what only `command` allows"),
    QuotaExceeded: (HTTPStatus.FORBIDDEN, "quota-exceeded", "The token's quota leaves no room for it"),
    ReportRefused: (HTTPStatus.UNAUTHORIZED, "report-refused", "The token is not this job's"),
    ResultMalformed: (HTTPStatus.UNPROCESSABLE_ENTITY, "malformed-result", "The document is no result"),
    Unauthenticated: (HTTPStatus.UNAUTHORIZED, "unauthenticated", "A token is needed"),
    ScopeMissing: (HTTPStatus.FORBIDDEN, "scope-missing", "The token does not allow this"),
    TooManyRequests: (HTTPStatus.TOO_MANY_REQUESTS, "rate-limited", "Too many requests"),
    IdempotencyReused: (HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency-key-reused", "The key is another request's"),
    IdempotencyBusy: (HTTPStatus.CONFLICT, "idempotency-key-busy", "The first request is still being answered"),
    InvalidQuery: (HTTPStatus.UNPROCESSABLE_ENTITY, "malformed-request", "The request is malformed"),
    RangeNotSatisfiable: (
        HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
        "range-not-satisfiable",
        "There is nothing in this range",
    ),
    NothingToExport: (HTTPStatus.CONFLICT, "nothing-to-export", "There is no measured plan to export"),
    CannotExpress: (HTTPStatus.CONFLICT, "cannot-express", "The program has no words for this plan"),
    UnknownBackend: (HTTPStatus.CONFLICT, "unknown-backend", "The campaign names what is not installed"),
    MissingExtra: (HTTPStatus.CONFLICT, "unknown-backend", "The campaign names what is not installed"),
    Unanswerable: (HTTPStatus.CONFLICT, "unanswerable", "Not enough is known to answer this"),
    NothingKnown: (HTTPStatus.NOT_FOUND, "nothing-known", "Nothing that was measured answers this"),
    store.NotFound: (HTTPStatus.NOT_FOUND, "not-found", "There is no such object"),
    store.AlreadyExists: (HTTPStatus.CONFLICT, "already-exists", "The object exists already"),
    store.BudgetSpent: (HTTPStatus.CONFLICT, "budget-spent", "The campaign's budget leaves no room for it"),
    CannotChange: (HTTPStatus.CONFLICT, "illegal-move", "Its present state does not allow this"),
    VersionConflict: (HTTPStatus.PRECONDITION_FAILED, "version-conflict", "Somebody else has changed it since"),
    store.IllegalMove: (HTTPStatus.CONFLICT, "illegal-move", "Its present state does not allow this"),
    store.Unreadable: (HTTPStatus.CONFLICT, "unreadable", "It is stored as this version does not read it"),
    store.StoreUnavailable: (HTTPStatus.SERVICE_UNAVAILABLE, "store-unavailable", "The database cannot be used now"),
    store.StoreError: (HTTPStatus.INTERNAL_SERVER_ERROR, "store-error", "The database refused"),
    TooCostly: (HTTPStatus.UNPROCESSABLE_ENTITY, "too-costly", "This would compute too much"),
    WorkerEnded: (HTTPStatus.SERVICE_UNAVAILABLE, "worker-ended", "What this takes was broken off"),
    RunnerError: (HTTPStatus.SERVICE_UNAVAILABLE, "runner-unavailable", "The runner cannot be used now"),
}


def install(app: FastAPI) -> None:
    """Answer every error of ours, and of the framework, as a problem document."""
    for kind in PROBLEMS:
        app.add_exception_handler(kind, answer_to)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(OSError, _full_disk)
    app.add_exception_handler(Exception, defect)


def pointer(path: Iterable[object]) -> str:
    """The JSON pointer (RFC 6901) along these keys and indices."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


async def answer_to(request: Request, error: Exception) -> Response:
    """The answer to an error in PROBLEMS, for what stands before the routes, too."""
    status, type_, title = next(PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS)
    mistakes = _mistakes(error)
    request.state.problem = type_
    detail = str(error)
    if mistakes:
        first = f"{mistakes[0].pointer or 'the body'}: {mistakes[0].detail}"
        detail = first if len(mistakes) == 1 else f"{len(mistakes)} mistakes; the first: {first}"
    headers = RETRY_AFTER if status is HTTPStatus.SERVICE_UNAVAILABLE else getattr(error, "headers", {})
    return _answer(request, status, f"/problems/{type_}", title, detail, mistakes, headers)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    detail = error.detail if error.detail != phrase else f"{phrase}: {request.method} {request.url.path}"
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # The framework names the methods of one route; others may have the same path.
        routes = request.app.router.routes
        known = (
            method
            for method in METHODS
            if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
        )
        headers["Allow"] = ", ".join(known) or headers.get("Allow", "")
    return _answer(request, error.status_code, "about:blank", phrase, detail, headers=headers)


async def _full_disk(request: Request, error: Exception) -> Response:
    """Space may come back. Any other error of the system is a defect."""
    if getattr(error, "errno", None) not in FULL:
        raise error
    status = HTTPStatus.SERVICE_UNAVAILABLE
    return _answer(request, status, "/problems/disk-full", "A disk is full", str(error), headers=RETRY_AFTER)


async def defect(request: Request, error: Exception) -> Response:
    """The framework raises the error again after this answer, and the server logs it."""
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    detail = f"a defect of meshtune ({type(error).__name__}); the server's log has the traceback"
    return _answer(request, status, "about:blank", status.phrase, detail)


def _mistakes(error: Exception) -> tuple[Mistake, ...]:
    if isinstance(error, Malformed):
        return (Mistake("", str(error)),)
    if isinstance(error, (InvalidSpec, InvalidBody, InvalidQuery)):
        under = "query" if isinstance(error, InvalidQuery) else ""
        problems = [problem.under(under) for problem in error.problems]
        return tuple(Mistake(pointer(one.path.split(".") if one.path else ()), one.message) for one in problems)
    if isinstance(error, RequestValidationError):
        return tuple(Mistake(pointer(entry["loc"]), entry["msg"]) for entry in error.errors())
    return ()


def _answer(
    request: Request,
    status: int,
    type_: str,
    title: str,
    detail: str,
    errors: tuple[Mistake, ...] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    instance = quote(request.url.path, safe="/:@!$&'()*+,;=~")
    shown = ProblemDetails(type=type_, title=title, status=status, detail=detail, instance=instance, errors=errors)
    content: dict[str, Any] = asdict(shown)
    if not errors:
        del content["errors"]
    # Halves of surrogate pairs, which a detail may repeat, stand as JSON's escapes of them.
    body = json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return Response(body, status_code=status, media_type=PROBLEM_JSON, headers=dict(headers or {}))
