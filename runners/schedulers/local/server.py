"""The local server: a small batch scheduler for this machine that outlives the service which submits to it.

One process, one thread: it imports the training code once and forks every rank from itself (warm start), so it must
never start a thread or touch a GPU. First come, first served. Running jobs share no device, and those that other
processes were last seen to compute on come last. When it dies its ranks die with it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from meshtune.runners.base import JobState, JobStatus
from meshtune.runners.devices.visible import Neighbours
from meshtune.runners.processes.gang import JOB_MARK, PERIOD_S, Gang, is_marked, kill_marked, meeting_here, warm_entry
from meshtune.runners.processes.job_user import job_user, take_back
from meshtune.runners.schedulers.local.spool import Spool, SpooledJob
from meshtune.search_spaces.checks import InvalidValue

STOP_LIMIT_S = 5.0
# Between two looks at who else computes on a running job's devices; the first is at its start.
LOOK_PERIOD_S = 30.0


@dataclass(slots=True)
class RunningJob:
    gang: Gang
    # By the clock on the wall.
    started_at: float
    devices: tuple[str, ...]
    # When to look at its devices next, by `time.monotonic`.
    look_at: float
    # The names of processes of others that computed on them, by process id, by device.
    others: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class Server:
    spool: Spool
    # Jobs that are queued, running or over.
    known: set[str] = field(default_factory=set)
    # Jobs to start, oldest first.
    queue: list[SpooledJob] = field(default_factory=list)
    running: dict[str, RunningJob] = field(default_factory=dict)
    neighbours: Neighbours = field(default_factory=Neighbours)
    # Statuses that could not be written yet.
    unwritten: dict[str, JobStatus] = field(default_factory=dict)
    # When its time ends, by `time.monotonic`; and whether a job waits for which too little is left of it.
    ends_at: float = inf
    out_of_time: bool = False
    # When the folder of jobs was changed, in the file system's words, and when that was seen, by `time.monotonic`.
    jobs_changed_at: int = -1
    change_seen_at: float = 0.0

    def recover(self) -> None:
        """Take over a spool: what its dead server had running is lost."""
        for name in self.spool.names():
            status = self.spool.status(name)
            if status.state is JobState.RUNNING:
                kill_marked(self._mark(name))
                with suppress(OSError, ValueError):
                    if (job := self.spool.job(name)).run_as:
                        take_back(job.spec.directory)
                reason = "the local server died and its processes with it"
                self._report(name, replace(status, state=JobState.LOST, reason=reason, finished_at=time.time()))
            if status.state is not JobState.QUEUED:
                self.known.add(name)

    def step(self, now: float) -> None:
        """One turn. now: by `time.monotonic`, as all times that this hands on."""
        with suppress(OSError):  # the next turn looks again; what runs is watched over meanwhile
            self._look(now)
        self._note_neighbours(now)
        if any(job.devices and now >= job.look_at for job in self.running.values()):
            self.neighbours.look(now)
        for name, job in list(self.running.items()):
            if self.spool.cancel_asked(name):
                job.gang.end(JobState.CANCELLED, now)
            job.gang.step(now)
            if not job.gang.alive:
                self._close(name, now)
        self._start_queued()
        for name, status in list(self.unwritten.items()):
            self._report(name, status)

    def stop(self, now: float) -> None:
        """End everything at once: running jobs are lost, queued ones stay queued for the next server."""
        gangs = [job.gang for job in self.running.values()]
        for gang in gangs:
            gang.end(JobState.LOST, now)
        while any(gang.alive for gang in gangs) and time.monotonic() < now + STOP_LIMIT_S:
            for gang in gangs:
                gang.step(time.monotonic())
            time.sleep(PERIOD_S)
        for name in list(self.running):
            self._close(name, time.monotonic())

    def _look(self, now: float) -> None:
        changed_at = os.stat(self.spool.jobs).st_mtime_ns
        # A time stamp is as coarse as the kernel's tick: two changes in one tick look like one until it is past. The
        # file system's clock may be another machine's.
        if changed_at != self.jobs_changed_at:
            self.jobs_changed_at, self.change_seen_at = changed_at, now
        elif now - self.change_seen_at > 0.5:
            return
        for name in self.spool.names():
            if name in self.known:
                continue
            try:
                self.queue.append(self.spool.job(name))
            except ValueError as error:
                reason = f"its order in the spool cannot be understood: {error}"
                self._report(name, JobStatus(state=JobState.LOST, reason=reason, finished_at=time.time()))
            self.known.add(name)

    def _close(self, name: str, now: float) -> None:
        job = self.running.pop(name)
        gang = job.gang
        kill_marked(self._mark(name))
        if gang.user is not None:
            with suppress(FileNotFoundError):  # somebody removed it
                take_back(gang.spec.directory)
        end = gang.result()
        reason = "the local server was told to stop" if end.state is JobState.LOST else end.reason
        end = replace(
            end, reason=reason, warning=_warning(job.others), started_at=job.started_at, finished_at=time.time()
        )
        self._report(name, replace(end, elapsed_s=now - gang.started_at))

    def _start_queued(self) -> None:
        for job in list(self.queue):
            name = job.spec.name
            if self.spool.cancel_asked(name):
                self.queue.remove(job)
                self._report(name, JobStatus(state=JobState.CANCELLED, reason="cancelled", finished_at=time.time()))
            elif not self.spool.has(name):
                self.queue.remove(job)
        while self.queue:
            job = self.queue[0]
            self.out_of_time = time.monotonic() + job.needs_s > self.ends_at
            if self.out_of_time:
                return
            taken = sum(running.gang.spec.devices for running in self.running.values())
            if taken + job.spec.devices > job.slots:
                return
            held = {device for running in self.running.values() for device in running.devices}
            free = [device for device in job.devices if device not in held]
            if job.devices and len(free) < job.spec.devices:
                return
            started_at = time.time()
            try:  # on disk before the first process is, so that a death in between starts no second gang
                self.spool.set_status(job.spec.name, JobStatus(state=JobState.RUNNING, started_at=started_at))
            except OSError:
                return
            self.queue.pop(0)
            self._start(job, free, started_at)

    def _start(self, job: SpooledJob, free: Sequence[str], started_at: float) -> None:
        """free: the devices to choose from."""
        name, asked_at = job.spec.name, time.monotonic()
        if free:
            self.neighbours.look(asked_at)
        entry = warm_entry(job.spec.command, job.spec.directory)  # the first takes as long as a look
        self._note_neighbours(time.monotonic())
        unused_first = sorted(free, key=lambda device: bool(self.neighbours.on(device)))[: job.spec.devices]
        devices = tuple(device for device in free if device in unused_first)
        shown = {job.device_variable: ",".join(devices)} if devices else {}
        spec = replace(job.spec, env={**job.spec.env, **shown, JOB_MARK: self._mark(name)})
        try:
            user = job_user(job.run_as)
            gang = Gang(spec, time.monotonic(), user=user)
            if user is not None:
                user.give(spec.directory)
            gang.start(range(spec.processes), meeting_here(spec), entry)
        except (OSError, InvalidValue) as error:
            trouble = error.strerror if isinstance(error, OSError) else str(error)
            reason = f"its processes could not be started: {trouble}"
            self._report(name, JobStatus(state=JobState.LOST, reason=reason, finished_at=time.time()))
            return
        self.running[name] = RunningJob(gang, started_at, devices, asked_at)

    def _note_neighbours(self, now: float) -> None:
        """Take a look that has ended down to the jobs that were there when it began."""
        if not self.neighbours.poll(now, self._is_own):
            return
        began_at = self.neighbours.began_at
        for job in self.running.values():
            if began_at >= job.look_at:
                job.look_at = began_at + LOOK_PERIOD_S
                for device in job.devices:
                    job.others.setdefault(device, {}).update(self.neighbours.on(device))

    def _is_own(self, pid: int) -> bool:
        """Of a process that runs, or is a rank that has ended unnoticed."""
        jobs = self.running.items()
        return any(pid in job.gang.alive or is_marked(pid, self._mark(name)) for name, job in jobs)

    def _report(self, name: str, status: JobStatus) -> None:
        try:
            self.spool.set_status(name, status)
            self.unwritten.pop(name, None)
        except FileNotFoundError:  # somebody removed the job from the spool, so nobody reads of it any more
            self.unwritten.pop(name, None)
        except OSError:
            self.unwritten[name] = status

    def _mark(self, name: str) -> str:
        """The job's mark in its processes' environment, unique on this machine."""
        return str(self.spool.jobs / name)


def _warning(others: Mapping[str, Mapping[str, str]]) -> str:
    """Who computed on a job's devices beside it, for people; empty for nobody. others: as in `RunningJob`."""
    shared = [
        f"{device} by {', '.join(f'{name} ({pid})' for pid, name in processes.items())}"
        for device, processes in others.items()
        if processes
    ]
    return f"devices used by other processes too: {'; '.join(shared)}" if shared else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="meshtune.runners.schedulers.local.server")
    parser.add_argument("root", type=Path)
    parser.add_argument("--idle-s", type=float, default=30.0)
    parser.add_argument("--ends-in-s", type=float, default=inf)
    options = parser.parse_args(arguments)
    begun_at = time.monotonic()
    spool = Spool(options.root.resolve())
    for _ in range(50):
        lock = spool.take_lock()
        if lock is not None:
            break
        time.sleep(PERIOD_S)
    else:
        return 0
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = Server(spool, ends_at=begun_at + options.ends_in_s)
    server.recover()
    idle_since = time.monotonic()
    while not stopping and spool.holds(lock):
        with suppress(OSError):
            server.step(time.monotonic())
        if server.out_of_time and not server.running and not server.unwritten:
            return 0
        if server.queue or server.running or server.unwritten:
            idle_since = time.monotonic()
        elif time.monotonic() - idle_since > options.idle_s:
            return 0
        time.sleep(PERIOD_S)
    server.stop(time.monotonic())
    return 0


if __name__ == "__main__":
    sys.exit(main())
