"""The only table from our errors to HTTP: problem+json (RFC 9457). 422 is for malformed requests alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from runners.base import RunnerError
from search_spaces.checks import InvalidValue
from tuner.documents import InvalidSpec
from tuner.store import AlreadyExists, IllegalMove, NotFound, StoreError, StoreUnavailable

PROBLEM_JSON = "application/problem+json"

# error -> (status, type, title). The first match in order of specificity wins.
PROBLEMS: Mapping[type[Exception], tuple[HTTPStatus, str, str]] = {
    InvalidSpec: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-spec", "The campaign spec has mistakes"),
    InvalidValue: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-value", "A value is not allowed"),
    NotFound: (HTTPStatus.NOT_FOUND, "not-found", "There is no such object"),
    AlreadyExists: (HTTPStatus.CONFLICT, "already-exists", "The object exists already"),
    IllegalMove: (HTTPStatus.CONFLICT, "illegal-move", "Its present state does not allow this"),
    StoreUnavailable: (HTTPStatus.SERVICE_UNAVAILABLE, "store-unavailable", "The database cannot be used now"),
    StoreError: (HTTPStatus.INTERNAL_SERVER_ERROR, "store-error", "The database refused"),
    RunnerError: (HTTPStatus.SERVICE_UNAVAILABLE, "runner-unavailable", "The runner cannot be used now"),
}


def install(app: FastAPI) -> None:
    """Answer every error of ours, and of the framework, as a problem document."""
    for kind in PROBLEMS:
        app.add_exception_handler(kind, _ours)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _http)


def problem(
    request: Request,
    status: int,
    type_: str,
    title: str,
    detail: str,
    errors: Sequence[Mapping[str, str]] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The problem document. errors: what is wrong where, as JSON pointers into the request."""
    body: dict[str, Any] = {
        "type": f"/problems/{type_}",
        "title": title,
        "status": status,
        "detail": detail,
        "instance": request.url.path,
    }
    if errors:
        body["errors"] = list(errors)
    return JSONResponse(body, status_code=status, media_type=PROBLEM_JSON, headers=dict(headers or {}))


async def _ours(request: Request, error: Exception) -> JSONResponse:
    status, type_, title = next(PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS)
    found = error.problems if isinstance(error, InvalidSpec | InvalidValue) else ()
    errors = [{"pointer": "/" + entry.path.replace(".", "/"), "detail": entry.message} for entry in found]
    detail = f"{len(errors)} found" if errors else str(error)
    headers = {"Retry-After": "5"} if status is HTTPStatus.SERVICE_UNAVAILABLE else None
    return problem(request, status, type_, title, detail, errors, headers)


async def _malformed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = [
        {"pointer": "/" + "/".join(str(part) for part in entry["loc"]), "detail": entry["msg"]}
        for entry in error.errors()
    ]
    title = "The request is malformed"
    return problem(request, 422, "malformed-request", title, f"{len(errors)} found", errors)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    return problem(
        request, error.status_code, phrase.lower().replace(" ", "-"), phrase, str(error.detail), headers=error.headers
    )
