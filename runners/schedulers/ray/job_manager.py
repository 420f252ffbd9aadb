"""The job manager: a detached actor, one per namespace, that owns the jobs, so that their senders may come and go.

A job waits in a placement group of its own, which Ray places when it can: a small job starts while a large one waits,
and an autoscaler sees what is wanted. One event loop and no await between a look and a change, so nothing needs a
lock. When it dies its agents die with it."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group_table

from meshtune.runners.base import Cause, JobState, JobStatus
from meshtune.runners.json_files import encode_job, read_json_value
from meshtune.runners.processes.gang import GRACE_S, JOB_MARK, PERIOD_S
from meshtune.runners.schedulers.ray.job import (
    JobRun,
    PlacementRequest,
    RayJob,
    RayNode,
    ranks_of,
    request_of,
    why_waiting,
)
from meshtune.runners.schedulers.ray.worker_group import (
    WorkerGroup,
    WorkerGroupPool,
    living_nodes,
    release,
    reserve,
)

# A placement group takes some tens of milliseconds, more on a busy cluster. After this, idle groups may be what it
# waits for.
PATIENCE_S = 0.3
# Between two looks at the jobs that wait: the more often the shorter the newest has waited.
MIN_LOOK_S, MAX_LOOK_S = PERIOD_S, 1.0
# An agent ends a job within ten seconds, and Ray tells of a dead node in two or three. One that says nothing for so
# long hangs.
SILENCE_S = 30.0
# As many worker groups may die under a job before it begins.
MAX_GROUPS = 3
_MAX_CHARACTERS = 300


@dataclass(slots=True)
class ManagedJob:
    job: RayJob
    status: JobStatus = field(default_factory=lambda: JobStatus(state=JobState.QUEUED))
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    groups_lost: int = 0
    # By `time.monotonic`.
    waits_since: float = field(default_factory=time.monotonic)
    # What Ray was asked for, and the placement group that it may not have placed yet.
    request: PlacementRequest | None = None
    placement: PlacementGroup | None = None

    def ask(self, request: PlacementRequest) -> None:
        """Ask Ray for devices, where it was not asked for the same."""
        if request != self.request:
            self.withdraw()
            self.request, self.placement = request, reserve(self.job, request)

    def placed(self) -> PlacementGroup | None:
        """The placement group, no longer this entry's, once Ray has placed it."""
        if self.placement is None or placement_group_table(self.placement)["state"] != "CREATED":
            return None
        placement, self.placement, self.request = self.placement, None, None
        return placement

    def withdraw(self) -> None:
        if self.placement is not None:
            release(self.placement)
        self.placement = self.request = None


