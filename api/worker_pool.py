"""Work whose cost grows with what was asked for, apart from cheap requests: in few other processes of low priority,
bounded in time and memory, the tokens in turn.

In a thread it would hold up every request. What is under way or waits takes no thread of those that answer; what would
wait for too long is refused before it starts, with the seconds after which to try again.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from traceback import format_exc
from typing import Annotated, Any, ParamSpec, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Depends
from starlette.concurrency import run_in_threadpool

from meshtune.api.dependencies import CallerHandle, ServiceHandle, state
from meshtune.api.errors import TooCostly, TooManyRequests, WorkerEnded
from meshtune.tuner.access.tokens import Token
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.prediction.predict import Basis
from meshtune.tuner.service.calibrations import known_basis
from meshtune.tuner.service.service import Service
from meshtune.tuner.specs.read import parse_spec

P = ParamSpec("P")
T = TypeVar("T")
# What one request may enumerate, and of how many legal plans it may predict memory and speed: 1 and 10 s of a core at
# the most. See docs/decisions/service.md#d0024.
MAX_COMBINATIONS, MAX_PREDICTED = 1_000_000, 100_000
# So little is computed here, in 0.1 s at the most: sooner than another process is told of it.
FEW_COMBINATIONS = 1_000
# What one trial costs where all of a campaign teach, in combinations.
PER_TRIAL = 10
# One on a machine of two cores; the jobs of this machine want the others.
PROCESSES = max(1, min(4, len(os.sched_getaffinity(0)) // 2))
# Behind the service and the jobs of this machine.
NICENESS = 5
# Of a processor, since jobs of this machine go before, and LONGEST times that by the clock.
TIME_LIMIT_S, LONGEST = 30.0, 10
# Of one process, what it began with included.
MEMORY_LIMIT_BYTES = 2 * 2**30
# Requests that wait: of one token, and in all.
MAX_WAITING_EACH, MAX_WAITING = 4, 32
# How much the newest duration counts in what a typical one is taken to be, and what that is at first.
WEIGHT, TYPICAL_S = 0.2, 1.0


@dataclass(frozen=True, slots=True)
class _Item:
    work: Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)


class WorkerPool:
    """Processes start with the first work for them, and end with the service. Thread-safe."""

    def __init__(self, processes: int = PROCESSES, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._stopped = threading.Event()
        self._free = [_Worker(time_limit_s, self._stopped) for _ in range(processes)]
        self._workers = tuple(self._free)
        # By token; the first one is next.
        self._waiting: OrderedDict[str, deque[_Item]] = OrderedDict()
        self._lock = threading.Lock()
        self._typical_s = TYPICAL_S
        self._here = CapacityLimiter(1)

    def start(self) -> None:
        """Allow work; it is allowed until `stop`."""
        self._stopped.clear()

    def stop(self) -> None:
        """End the processes at once, in the middle of their work if need be; what waits is not begun."""
        with self._lock:
            self._stopped.set()
            left = [item for items in self._waiting.values() for item in items]
            self._waiting.clear()
        for worker in self._workers:
            worker.kill()
        for item in left:
            _fail(item, WorkerEnded("the service is ending"))

    async def run(self, token: str, combinations: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work`, a function of a module, returns for these values.

        token: the caller's, by its digest. combinations: what it enumerates, by arithmetic. Raises what it raises,
        TooCostly, TooManyRequests, and WorkerEnded where the process was ended or needed too much.
        """
        if combinations > MAX_COMBINATIONS:
            raise TooCostly(
                f"this enumerates {combinations} combinations, more than the {MAX_COMBINATIONS} that the service does"
                " for one request: bound the space, or ask the command line"
            )
        call = partial(work, *args, **kwargs)
        if combinations <= FEW_COMBINATIONS:
            return await run_sync(call, limiter=self._here)
        return await asyncio.wrap_future(self.submit(token, call))

    def submit(self, token: str, work: Callable[[], T]) -> Future[T]:
        """The result of work in a process, once it is this token's turn. Raises TooManyRequests and WorkerEnded."""
        item = _Item(work)
        with self._lock:
            if self._stopped.is_set():
                raise WorkerEnded("the service is ending")
            if not self._free:
                self._require_room(token)
                self._waiting.setdefault(token, deque()).append(item)
                return item.result
            worker = self._free.pop()
        item.result.set_running_or_notify_cancel()
        threading.Thread(target=self._serve, args=(worker, item), name="worker", daemon=True).start()
        return item.result

    def _require_room(self, token: str) -> None:
        own = len(self._waiting.get(token, ()))
        total = sum(map(len, self._waiting.values()))
        turn_s = self._typical_s / len(self._workers)
        if own >= MAX_WAITING_EACH:
            reason = f"{own} requests of this token wait to be computed"
            # Until its next one begins.
            wait_s = turn_s * len(self._waiting)
        elif total >= MAX_WAITING:
            reason, wait_s = f"{total} requests wait to be computed", turn_s
        else:
            return
        raise TooManyRequests(f"{reason}, which is all that may; the next one may come in {wait_s:.2g} s", wait_s)

    def _serve(self, worker: _Worker, first: _Item) -> None:
        """Do the first item, and then what waits, one after the other."""
        item: _Item | None = first
        while item is not None:
            begun = time.monotonic()
            result, error = None, None
            try:
                result = worker.run(item.work)
            except Exception as raised:
                error = raised
            with self._lock:
                self._typical_s += WEIGHT * (time.monotonic() - begun - self._typical_s)
            # Before the answer: what its client sends next must not wait for the process that has just done this.
            following = self._next(worker)
            if error is None:
                item.result.set_result(result)
            else:
                _fail(item, error)
            item = following

    def _next(self, worker: _Worker) -> _Item | None:
        """The first item of the next token, whose turn comes again behind the others. None: the worker is free."""
        with self._lock:
            while self._waiting:
                token, items = self._waiting.popitem(last=False)
                item = items.popleft()
                if items:
                    self._waiting[token] = items
                if item.result.set_running_or_notify_cancel():  # else its client has gone
                    return item
            self._free.append(worker)
            return None


