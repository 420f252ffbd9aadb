"""The job manager: a detached actor, one per namespace, that owns the jobs, so that their senders may come and go.

One event loop and no await between a look and a change, so nothing needs a lock. When it dies its agents die with it.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ray.exceptions import RayError, RayTaskError

from meshtune.runners.base import JobState, JobStatus
from meshtune.runners.failure_cause import Cause
from meshtune.runners.json_files import encode_job, read_json_value
from meshtune.runners.processes.gang import GRACE_S, JOB_MARK, PERIOD_S
from meshtune.runners.ray.job import JobRun, RayJob, ranks_of, refusal
from meshtune.runners.ray.worker_group import (
    WorkerGroup,
    WorkerGroupPool,
    capacities,
    living_nodes,
    release,
    reserve,
    reserved,
)

# A placement group takes some tens of milliseconds. After this, idle groups may be what it waits for; it is asked for
# anew, because the nodes may have changed, ever more rarely, because a busy cluster takes longer.
PATIENCE_S = 0.1
MAX_PATIENCE_S = 5.0
# A living agent answers within a second, and Ray tells of a dead node in two or three. One that says nothing for so
# long hangs.
SILENCE_S = 30.0
# As many worker groups may die under a job before it begins.
MAX_GROUPS = 3
_MAX_CHARACTERS = 300


@dataclass(slots=True)
class Entry:
    """A job in the table."""

    job: RayJob
    status: JobStatus = field(default_factory=lambda: JobStatus(state=JobState.QUEUED))
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    groups_lost: int = 0


class JobManager:
    """The actor that drivers call. key: a job's name and who may see it. Statuses are plain JSON values."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._queue: list[Entry] = []
        self._pool = WorkerGroupPool()
        self._dispatcher: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def refuse(self, document: dict[str, Any]) -> str:
        """Why such a job can never run, empty where it can."""
        job = read_json_value(RayJob, document)
        return refusal(job, capacities(job, living_nodes()))

    async def add(self, key: str, document: dict[str, Any]) -> None:
        """Take a job in; one that is there already stays as it is."""
        if key in self._entries:
            return
        job = read_json_value(RayJob, document)
        spec = replace(job.spec, env={**job.spec.env, JOB_MARK: key})
        self._entries[key] = Entry(replace(job, spec=spec))
        self._queue.append(self._entries[key])
        self._serve()

    async def has(self, key: str) -> bool:
        return key in self._entries

    async def look(self, keys: Sequence[str]) -> dict[str, dict[str, Any] | None]:
        return {key: asdict(self._entries[key].status) if key in self._entries else None for key in keys}

    async def busy(self) -> bool:
        """True while a job has not ended."""
        return not all(entry.status.state.final for entry in self._entries.values())

    async def cancel(self, key: str) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.cancelled.set()
        if entry in self._queue:
            self._queue.remove(entry)
            entry.status = _cancelled()

    def _serve(self) -> None:
        """See that the queue is looked after."""
        if self._dispatcher is None or self._dispatcher.done():
            self._dispatcher = asyncio.create_task(self._dispatch())

    async def _dispatch(self) -> None:
        """Give worker groups to the jobs in the queue, in order."""
        while self._queue:
            entry = self._queue[0]
            group = None
            try:
                group = await self._worker_group(entry)
            except Exception as error:
                traceback.print_exc()
                entry.status = _lost(error)
            if entry in self._queue:
                self._queue.remove(entry)
            if group is not None:
                task = asyncio.create_task(self._run(entry, group))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    async def _worker_group(self, entry: Entry) -> WorkerGroup | None:
        """A group for the job, once its devices are free; None when it was cancelled, or can never run."""
        job, patience_s = entry.job, PATIENCE_S
        idle = self._pool.take(job)
        if idle is not None:
            return idle
        placement, asked_at = reserve(job), time.monotonic()
        while not reserved(placement):
            idle = self._pool.take(job)
            if idle is not None or entry.cancelled.is_set():
                release(placement)
                return idle
            if time.monotonic() - asked_at > patience_s:
                release(placement)
                self._pool.drop_oldest()
                refused = refusal(job, capacities(job, living_nodes()))
                if refused:
                    entry.status = JobStatus(state=JobState.LOST, reason=refused, finished_at=time.time())
                    return None
                placement, asked_at = reserve(job), time.monotonic()
                patience_s = min(2 * patience_s, MAX_PATIENCE_S)
            await asyncio.sleep(PERIOD_S)
        return WorkerGroup(job, placement)

    async def _run(self, entry: Entry, group: WorkerGroup) -> None:
        """Run the job to its end; then keep the worker group, or drop it when it may not be sound."""
        sound = False
        try:
            await _unless(entry.cancelled, group.warm(entry.job.spec.command))
            sound = not entry.cancelled.is_set() and await _run_ranks(entry, group)
        except RayError as error:
            # The group died before the job began, as one does that lost its node while it was idle: nothing is lost.
            entry.groups_lost += 1
            if entry.groups_lost < MAX_GROUPS and not entry.cancelled.is_set():
                self._queue.insert(0, entry)
                self._serve()
            else:
                entry.status = _lost(error)
        except Exception as error:
            traceback.print_exc()
            entry.status = _lost(error)
        if entry.cancelled.is_set() and not entry.status.state.final:
            entry.status = _cancelled()
        if sound:
            self._pool.keep(group, entry.job.idle_s)
        else:
            group.drop()


