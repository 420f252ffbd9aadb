"""Analyses of campaigns. One of many trials computes for seconds, which in a thread would hold up every request, so
another process does it; of the threads one waits, whatever number of analyses are asked for.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import Annotated, ParamSpec, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Depends
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from meshtune.api.campaign_cache import Answer, CampaignCache, answer_of
from meshtune.api.dependencies import ONE_SPACE, state
from meshtune.api.errors import WorkerEnded
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.results.analysis.analysis import Analysis, analyse
from meshtune.tuner.results.analysis.knob_importance import MIN_PLANS
from meshtune.tuner.store import Store

P = ParamSpec("P")
T = TypeVar("T")
# Behind the service and the jobs of this machine.
NICENESS = 5
# The events that change what trials teach: a job that is sent or begins to run teaches nothing yet.
TEACHING = ("campaign.created", "trial.planned", "trial.done")
_ANALYSIS: TypeAdapter[Analysis] = TypeAdapter(Analysis)


class AnalysisProcess:
    """Starts with the first work, does one after the other, and ends with the service."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def start(self) -> None:
        """Allow work; it is allowed until `stop`."""
        self._stopped = False

    def stop(self) -> None:
        """End the process at once, in the middle of its work if need be."""
        with self._lock:
            self._stopped = True
            pool, self._pool = self._pool, None
        if pool is not None:
            # `ProcessPoolExecutor.kill_workers`, which Python has from 3.14 on.
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown(wait=False, cancel_futures=True)

    def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work`, a function of a module, returns. Raises what it raises, and WorkerEnded."""
        pool: ProcessPoolExecutor | None = None
        try:
            with self._lock:
                if self._stopped:
                    raise WorkerEnded("the service is ending")
                if self._pool is None:
                    # A process that is forked would share the locks of our threads, as they are just then.
                    self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_begin)
                pool = self._pool
                future = pool.submit(work, *args, **kwargs)
            return future.result()
        except (BrokenProcessPool, CancelledError):
            with self._lock:
                if self._pool is pool:
                    self._pool = None
            raise WorkerEnded("the process that does this has ended") from None


class Analyses:
    """The analyses of a store's campaigns, rendered."""

    def __init__(self, store: Store, cache: CampaignCache) -> None:
        self.process = AnalysisProcess()
        self._store = store
        self._cache = cache
        self._one_thread = CapacityLimiter(1)

    async def of(self, campaign_id: str) -> Answer:
        """Raises NotFound, WorkerEnded."""
        event = await run_in_threadpool(self._store.newest_event, campaign_id, TEACHING)
        key = (campaign_id, "analysis")
        found: Answer | None = self._cache.find(key, event)
        if found is not None:
            return found
        return await run_sync(self._cache.get, key, event, lambda: self._compute(campaign_id), limiter=self._one_thread)

    def _compute(self, campaign_id: str) -> Answer:
        campaign, trials = self._store.campaign(campaign_id), self._store.trials(campaign_id)
        # No forest grows from so few: computed sooner than sent.
        if len(trials) < MIN_PLANS:
            return answer_of(analysis_json(campaign, trials))
        return answer_of(self.process.run(analysis_json, campaign, trials))


def analysis_json(campaign: Campaign, trials: Sequence[Trial]) -> bytes:
    with ONE_SPACE:
        space = space_of(campaign.spec)
    return _ANALYSIS.dump_json(analyse(campaign, space, trials))


AnalysesHandle = Annotated[Analyses, Depends(state("analyses"))]


def _begin() -> None:
    # Ctrl-C goes to both of us; the service ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    threading.Thread(target=_end_with_service, daemon=True).start()


def _end_with_service() -> None:
    """Or a service that was killed would leave this process behind, which waits for work for ever."""
    if (service := parent_process()) is not None:
        service.join()
    os._exit(0)