class _Worker:
    """One process, replaced where it ended, and started only while its pool is not stopped."""

    def __init__(self, time_limit_s: float, stopped: threading.Event) -> None:
        self._time_limit_s, self._stopped = time_limit_s, stopped
        self._process: SpawnProcess | None = None
        self._pipe: Any = None
        self._lock = threading.Lock()

    def kill(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def run(self, work: Callable[[], Any]) -> Any:
        """Raises what it raises, and WorkerEnded."""
        process = self._started()
        try:
            self._pipe.send(work)
            result, error = self._pipe.recv()
        except (EOFError, OSError):
            process.join()
            late = process.exitcode in (-signal.SIGPROF, -signal.SIGALRM)
            reason = f"it took longer than {self._time_limit_s:g} s of a processor"
            raise WorkerEnded(reason if late else "the process that does this has ended") from None
        if error is not None:
            raise error
        return result

    def _started(self) -> SpawnProcess:
        with self._lock:
            if self._stopped.is_set():
                raise WorkerEnded("the service is ending")
            if self._process is None or not self._process.is_alive():
                # A process that is forked would share the locks of our threads, as they are just then.
                spawn = get_context("spawn")
                self._pipe, theirs = spawn.Pipe()
                self._process = spawn.Process(target=_work, args=(theirs, self._time_limit_s), daemon=True)
                self._process.start()
                theirs.close()
            return self._process


def _work(pipe: Any, time_limit_s: float) -> None:
    # Ctrl-C goes to both of us; the service ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    # Of what is written to; the address space holds much that is only reserved.
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    while True:
        try:
            work = pipe.recv()
        except EOFError:  # the service was killed
            return
        # The kernel ends us, whatever we are at and whether or not the service still lives.
        signal.setitimer(signal.ITIMER_PROF, time_limit_s)
        signal.setitimer(signal.ITIMER_REAL, LONGEST * time_limit_s)
        answer: tuple[Any, Exception | None]
        try:
            answer = (work(), None)
        except MemoryError:
            answer = (None, WorkerEnded(f"it needs more than {MEMORY_LIMIT_BYTES / 2**30:g} GiB"))
        except Exception as error:
            error.add_note(format_exc())
            answer = (None, error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        pipe.send(answer)


def _fail(item: _Item, error: Exception) -> None:
    if not item.result.cancelled():
        item.result.set_exception(error)


PoolHandle = Annotated[WorkerPool, Depends(state("pool"))]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request whose answer is computed: who sent it, the service, and the pool."""

    caller: Token
    service: Service
    pool: WorkerPool

    async def run(self, combinations: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `WorkerPool.run`, for the caller."""
        return await self.pool.run(self.caller.sha256, combinations, work, *args, **kwargs)

    async def basis(self, spec: CampaignSpec, trials: Sequence[Trial] = ()) -> Basis:
        """What the predictions of a spec rest on, of what the caller may read."""
        return await run_in_threadpool(known_basis, self.service.store, spec, self.caller, trials)

    async def of_spec(
        self, work: Callable[[object, CampaignSpec, Basis], T], document: object, home: Home | None = None
    ) -> T:
        """What `work` makes of a spec. home: as of `parse_spec`. Raises InvalidSpec, and as the pool."""
        spec, space = await run_in_threadpool(parse_spec, document, home, MAX_COMBINATIONS)
        return await self.run(space.combinations, work, document, spec, await self.basis(spec))


async def _asked(caller: CallerHandle, service: ServiceHandle, pool: PoolHandle) -> Asked:
    return Asked(caller, service, pool)


AskedHandle = Annotated[Asked, Depends(_asked)]
