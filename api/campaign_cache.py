"""Answers about campaigns, each computed once for each change of its campaign, and kept in memory.

The id of a campaign's newest event is the version of everything about its trials: whoever changes a trial writes an
event in the same transaction. A version is read before the rows that it stands for, so no answer is older than it.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType
from typing import Annotated, Any, TypeVar
from weakref import WeakValueDictionary

from cachetools import LRUCache
from fastapi import Depends, Request, Response

from meshtune.api.dependencies import state
from meshtune.api.static_files import has_version
from meshtune.tuner.store import Store

MAX_BYTES = 64 * 2**20
# What an entry takes in memory besides an answer's body.
ENTRY_BYTES = 1500
_HEADERS = {"Cache-Control": "private, no-cache", "Vary": "Accept-Encoding, Authorization"}
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "The client has it: the ETag of If-None-Match."}}

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Answer:
    etag: str
    gzipped: bytes
    media_type: str = "application/json"


def answer_of(body: bytes, media_type: str = "application/json") -> Answer:
    # Level 1: of rows of JSON, a higher one takes twice the time for little.
    return Answer(f'W/"{blake2b(body, digest_size=9).hexdigest()}"', gzip.compress(body, 1, mtime=0), media_type)


def respond(request: Request, answer: Answer, others: Mapping[str, str] = MappingProxyType({})) -> Response:
    """304 where the client has this version, else the body in an encoding that it takes. others: headers."""
    headers = {**_HEADERS, "ETag": answer.etag, **others}
    if has_version(request.headers, answer.etag):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(answer.gzipped, headers={**headers, "Content-Encoding": "gzip"}, media_type=answer.media_type)
    return Response(gzip.decompress(answer.gzipped), headers=headers, media_type=answer.media_type)


class CampaignCache:
    """Thread-safe. When it is full, the least recently used entries go. Keys begin with the campaign's id."""

    def __init__(self, store: Store, max_bytes: int = MAX_BYTES) -> None:
        self._store = store
        self._entries: LRUCache[Hashable, tuple[Hashable, Any]] = LRUCache(max_bytes, getsizeof=_size)
        self._lock = threading.Lock()
        # Held by the thread that computes a key's value.
        self._turns: WeakValueDictionary[Hashable, threading.Lock] = WeakValueDictionary()

    def answer(self, campaign_id: str, question: str, render: Callable[[], bytes]) -> Answer:
        """The rendered answer as of the campaign's newest event. Raises NotFound."""
        event = self._store.newest_event(campaign_id)
        return self.get((campaign_id, question), event, lambda: answer_of(render()))

    def find(self, key: Hashable, version: Hashable) -> Any:
        """The value of this version, None where there is none."""
        with self._lock:
            found = self._entries.get(key)
        return found[1] if found is not None and found[0] == version else None

    def get(self, key: Hashable, version: Hashable, compute: Callable[[], Value]) -> Value:
        """The value of this version. Of several threads that ask for it, one computes it and the others wait."""
        found: Value | None = self.find(key, version)
        if found is not None:
            return found
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:
            found = self.find(key, version)
            if found is None:
                found = compute()
                with self._lock, suppress(ValueError):  # larger than the whole cache
                    self._entries[key] = (version, found)
            return found


def _size(entry: tuple[Hashable, Any]) -> int:
    value = entry[1]
    if isinstance(value, Answer):
        return ENTRY_BYTES + len(value.gzipped)
    return ENTRY_BYTES + (len(value) if isinstance(value, bytes) else 0)


CacheHandle = Annotated[CampaignCache, Depends(state("cache"))]
