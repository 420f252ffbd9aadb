"""Answers that pages poll: rendered once, with an ETag, and a 304 for who has it already."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from fastapi import Request, Response

MEDIA_TYPE = "application/json"
# Fast: of what rows of JSON can be packed, the first level gets most.
GZIP_LEVEL = 1
# Whoever keeps an answer asks each time whether it still holds, and keeps it for themselves.
_CACHE = {"Cache-Control": "private, no-cache", "Vary": "Accept-Encoding, Authorization"}
# What an answer that is kept takes besides its body: its names, its version and its place. Many are smaller than that.
BESIDES = 1000

NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "The client has it: the ETag of If-None-Match."}}


@dataclass(frozen=True, slots=True)
class Answer:
    """A body of JSON, packed by gzip, as most clients take it. etag: weak, of the body."""

    etag: str
    packed: bytes

    @property
    def weight(self) -> int:
        """Bytes in memory, more or less."""
        return len(self.packed) + BESIDES


def answer_of(body: bytes) -> Answer:
    etag = f'W/"{blake2b(body, digest_size=9).hexdigest()}"'
    return Answer(etag, gzip.compress(body, GZIP_LEVEL, mtime=0))


def respond(request: Request, answer: Answer) -> Response:
    """304 where the client names this ETag in If-None-Match, else the body in an encoding that it takes."""
    headers = {**_CACHE, "ETag": answer.etag}
    if names(request.headers.get("if-none-match", ""), answer.etag):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(answer.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=MEDIA_TYPE)
    return Response(gzip.decompress(answer.packed), headers=headers, media_type=MEDIA_TYPE)


def names(if_none_match: str, etag: str) -> bool:
    """Whether the header names this version; weak and strong tags of it are alike (RFC 9110, 13.1.2)."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag.removeprefix("W/") in tags or tags == ["*"]
