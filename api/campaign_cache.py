"""Answers about campaigns, each computed once for each change of its campaign, and kept in memory.

The id of a campaign's newest event is the version of everything about its trials: whoever changes a trial writes an
event in the same transaction. A version is read before the rows that it stands for, so no answer is older than it.
Documents about all trials (analysis, record, report, table) are computed by other processes: of many trials in seconds.
"""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType
from typing import Annotated, Any, TypeVar
from weakref import WeakValueDictionary

from cachetools import LRUCache
from fastapi import Depends, Request, Response
from starlette.concurrency import run_in_threadpool

from meshtune.api.dependencies import CampaignId, state
from meshtune.api.static_files import has_version
from meshtune.api.worker_pool import FEW_COMBINATIONS, PER_TRIAL, WorkerPool
from meshtune.runners.documents import json_of
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.results.analysis.analysis import analyse
from meshtune.tuner.results.analysis.knob_importance import MIN_PLANS
from meshtune.tuner.store import Store

MAX_BYTES = 64 * 2**20
# What an entry takes in memory besides an answer's body.
ENTRY_BYTES = 1500
_HEADERS = {"Cache-Control": "private, no-cache", "Vary": "Accept-Encoding, Authorization"}
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "The client has it: the ETag of If-None-Match."}}
# The events that change what trials teach: a job that is sent or begins to run teaches nothing yet.
TEACHING = ("campaign.created", "trial.planned", "trial.done")
JSON = "application/json"
Work = Callable[[Campaign, Sequence[Trial]], bytes]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Rendered:
    etag: str
    gzipped: bytes
    media_type: str = JSON


def etag_of(body: bytes, version: str = "") -> str:
    """version: a campaign's, which If-Match compares."""
    return f'W/"{version}{"." if version else ""}{blake2b(body, digest_size=9).hexdigest()}"'


def answer_of(body: bytes, media_type: str = JSON, version: str = "") -> Rendered:
    # Level 1: of rows of JSON, a higher one takes twice the time for little.
    return Rendered(etag_of(body, version), gzip.compress(body, 1, mtime=0), media_type)


def respond(request: Request, answer: Rendered, others: Mapping[str, str] = MappingProxyType({})) -> Response:
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

    def answer(self, campaign_id: str, question: str, render: Callable[[], bytes]) -> Rendered:
        """The rendered answer as of the campaign's newest event. Raises NotFound."""
        event = self._store.newest_event(campaign_id)
        return self.get((campaign_id, question), event, lambda: answer_of(render()))

    def find(self, key: Hashable, version: Hashable) -> Any:
        """The value of this version, None where there is none."""
        with self._lock:
            entry = self._entries.get(key)
        return entry[1] if entry is not None and entry[0] == version else None

    def get(self, key: Hashable, version: Hashable, compute: Callable[[], Value]) -> Value:
        """The value of this version. Of several threads that ask for it, one computes it and the others wait."""
        value: Value | None = self.find(key, version)
        if value is not None:
            return value
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:
            value = self.find(key, version)
            if value is None:
                value = compute()
                with self._lock, suppress(ValueError):  # larger than the whole cache
                    self._entries[key] = (version, value)
            return value


def _size(entry: tuple[Hashable, Any]) -> int:
    value = entry[1]
    if isinstance(value, Rendered):
        return ENTRY_BYTES + len(value.gzipped)
    return ENTRY_BYTES + (len(value) if isinstance(value, bytes) else 0)


class Documents:
    """The documents of a store's campaigns, each rendered by another process."""

    def __init__(self, store: Store, cache: CampaignCache, pool: WorkerPool) -> None:
        self._store, self._cache, self._pool = store, cache, pool
        # Held by the request that has one computed.
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def analysis(self, campaign_id: str, token: str) -> Rendered:
        """Raises NotFound, and as the pool. token: the caller's, by its digest."""

        def cost(campaign: Campaign, trials: Sequence[Trial]) -> int:
            # From fewer plans no forest grows.
            many = FEW_COMBINATIONS + 1 if len(trials) >= MIN_PLANS else PER_TRIAL * len(trials)
            return max(many, space_of(campaign.spec).combinations)

        return await self._of(campaign_id, token, "analysis", analysis_json, cost, TEACHING)

    async def of(
        self, campaign_id: str, token: str, name: str, work: Work, media_type: str = JSON, *, space: bool = False
    ) -> Rendered:
        """The document of this name, which `work`, a function of a module, makes in another process. space: it
        enumerates the campaign's. Raises as `analysis`."""

        def cost(campaign: Campaign, trials: Sequence[Trial]) -> int:
            many = max(FEW_COMBINATIONS + 1, PER_TRIAL * len(trials))
            return max(many, space_of(campaign.spec).combinations) if space else many

        return await self._of(campaign_id, token, name, work, cost, (), media_type)

    async def _of(
        self,
        campaign_id: str,
        token: str,
        name: str,
        work: Work,
        cost: Callable[[Campaign, Sequence[Trial]], int],
        kinds: Sequence[str],
        media_type: str = JSON,
    ) -> Rendered:
        key = (campaign_id, name)
        turn = self._turns.setdefault(key, asyncio.Lock())
        async with turn:
            event = await run_in_threadpool(self._store.newest_event, campaign_id, kinds)
            rendered: Rendered | None = self._cache.find(key, event)
            if rendered is None:
                campaign, trials = await run_in_threadpool(self._store.recorded, campaign_id)
                body = await self._pool.run(token, cost(campaign, trials), work, campaign, trials)
                rendered = await run_in_threadpool(self._cache.get, key, event, lambda: answer_of(body, media_type))
            return rendered


def analysis_json(campaign: Campaign, trials: Sequence[Trial]) -> bytes:
    return json_of(analyse(campaign, space_of(campaign.spec), trials))


DocumentsHandle = Annotated[Documents, Depends(state("documents"))]
CacheHandle = Annotated[CampaignCache, Depends(state("cache"))]


async def answerer_of(
    request: Request, campaign_id: CampaignId, cache: CacheHandle
) -> Callable[[str, Callable[[], object]], Response]:
    """What answers a question about the campaign with a view, rendered once for each of the campaign's events."""

    def answer(question: str, make: Callable[[], object]) -> Response:
        return respond(request, cache.answer(campaign_id, question, lambda: json_of(make())))

    return answer


CachedAnswer = Annotated[Callable[[str, Callable[[], object]], Response], Depends(answerer_of)]