class JobManager:
    """The actor that drivers call. key: a job's name and who may see it. Statuses are plain JSON values."""

    def __init__(self) -> None:
        self._entries: dict[str, ManagedJob] = {}
        self._queue: list[ManagedJob] = []
        self._pool = WorkerGroupPool()
        self._dispatcher: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()

    async def add(self, key: str, document: dict[str, Any]) -> None:
        """Take a job in; one that is there already stays as it is."""
        if key in self._entries:
            return
        job = read_json_value(RayJob, document)
        spec = replace(job.spec, env={**job.spec.env, JOB_MARK: key})
        self._entries[key] = ManagedJob(replace(job, spec=spec))
        self._queue.append(self._entries[key])
        self._serve()

    async def has(self, key: str) -> bool:
        return key in self._entries

    async def look(self, keys: Sequence[str]) -> dict[str, dict[str, Any] | None]:
        return {key: asdict(self._entries[key].status) if key in self._entries else None for key in keys}

    async def cancel(self, key: str) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.cancelled.set()
        if entry in self._queue:
            self._queue.remove(entry)
            entry.withdraw()
            entry.status = _cancelled()

    def _serve(self) -> None:
        """See that the queue is looked at now."""
        self._news.set()
        if self._dispatcher is None or self._dispatcher.done():
            self._dispatcher = asyncio.create_task(self._dispatch())

    async def _dispatch(self) -> None:
        """Start each job in the queue once there is a worker group for it."""
        while self._queue:
            self._news.clear()
            try:
                nodes = living_nodes()
                for entry in list(self._queue):
                    self._look_after(entry, nodes)
            except Exception:  # Ray's; a failed look changes nothing
                traceback.print_exc()
            youngest_s = time.monotonic() - max((entry.waits_since for entry in self._queue), default=0.0)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(max(youngest_s / 4, MIN_LOOK_S), MAX_LOOK_S))

    def _look_after(self, entry: ManagedJob, nodes: Sequence[RayNode]) -> None:
        """Start the job where there is a group for it, or else say why it waits."""
        group = self._pool.take(entry.job)
        if group is None:
            entry.ask(request_of(entry.job, nodes))
            placement = entry.placed()
            group = WorkerGroup(entry.job, placement) if placement is not None else None
        if group is not None:
            entry.withdraw()
            self._queue.remove(entry)
            task = asyncio.create_task(self._run(entry, group))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        elif time.monotonic() - entry.waits_since > PATIENCE_S:
            entry.status = JobStatus(state=JobState.QUEUED, reason=why_waiting(entry.job, nodes))
            # What is idle may be what it waits for. The queue is in order: no younger job takes it before.
            self._pool.drop_all()

    async def _run(self, entry: ManagedJob, group: WorkerGroup) -> None:
        """Run the job to its end; then keep the worker group, or drop it when it may not be sound."""
        sound = False
        entry.status = JobStatus(state=JobState.QUEUED, reason="its agents get ready")
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
        self._news.set()


async def _run_ranks(entry: ManagedJob, group: WorkerGroup) -> bool:
    """Run the job's processes to their end; False when the worker group is not to be trusted with another job."""
    run = JobRun(entry.job, time.time(), time.monotonic(), group.nodes)
    entry.status = JobStatus(state=JobState.RUNNING, started_at=run.started_at, nodes=run.nodes)
    shares = [asyncio.create_task(_run_share(run, group, node)) for node in range(len(group.agents))]
    cancelled = asyncio.create_task(entry.cancelled.wait())
    pending = set(shares)
    while pending and not run.over:
        left_s = max(run.began + entry.job.spec.time_limit_s - time.monotonic(), 0.0)
        done, _ = await asyncio.wait({cancelled, *pending}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        pending.difference_update(done)
        if cancelled in done:
            run.ending = JobState.CANCELLED
        elif not done:
            run.ending = JobState.TIMED_OUT
    cancelled.cancel()
    if run.failed and pending:
        _, pending = await asyncio.wait(pending, timeout=GRACE_S)
    if pending:
        for node, share in enumerate(shares):
            if share in pending:
                group.agents[node].end.remote()
        await asyncio.wait(pending, timeout=SILENCE_S)
    for node, share in enumerate(shares):
        if not share.done():
            share.cancel()
            run.blame(node, f"did not end its processes within {SILENCE_S:g} s")
    if not run.over:  # the clocks of the nodes were first
        run.ending = JobState.TIMED_OUT
    entry.status = run.status(time.time(), time.monotonic())
    return not run.faults


async def _run_share(run: JobRun, group: WorkerGroup, node: int) -> None:
    """Run the processes of a job on one node to their end, and note it."""
    spec, meeting = run.job.spec, group.meeting(run.job)
    # A mark of its own: two of the job's nodes may be one machine, and one of them is done before the other.
    own = encode_job(replace(spec, env={**spec.env, JOB_MARK: f"{spec.env[JOB_MARK]}#{node}"}))
    try:
        answer = await group.agents[node].run.remote(own, list(ranks_of(spec, node)), (meeting.address, meeting.port))
    except RayError as error:
        run.blame(node, _message(error))
    else:
        run.note(answer["deaths"], time.monotonic())
        if answer["why"]:
            run.blame(node, answer["why"])


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
