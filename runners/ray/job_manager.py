"""The keeper: a detached actor on the cluster that owns the jobs, so that those who sent them may die and come back.

One keeper per namespace: a table of jobs, a queue (first come, first served), deadlines, and the crews that run them,
warm for a while after each job. One event loop and no await between a look and a change, so nothing needs a lock. When
it dies its agents die with it and their processes with them; whoever asks its successor hears that the jobs are lost.
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
from meshtune.runners.batch.launch_wrapper import GRACE_S
from meshtune.runners.failure_cause import Cause
from meshtune.runners.processes.gang import JOB_MARK
from meshtune.runners.processes.job_json import encode_job
from meshtune.runners.ray.rank_group import Gang, Order, decode_order, ranks_of, refusal
from meshtune.runners.ray.worker_group import Crew, Pool, capacities, living_nodes, release, reserve, reserved

PERIOD_S = 0.02
# A placement group takes some tens of milliseconds. After this, idle crews may be what it waits for; it is asked for
# anew, because the nodes may have changed, ever more rarely, because a busy cluster takes longer.
PATIENCE_S = 0.1
LONGEST_PATIENCE_S = 5.0
# A living agent answers within a second, and Ray tells of a dead node in two or three. One that says nothing for so
# long hangs.
SILENCE_S = 30.0
# As many crews may die under a job before it begins.
CREWS = 3
_MOST_CHARACTERS = 300


@dataclass(slots=True)
class Job:
    """A job in the table."""

    order: Order
    status: JobStatus = field(default_factory=lambda: JobStatus(state=JobState.QUEUED))
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    crews_lost: int = 0


class Keeper:
    """What drivers call. key: a job's name and who may see it. Statuses are plain JSON values."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._queue: list[Job] = []
        self._pool = Pool()
        self._dispatcher: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def refuse(self, document: dict[str, Any]) -> str:
        """Why such a job can never run, empty where it can."""
        order = decode_order(document)
        return refusal(order, capacities(order, living_nodes()))

    async def add(self, key: str, document: dict[str, Any]) -> None:
        """Take a job in; one that is there already stays as it is."""
        if key in self._jobs:
            return
        order = decode_order(document)
        spec = replace(order.spec, env={**order.spec.env, JOB_MARK: key})
        self._jobs[key] = Job(replace(order, spec=spec))
        self._queue.append(self._jobs[key])
        self._serve()

    def _serve(self) -> None:
        """See that the queue is looked after."""
        if self._dispatcher is None or self._dispatcher.done():
            self._dispatcher = asyncio.create_task(self._dispatch())

    async def has(self, key: str) -> bool:
        return key in self._jobs

    async def look(self, keys: Sequence[str]) -> dict[str, dict[str, Any] | None]:
        return {key: asdict(self._jobs[key].status) if key in self._jobs else None for key in keys}

    async def busy(self) -> bool:
        """True while a job has not ended."""
        return not all(job.status.state.final for job in self._jobs.values())

    async def cancel(self, key: str) -> None:
        job = self._jobs.get(key)
        if job is None:
            return
        job.cancelled.set()
        if job in self._queue:
            self._queue.remove(job)
            job.status = _cancelled()

    async def _dispatch(self) -> None:
        """Give crews to the jobs in the queue, in order; what one job meets with ends that job alone."""
        while self._queue:
            job = self._queue[0]
            crew = None
            try:
                crew = await self._crew(job)
            except Exception as error:
                traceback.print_exc()
                job.status = _lost(error)
            if job in self._queue:
                self._queue.remove(job)
            if crew is not None:
                task = asyncio.create_task(self._run(job, crew))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    async def _crew(self, job: Job) -> Crew | None:
        """A crew for the job, as soon as its devices are free; None when it was cancelled meanwhile, or the cluster has
        become too small for it."""
        order, patience_s = job.order, PATIENCE_S
        crew = self._pool.take(order)
        if crew is not None:
            return crew
        group, asked_at = reserve(order), time.monotonic()
        while not reserved(group):
            crew = self._pool.take(order)
            if crew is not None or job.cancelled.is_set():
                release(group)
                return crew
            if time.monotonic() - asked_at > patience_s:
                release(group)
                self._pool.drop_oldest()
                refused = refusal(order, capacities(order, living_nodes()))
                if refused:
                    job.status = JobStatus(state=JobState.LOST, reason=refused, finished_at=time.time())
                    return None
                group, asked_at = reserve(order), time.monotonic()
                patience_s = min(2 * patience_s, LONGEST_PATIENCE_S)
            await asyncio.sleep(PERIOD_S)
        return Crew(order, group)

    async def _run(self, job: Job, crew: Crew) -> None:
        """Run the job to its end; then keep the crew, or drop it when it may not be sound."""
        sound = False
        try:
            await _unless(job.cancelled, crew.warm(job.order.spec.command))
            sound = not job.cancelled.is_set() and await _play(job, crew)
        except RayError as error:
            self._try_again(job, error)
        except Exception as error:
            traceback.print_exc()
            job.status = _lost(error)
        if job.cancelled.is_set() and not job.status.state.final:
            job.status = _cancelled()
        if sound:
            self._pool.keep(crew, job.order.idle_s)
        else:
            crew.drop()

    def _try_again(self, job: Job, error: RayError) -> None:
        """The crew died before the job began, as one does that lost its node while it was idle: nothing is lost."""
        job.crews_lost += 1
        if job.crews_lost < CREWS and not job.cancelled.is_set():
            self._queue.insert(0, job)
            self._serve()
        else:
            job.status = _lost(error)


