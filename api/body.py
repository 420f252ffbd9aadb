"""Reads a request's body as one JSON document, of bounded size. What its values may be is its reader's business."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from api.errors import Malformed

# A spec with every section written out has about 2 kB.
MOST_BYTES = 1_000_000


async def json_document(request: Request) -> object:
    """The JSON value in the body. Raises Malformed, and HTTPException 413 and 415.

    Only application/json is read: a page of another site can send any other type without asking us first (CORS).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        given = f"not {kind}" if kind else "and the request names none"
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the content type must be application/json, {given}")
    return parse(await _content(request))


def parse(content: bytes) -> object:
    """The value of a JSON text. Raises Malformed, with the place, for what is no JSON or has a key twice."""
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise Malformed(f"is not UTF-8: byte {error.start} is {content[error.start]:#04x}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Malformed(f"is not JSON: {error.msg}, {where}" if content else "is empty") from None
    except RecursionError:
        raise Malformed("is nested too deep") from None
    except ValueError as error:  # more digits than Python reads, or a key twice
        raise Malformed(str(error)) from None


async def _content(request: Request) -> bytes:
    content = bytearray()
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > MOST_BYTES:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {MOST_BYTES} bytes")
    except ClientDisconnect:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the connection ended before the body did") from None
    return bytes(content)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in value if keys.count(key) > 1)
        raise ValueError(f"has the key {twice!r} twice in one object")
    return value