async def _run_ranks(entry: Entry, group: WorkerGroup) -> bool:
    """Run the job's processes to their end; False when the worker group is not to be trusted with another job."""
    run = JobRun(entry.job, time.time(), time.monotonic(), group.nodes)
    entry.status = JobStatus(state=JobState.RUNNING, started_at=run.started_at, nodes=run.nodes)
    over = asyncio.Event()
    ranks = [RankGroup(run, group, node, over) for node in range(len(group.agents))]
    followers = [asyncio.create_task(part.follow()) for part in ranks]
    with suppress(TimeoutError):
        await asyncio.wait_for(_unless(entry.cancelled, over.wait()), entry.job.spec.time_limit_s)
    if entry.cancelled.is_set():
        run.ending = JobState.CANCELLED
    elif not over.is_set():
        run.ending = JobState.TIMED_OUT
    elif run.failed:
        await asyncio.wait(followers, timeout=GRACE_S)
    for follower in followers:
        follower.cancel()
    await asyncio.gather(*(part.end() for part in ranks))
    entry.status = run.status(time.time(), time.monotonic())
    return not run.faults


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The processes of a job on one node, behind the node's agent."""

    run: JobRun
    group: WorkerGroup
    node: int
    # Set once the job is at its end.
    over: asyncio.Event

    async def follow(self) -> None:
        """Start the processes and note which of them end by themselves."""
        job = self.run.job
        ranks = ranks_of(job.spec, self.node)
        agent, meeting = self.group.agents[self.node], self.group.meeting(job)
        seen = 0
        try:
            if ranks:
                start = agent.start.remote(encode_job(job.spec), list(ranks), (meeting.address, meeting.port))
                self._blame(await asyncio.wait_for(start, SILENCE_S))
            while seen < len(ranks) or not self.run.over:
                deaths = await asyncio.wait_for(agent.watch.remote(seen), SILENCE_S)
                self.run.deaths += deaths[seen:]
                seen = len(deaths)
                if self.run.over:
                    self.over.set()
        except (RayError, TimeoutError) as error:
            self._blame(_message(error))

    async def end(self) -> None:
        """See that no process of the job is left on the node."""
        try:
            await asyncio.wait_for(self.group.agents[self.node].end.remote(), SILENCE_S)
        except (RayError, TimeoutError) as error:
            self._blame(_message(error))

    def _blame(self, why: str) -> None:
        if why:
            self.run.faults.setdefault(self.group.nodes[self.node], why)
            self.over.set()


async def _unless(cancelled: asyncio.Event, work: Coroutine[Any, Any, Any]) -> None:
    """Wait for the work's end, or give it up when the job is cancelled. Raises what the work raises."""
    tasks = [asyncio.create_task(work), asyncio.create_task(cancelled.wait())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()


def _cancelled() -> JobStatus:
    return JobStatus(state=JobState.CANCELLED, reason="cancelled", finished_at=time.time())


def _lost(error: Exception) -> JobStatus:
    return JobStatus(state=JobState.LOST, reason=_message(error), finished_at=time.time(), cause=Cause.NODE_FAULT)


def _message(error: Exception) -> str:
    """Ray's text of a failure in one line."""
    if isinstance(error, RayTaskError):
        error = error.cause
    text = " ".join(str(error).split()) or "no answer"
    return f"{type(error).__name__}: {text[:_MAX_CHARACTERS]}"
