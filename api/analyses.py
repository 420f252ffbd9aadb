"""Analyses of campaigns, each computed once for each change that teaches something: of many trials in seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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


class Analyses:
    """The analyses of a store's campaigns, rendered."""

    def __init__(self, store: Store, cache: CampaignCache, pool: WorkerPool) -> None:
        self._store, self._cache, self._pool = store, cache, pool
        # Held by the request that has one computed.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def of(self, campaign_id: str, token: str) -> Answer:
        """Raises NotFound, and as the pool. token: the caller's identity."""
        turn = self._turns.setdefault(campaign_id, asyncio.Lock())
        async with turn:
            event = await run_in_threadpool(self._store.newest_event, campaign_id, TEACHING)
            key = (campaign_id, "analysis")
            found: Answer | None = self._cache.find(key, event)
            if found is None:
                campaign, trials = await run_in_threadpool(self._read, campaign_id)
                # From fewer plans no forest grows.
                many = FEW_COMBINATIONS + 1 if len(trials) >= MIN_PLANS else PER_TRIAL * len(trials)
                cost = max(many, space_of(campaign.spec).combinations)
                body = await self._pool.run(token, cost, analysis_json, campaign, trials)
                found = await run_in_threadpool(self._cache.get, key, event, lambda: answer_of(body))
            return found

    def _read(self, campaign_id: str) -> tuple[Campaign, Sequence[Trial]]:
        return self._store.campaign(campaign_id), self._store.trials(campaign_id)


def analysis_json(campaign: Campaign, trials: Sequence[Trial]) -> bytes:
    return _ANALYSIS.dump_json(analyse(campaign, space_of(campaign.spec), trials))


AnalysesHandle = Annotated[Analyses, Depends(state("analyses"))]
