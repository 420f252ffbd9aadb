"""The local server: a small batch scheduler for this machine that outlives the service which submits to it.

`python -m meshtune.runners.local.server ROOT` serves the spool under ROOT until nothing has been to do for a while. One
process, one thread: it imports the training code once and forks every rank from itself (warm start), so it must never
start a thread or touch a GPU. First come, first served; a job starts when its processes fit its slots. When it dies
its ranks die with it; its successor kills what they left and reports their jobs LOST.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshtune.runners.base import JobSpec, JobState, JobStatus
from meshtune.runners.local.spool import Order, Spool
from meshtune.runners.processes.gang import (
    JOB_MARK,
    Entry,
    exit_text,
    first_death,
    kill_marked,
    kill_tree,
    reap_one,
    start_gang,
)

# Modules worth importing once for all jobs: what `python -m KEY` runs is `main` of the module named beside it.
WARM_MODULES: Mapping[str, str] = {"meshtune.runners.trainer": "meshtune.runners.trainer.main"}
PERIOD_S = 0.02
# After a rank's death its peers get this long to write down what they saw; then they are killed.
GRACE_S = 0.5


@dataclass(slots=True)
class Gang:
    """A job whose processes run. alive: rank by process id. deaths: rank and exit code of those that ended by
    themselves, before the gang was killed."""

    order: Order
    alive: dict[int, int]
    started_at: float
    deadline: float
    deaths: list[tuple[int, int]] = field(default_factory=list)
    kill_at: float | None = None
    ending: JobState | None = None
    killed: bool = False


@dataclass(slots=True)
class Server:
    """What the loop knows. queue: jobs to start, oldest first. unwritten: states that could not be written yet."""

    spool: Spool
    warm: dict[str, Entry | None] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    queue: list[Order] = field(default_factory=list)
    gangs: dict[str, Gang] = field(default_factory=dict)
    unwritten: dict[str, JobStatus] = field(default_factory=dict)
    jobs_changed_at: int = -1

    @property
    def busy(self) -> bool:
        return bool(self.queue or self.gangs or self.unwritten)

    def recover(self, now: float) -> None:
        """Take over a spool: what its dead server had running is lost."""
        for name in self.spool.names():
            status = self.spool.status(name)
            if status.state is JobState.RUNNING:
                kill_marked(self._mark(name))
                reason = "the local server died and its processes with it"
                self._report(
                    name,
                    JobStatus(state=JobState.LOST, reason=reason, started_at=status.started_at, finished_at=now),
                )
            if status.state is not JobState.QUEUED:
                self.known.add(name)

    def step(self, now: float) -> None:
        """One turn: look for new jobs, end what must end, reap what ended, start what fits, write what is unwritten."""
        with suppress(OSError):  # the next turn looks again; what runs is watched over meanwhile
            self._look(now)
        for name, gang in self.gangs.items():
            self._judge(name, gang, now)
        self._reap(now)
        for name in [name for name, gang in self.gangs.items() if not gang.alive]:
            self._close(name, self.gangs.pop(name), now)
        self._start_queued(now)
        for name, status in list(self.unwritten.items()):
            self._report(name, status)

    def stop(self, now: float) -> None:
        """End everything at once: running jobs are lost, queued ones stay queued for the next server."""
        for gang in self.gangs.values():
            gang.ending = gang.ending or JobState.LOST
            for pid in gang.alive:
                kill_tree(pid)
        end = now + 5.0
        while any(gang.alive for gang in self.gangs.values()) and time.time() < end:
            self._reap(time.time())
            time.sleep(PERIOD_S)
        for name, gang in self.gangs.items():
            self._close(name, gang, time.time())
        self.gangs.clear()

    def _look(self, now: float) -> None:
        changed_at = os.stat(self.spool.jobs).st_mtime_ns
        # A time stamp is as coarse as the kernel's tick: two changes in one tick look like one until it is past.
        if changed_at == self.jobs_changed_at and now - changed_at / 1e9 > 0.5:
            return
        for name in self.spool.names():
            if name in self.known:
                continue
            try:
                self.queue.append(self.spool.order(name))
            except (ValueError, TypeError, KeyError) as error:
                reason = f"its order in the spool cannot be understood: {error}"
                self._report(name, JobStatus(state=JobState.LOST, reason=reason, finished_at=now))
            self.known.add(name)
        self.jobs_changed_at = changed_at

    def _judge(self, name: str, gang: Gang, now: float) -> None:
        if gang.ending is None and self.spool.cancel_asked(name):
            gang.ending, gang.kill_at = JobState.CANCELLED, now
        if gang.ending is None and now >= gang.deadline:
            gang.ending, gang.kill_at = JobState.TIMED_OUT, now
        if gang.kill_at is not None and now >= gang.kill_at:
            gang.killed = True
            for pid in gang.alive:
                kill_tree(pid)

    def _reap(self, now: float) -> None:
        while (ended := reap_one()) is not None:
            pid, code = ended
            for gang in self.gangs.values():
                rank = gang.alive.pop(pid, None)
                if rank is None or gang.killed:
                    continue
                gang.deaths.append((rank, code))
                if code != 0:
                    gang.kill_at = gang.kill_at or now + GRACE_S

    def _close(self, name: str, gang: Gang, now: float) -> None:
        kill_marked(self._mark(name))
        code: int | None = 0
        if gang.ending is not None:
            state, code = gang.ending, None
            reason = {
                JobState.CANCELLED: "cancelled",
                JobState.TIMED_OUT: f"ran longer than its time limit of {gang.order.spec.time_limit_s:g} s",
            }.get(state, "the local server was told to stop")
        elif (death := first_death(gang.deaths)) is not None:
            state, reason, code = JobState.FAILED, exit_text(*death), death[1]
        else:
            state, reason = JobState.SUCCEEDED, ""
        self._report(
            name,
            JobStatus(state=state, reason=reason, exit_code=code, started_at=gang.started_at, finished_at=now),
        )

    def _start_queued(self, now: float) -> None:
        for order in list(self.queue):
            name = order.spec.name
            if self.spool.cancel_asked(name):
                self.queue.remove(order)
                self._report(name, JobStatus(state=JobState.CANCELLED, reason="cancelled", finished_at=now))
            elif not self.spool.has(name):
                self.queue.remove(order)
        while self.queue:
            order = self.queue[0]
            taken = sum(gang.order.spec.devices for gang in self.gangs.values())
            if taken + order.spec.devices > order.slots or not self._write_running(order, now):
                return
            self.queue.pop(0)
            self._start(order, now)

    def _write_running(self, order: Order, now: float) -> bool:
        """RUNNING is on disk before the first process is, so that a death in between starts no second gang."""
        try:
            self.spool.set_status(order.spec.name, JobStatus(state=JobState.RUNNING, started_at=now))
        except OSError:
            return False
        return True

    def _start(self, order: Order, now: float) -> None:
        spec = replace(order.spec, env={**order.spec.env, JOB_MARK: self._mark(order.spec.name)})
        try:
            pids = start_gang(spec, self._entry(spec))
        except OSError as error:
            reason = f"its processes could not be started: {error.strerror}"
            self._report(spec.name, JobStatus(state=JobState.LOST, reason=reason, finished_at=now))
            return
        self.gangs[spec.name] = Gang(
            order=order,
            alive={pid: rank for rank, pid in enumerate(pids)},
            started_at=now,
            deadline=now + spec.time_limit_s,
        )

    def _entry(self, spec: JobSpec) -> Entry | None:
        """What to run in a fork of this process instead of starting an interpreter, where that is possible."""
        program, *arguments = spec.command
        if program != sys.executable or len(arguments) < 2 or arguments[0] != "-m" or arguments[1] not in WARM_MODULES:
            return None
        if arguments[1] not in self.warm:
            self.warm[arguments[1]] = import_warm(arguments[1])
        return self.warm[arguments[1]]

    def _report(self, name: str, status: JobStatus) -> None:
        try:
            self.spool.set_status(name, status)
            self.unwritten.pop(name, None)
        except FileNotFoundError:  # somebody removed the job from the spool, so nobody reads of it any more
            self.unwritten.pop(name, None)
        except OSError:
            self.unwritten[name] = status

    def _mark(self, name: str) -> str:
        """What every process of the job carries in its environment: unique among all spools of this machine."""
        return str(self.spool.jobs / name)


def import_warm(module: str) -> Entry | None:
    """The entry of a warm module, imported once; None when it cannot be: its jobs then start cold and say why."""
    try:
        entry: Entry = importlib.import_module(WARM_MODULES[module]).main
    except Exception:
        traceback.print_exc()
        return None
    return entry


def take_lock(spool: Spool) -> int | None:
    """The lock's file descriptor, or None when a server lives. A record lock: forked ranks do not inherit it.
    Raises OSError where there can be no lock."""
    descriptor = os.open(spool.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_place_of(lock: int, spool: Spool) -> bool:
    """False once the spool was removed: what is at its path then, if anything, is another server's."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(spool.lock))
    except FileNotFoundError:
        return False
    except OSError:  # what cannot be looked at now is no less there
        return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="meshtune.runners.local.server")
    parser.add_argument("root", type=Path)
    parser.add_argument("--idle-s", type=float, default=30.0)
    options = parser.parse_args(arguments)
    spool = Spool(options.root.resolve())
    for _ in range(50):
        lock = take_lock(spool)
        if lock is not None:
            break
        time.sleep(PERIOD_S)
    else:
        return 0
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = Server(spool)
    server.recover(time.time())
    idle_since = time.monotonic()
    while not stopping and _is_place_of(lock, spool):
        with suppress(OSError):
            server.step(time.time())
        if server.busy:
            idle_since = time.monotonic()
        elif time.monotonic() - idle_since > options.idle_s:
            return 0
        time.sleep(PERIOD_S)
    server.stop(time.time())
    return 0


if __name__ == "__main__":
    sys.exit(main())
