"""Reads a request's body as one JSON or YAML document of bounded size. Its values are checked by the caller."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from meshtune.api.errors import Malformed
from meshtune.tuner.specs.document import InvalidSpec, parse_yaml

# A spec with every section written out has about 2 kB.
MAX_BYTES = 1_000_000
# YAML is read by Python, a second for so much of the worst.
MAX_YAML_BYTES = 100_000


async def document_of(request: Request) -> object:
    """The value in the body. Raises Malformed, and HTTPException 413 and 415.

    No other types are read: a page of another site can send a form or plain text without asking us first (CORS).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in READERS:
        given = f"not {kind}" if kind else "and the request names none"
        detail = f"the content type must be {' or '.join(READERS)}, {given}"
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
    max_bytes, parse = READERS[kind]
    content = await content_of(request, max_bytes)
    return await run_in_threadpool(parse, content)


def parse_json(content: bytes) -> object:
    """The value of a JSON text. Raises Malformed, with the place, for what is no JSON or has a key twice."""
    try:
        return json.loads(_text(content), object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Malformed(f"is not JSON: {error.msg}, {where}" if content else "is empty") from None
    except RecursionError:
        raise Malformed("is nested too deep") from None
    except ValueError as error:  # more digits than Python reads, or a key twice
        raise Malformed(str(error)) from None


def parse_yaml_body(content: bytes) -> object:
    """The value of a YAML text. Raises Malformed, with the place."""
    try:
        return parse_yaml(_text(content))
    except InvalidSpec as error:
        (problem,) = error.problems
        where = f", {problem.path}" if problem.path else ""
        raise Malformed(f"is not YAML: {problem.message.removeprefix('is not YAML: ')}{where}") from None


READERS: Mapping[str, tuple[int, Callable[[bytes], object]]] = {
    "application/json": (MAX_BYTES, parse_json),
    "application/yaml": (MAX_YAML_BYTES, parse_yaml_body),
}


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"is not UTF-8: byte {error.start} is {content[error.start]:#04x}") from None


async def content_of(request: Request, max_bytes: int) -> bytes:
    """The bytes of the body. Raises HTTPException 413 and 400."""
    content = bytearray()
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > max_bytes:
                raise HTTPException(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body of this type has at most {max_bytes} bytes"
                )
    except ClientDisconnect:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the connection ended before the body did") from None
    return bytes(content)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, inner in pairs:
        if key in value:
            raise ValueError(f"has the key {key!r} twice in one object")
        value[key] = inner
    return value
