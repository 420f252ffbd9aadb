"""Documents about all trials of a campaign (analysis, record, report, table), each computed by another process, once
for each change: of many trials in seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated
from weakref import WeakValueDictionary

from fastapi import Depends
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from meshtune.api.campaign_cache import Answer, CampaignCache, answer_of
from meshtune.api.dependencies import state
from meshtune.api.worker_pool import FEW_COMBINATIONS, PER_TRIAL, WorkerPool
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.results.analysis.analysis import Analysis, analyse
from meshtune.tuner.results.analysis.knob_importance import MIN_PLANS
from meshtune.tuner.store import Store

# The events that change what trials teach: a job that is sent or begins to run teaches nothing yet.
TEACHING = ("campaign.created", "trial.planned", "trial.done")
_ANALYSIS: TypeAdapter[Analysis] = TypeAdapter(Analysis)
JSON = "application/json"
Work = Callable[[Campaign, Sequence[Trial]], bytes]


class Documents:
    """The documents of a store's campaigns, rendered."""

    def __init__(self, store: Store, cache: CampaignCache, pool: WorkerPool) -> None:
        self._store, self._cache, self._pool = store, cache, pool
        # Held by the request that has one computed.
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def analysis(self, campaign_id: str, token: str) -> Answer:
        """Raises NotFound, and as the pool. token: the caller's, by its digest."""

        def cost(campaign: Campaign, trials: Sequence[Trial]) -> int:
            # From fewer plans no forest grows.
            many = FEW_COMBINATIONS + 1 if len(trials) >= MIN_PLANS else PER_TRIAL * len(trials)
            return max(many, space_of(campaign.spec).combinations)

        return await self._of(campaign_id, token, "analysis", analysis_json, cost, TEACHING)

    async def of(
        self, campaign_id: str, token: str, name: str, work: Work, media_type: str = JSON, *, space: bool = False
    ) -> Answer:
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
    ) -> Answer:
        key = (campaign_id, name)
        turn = self._turns.setdefault(key, asyncio.Lock())
        async with turn:
            event = await run_in_threadpool(self._store.newest_event, campaign_id, kinds)
            found: Answer | None = self._cache.find(key, event)
            if found is None:
                campaign, trials = await run_in_threadpool(self._read, campaign_id)
                body = await self._pool.run(token, cost(campaign, trials), work, campaign, trials)
                found = await run_in_threadpool(self._cache.get, key, event, lambda: answer_of(body, media_type))
            return found

    def _read(self, campaign_id: str) -> tuple[Campaign, Sequence[Trial]]:
        return self._store.campaign(campaign_id), self._store.trials(campaign_id)


def analysis_json(campaign: Campaign, trials: Sequence[Trial]) -> bytes:
    return _ANALYSIS.dump_json(analyse(campaign, space_of(campaign.spec), trials))


DocumentsHandle = Annotated[Documents, Depends(state("documents"))]