async def _play(job: Job, crew: Crew) -> bool:
    """Run the job's processes to their end; False when the crew is not to be trusted with another."""
    gang = Gang(job.order, time.time(), crew.nodes)
    job.status = JobStatus(state=JobState.RUNNING, started_at=gang.started_at, nodes=gang.nodes)
    over = asyncio.Event()
    seats = [Seat(gang, crew, number, over) for number in range(len(crew.agents))]
    followers = [asyncio.create_task(seat.follow()) for seat in seats]
    with suppress(TimeoutError):
        await asyncio.wait_for(_unless(job.cancelled, over.wait()), job.order.spec.time_limit_s)
    if job.cancelled.is_set():
        gang.ending = JobState.CANCELLED
    elif not over.is_set():
        gang.ending = JobState.TIMED_OUT
    elif gang.stricken:
        await asyncio.wait(followers, timeout=GRACE_S)
    for follower in followers:
        follower.cancel()
    await asyncio.gather(*(seat.end() for seat in seats))
    job.status = gang.status(time.time())
    return not gang.faults


@dataclass(frozen=True, slots=True)
class Seat:
    """One agent's part in a gang. over: set once the gang is at its end."""

    gang: Gang
    crew: Crew
    number: int
    over: asyncio.Event

    async def follow(self) -> None:
        """Start the agent's processes and note which of them end by themselves."""
        order = self.gang.order
        ranks = ranks_of(order.spec, self.number)
        agent, meeting = self.crew.agents[self.number], self.crew.meeting(order)
        seen = 0
        try:
            if ranks:
                start = agent.start.remote(encode_job(order.spec), list(ranks), (meeting.address, meeting.port))
                self._blame(await asyncio.wait_for(start, SILENCE_S))
            while seen < len(ranks) or not self.gang.over:
                deaths = await asyncio.wait_for(agent.watch.remote(seen), SILENCE_S)
                self.gang.deaths += deaths[seen:]
                seen = len(deaths)
                if self.gang.over:
                    self.over.set()
        except (RayError, TimeoutError) as error:
            self._blame(_told(error))

    async def end(self) -> None:
        """See that no process of the job is left on the agent's node."""
        try:
            await asyncio.wait_for(self.crew.agents[self.number].end.remote(), SILENCE_S)
        except (RayError, TimeoutError) as error:
            self._blame(_told(error))

    def _blame(self, why: str) -> None:
        if why:
            self.gang.faults.setdefault(self.crew.nodes[self.number], why)
            self.over.set()


async def _unless(cancelled: asyncio.Event, work: Coroutine[Any, Any, Any]) -> None:
    """Wait for the work's end, or give it up as soon as the job is cancelled. Raises what the work raises."""
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
    """A job that never came to run, or whose end was not seen."""
    return JobStatus(state=JobState.LOST, reason=_told(error), finished_at=time.time(), cause=Cause.NODE_FAULT)


def _told(error: Exception) -> str:
    """What Ray says of a failure in several lines, in one."""
    if isinstance(error, RayTaskError):
        error = error.cause
    text = " ".join(str(error).split()) or "no answer"
    return f"{type(error).__name__}: {text[:_MOST_CHARACTERS]}"
