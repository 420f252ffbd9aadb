"""Starts, watches and ends the processes of one gang on this machine, warm (a fork of this process) where it can.

Every process leads a session of its own, so that what it starts dies with it, and dies itself when its parent does
(PR_SET_PDEATHSIG). What left the session, or outlived a killed supervisor, is known by a mark in its environment."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from math import inf
from pathlib import Path
from typing import NoReturn
from zlib import crc32

from meshtune.runners.base import JobSpec, JobState, JobStatus
from meshtune.runners.devices.record import leave_record
from meshtune.runners.processes.job_user import JobUser

# What `python -m MODULE` would run, as a function of the arguments after it.
Entry = Callable[[list[str]], int]
_PR_SET_PDEATHSIG = 1
# Of the ports where jobs meet: below those that the kernel gives to clients.
FIRST_PORT, PORTS = 20_000, 12_000
# Between two looks at a gang.
PERIOD_S = 0.02
# After a rank's death its peers get this long to write down what they saw; then they are killed.
GRACE_S = 0.5
# How long the end of a job's ranks waits for the record of its node's hardware, where they were faster.
RECORD_WAIT_S = 0.1
# Names the job in the environment of its ranks, which every program they start inherits.
JOB_MARK = "MESHTUNE_JOB"
# A process that forks faster than it is found escapes one look at all processes, but not many; and one with much memory
# takes a while to die.
_MARK_LIMIT_S, _MARK_PERIOD_S = 1.0, 0.001
# What a job sees of its surroundings; everything else (tokens, passwords) stays with us.
_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TZ", "PYTHONPATH", "VIRTUAL_ENV"),
    *("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCM_PATH"),
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
)


# Threads that libraries would start in each process; `runners.report`, which people copy, has them too.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def minimal_environment() -> dict[str, str]:
    """The part of our environment that jobs may see, with one compute thread per process."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**kept, **dict.fromkeys(THREADS, "1"), "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the processes of one job can meet."""

    address: str
    port: int


def meeting_here(spec: JobSpec) -> Meeting:
    """On this machine: a port of the job's own, below those that the kernel gives to clients."""
    return Meeting("127.0.0.1", FIRST_PORT + crc32(spec.name.encode()) % PORTS)


def rank_environment(spec: JobSpec, rank: int, meeting: Meeting) -> dict[str, str]:
    """What tells one process of the job which it is, under the names that torchrun uses."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(spec.processes),
        "LOCAL_RANK": str(rank % spec.processes_per_node),
        "NODE_RANK": str(rank // spec.processes_per_node),
        "NNODES": str(spec.nodes),
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": str(meeting.port),
    }


def gang_end(spec: JobSpec, deaths: Sequence[tuple[int, int]], ending: JobState | None) -> JobStatus:
    """The end of a gang, without times. deaths: as in `Gang`. ending: why it was ended before its time, if it was."""
    if ending is not None:
        late = f"ran longer than its time limit of {spec.time_limit_s:g} s"
        reasons = {JobState.CANCELLED: "cancelled", JobState.TIMED_OUT: late}
        return JobStatus(state=ending, reason=reasons.get(ending, ""))
    if (death := first_death(deaths)) is not None:
        return JobStatus(state=JobState.FAILED, reason=exit_text(*death), exit_code=death[1])
    return JobStatus(state=JobState.SUCCEEDED, exit_code=0)


@dataclass(slots=True)
class Gang:
    """The processes of one job on this machine: a loop starts them and calls `step` until none is alive."""

    spec: JobSpec
    # By `time.monotonic`, as all times here: whoever sets the machine's clock must not end a job.
    started_at: float
    # Rank by process id.
    alive: dict[int, int] = field(default_factory=dict)
    # (rank, exit code) of those that ended by themselves, before the gang was killed, in order of notice.
    deaths: list[tuple[int, int]] = field(default_factory=list)
    # Why it is ended before its time.
    ending: JobState | None = None
    kill_at: float = inf
    killed: bool = False
    # As whom they run, None: as we do.
    user: JobUser | None = None
    # The process that records this node's hardware beside the ranks; None: it has ended.
    recorder: int | None = None

    def start(self, ranks: Iterable[int], meeting: Meeting, entry: Entry | None) -> None:
        """Start these ranks, and beside them, once on each node, the record of its hardware. entry: as for
        `start_rank`. Raises OSError, and then none is left."""
        try:
            for rank in ranks:
                self.alive[start_rank(self.spec, rank, meeting, entry, self.user)] = rank
        except OSError:
            self.kill()
            raise
        first = next((rank for rank in self.alive.values() if rank % self.spec.processes_per_node == 0), None)
        if first is not None:
            # Not into the rank's log: the job may be about to remove it, or to put something else in its place.
            with suppress(OSError):  # the job does without
                self.recorder = start_rank(self.spec, first, meeting, _record, self.user, Path(os.devnull))

    def end(self, state: JobState, now: float) -> None:
        """Have it killed by the next step; the first reason to end it stays."""
        if self.ending is None:
            self.ending, self.kill_at = state, now

    def step(self, now: float) -> None:
        """Note who has ended, and kill what must end."""
        if self.recorder is not None and os.waitpid(self.recorder, os.WNOHANG)[0]:
            self.recorder = None
        for pid in list(self.alive):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            # The group dies before its leader is reaped: until then its number cannot be anybody else's.
            kill_tree(pid)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            rank = self.alive.pop(pid)
            if not self.killed:
                self.deaths.append((rank, code))
                if code != 0:
                    self.kill_at = min(self.kill_at, now + GRACE_S)
        if self.alive and now - self.started_at >= self.spec.time_limit_s:
            self.end(JobState.TIMED_OUT, now)
        if now >= self.kill_at:
            self.killed = True
            for pid in self.alive:
                kill_tree(pid)
        if not self.alive:
            self._end_recorder(0.0 if self.killed or self.death is not None else RECORD_WAIT_S)

    def kill(self) -> None:
        """Kill it now and wait for its end."""
        for pid in self.alive:
            kill_tree(pid)
        for pid in self.alive:
            os.waitpid(pid, 0)
        self.alive.clear()
        self._end_recorder(0.0)

    def _end_recorder(self, wait_s: float) -> None:
        """Let it end by itself for so long."""
        if self.recorder is None:
            return
        end = time.monotonic() + wait_s
        while not (ended := os.waitpid(self.recorder, os.WNOHANG)[0]) and time.monotonic() < end:
            time.sleep(PERIOD_S / 4)
        if not ended:
            kill_tree(self.recorder)
            os.waitpid(self.recorder, 0)
        self.recorder = None

    @property
    def death(self) -> tuple[int, int] | None:
        """The (rank, exit code) to blame, None where all did well."""
        return first_death(self.deaths)

    def result(self) -> JobStatus:
        return gang_end(self.spec, self.deaths, self.ending)


def run_gang(spec: JobSpec, entry: Entry | None) -> Gang:
    """Run a job to its end; none of its processes is left after, an exception or SIGTERM too. Main thread only. entry:
    as for `start_rank`. Raises OSError when the processes cannot be started."""
    gang, received = Gang(spec, time.monotonic()), list[int]()
    # An exception from a handler is lost where it meets a callback of the interpreter, as those around a fork.
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        gang.start(range(spec.processes), meeting_here(spec), entry)
        while gang.alive and not received:
            gang.step(time.monotonic())
            time.sleep(PERIOD_S)
    finally:
        gang.kill()
        signal.signal(signal.SIGTERM, before)
    if received:
        raise SystemExit(128 + received[0])
    return gang


def start_rank(
    spec: JobSpec,
    rank: int,
    meeting: Meeting,
    entry: Entry | None,
    user: JobUser | None = None,
    log: Path | None = None,
) -> int:
    """Start one process, the leader of a session that dies with us; return its id. Raises OSError. entry: what it runs
    in a fork of this process; None: fork and exec the job's command. log: where it writes; None: into its rank's."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _settle(spec, rank, meeting, parent, user, log or log_path(spec.directory, rank))
        if entry is None:
            _exec(spec.command)
        code = entry(list(spec.command[3:]))
    except SystemExit as exit_:
        code = _exit_code(exit_)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _record(_: list[str]) -> int:
    with suppress(Exception):
        leave_record(Path.cwd(), os.environ)
    return 0


def _exec(command: tuple[str, ...]) -> NoReturn:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        # In Python's words, and with the name that they lack here.
        raise SystemExit(f"{type(error).__name__}: {error}: {command[0]!r}") from None


def kill_tree(pid: int) -> None:
    """Kill an unreaped process of `start_rank` with everything in its process group."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_marked(mark: str, name: str = JOB_MARK) -> None:
    """Kill every process whose environment carries this mark, and what they start meanwhile. name: of its variable."""
    end = time.monotonic() + _MARK_LIMIT_S
    while marked := [pid for pid in _processes() if is_marked(pid, mark, name)]:
        for pid in marked:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= end:
            return
        time.sleep(_MARK_PERIOD_S)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]


def is_marked(pid: int, mark: str, name: str = JOB_MARK) -> bool:
    """Whether the environment of a process carries this mark, as far as we may read it."""
    with suppress(OSError):  # gone, or somebody else's
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        return f"{name}={mark}".encode() in environment.split(b"\0")
    return False


def first_death(deaths: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The (rank, exit code) to blame, of those that failed before anybody killed their gang.

    Of several, one that a signal ended made the others fail, for it could not have known."""
    failed = [death for death in deaths if death[1] != 0]
    return next((death for death in failed if death[1] < 0), failed[0] if failed else None)


def exit_text(rank: int, code: int) -> str:
    """How a rank ended, for people. code: as from os.waitstatus_to_exitcode."""
    return f"rank {rank} {exit_words(code)}"


def exit_words(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"
    return f"exited with code {code}"


def log_path(directory: Path, rank: int) -> Path:
    return directory / f"rank-{rank}.log"


def _exit_code(exit_: SystemExit) -> int:
    """What the interpreter would make of it."""
    if exit_.code is None:
        return 0
    if isinstance(exit_.code, int):
        return exit_.code
    sys.stderr.write(f"{exit_.code}\n")
    return 1


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _settle(spec: JobSpec, rank: int, meeting: Meeting, parent: int, user: JobUser | None, log: Path) -> None:
    """Make the fresh child a rank: its session, user, death with its parent, folder, log, environment, signals."""
    os.setsid()
    with suppress(OSError):  # where memory runs out it ends before us
        Path("/proc/self/oom_score_adj").write_text("1000")
    if user is not None:  # first: in the job's folder nothing is opened with our rights
        user.become()
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.chdir(spec.directory)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, target)
    os.closerange(3, 256)
    theirs = {} if user is None else user.environment
    environment = {**minimal_environment(), **theirs, **spec.env, **rank_environment(spec, rank, meeting)}
    os.environ.clear()
    os.environ.update(environment)


# `entry` of the module named beside it gives what `python -m KEY` would run, from its arguments and the job's folder.
WARM_MODULES: Mapping[str, str] = {"meshtune.runners.trainer": "meshtune.runners.trainer.forking"}


def warm_entry(command: Sequence[str], directory: Path | None = None) -> Entry | None:
    """What to run in a fork of this process instead of starting an interpreter; None where that is not possible: the
    job then starts cold, and the reason is printed. directory: of the job that is about to start, if one is."""
    if len(command) < 3 or command[0] != sys.executable or command[1] != "-m" or command[2] not in WARM_MODULES:
        return None
    entry = _import(WARM_MODULES[command[2]])
    try:
        return None if entry is None else entry(command[3:], directory)
    except Exception:
        traceback.print_exc()
        return None


@cache
def _import(module: str) -> Callable[[Sequence[str], Path | None], Entry] | None:
    """None when it cannot be imported."""
    try:
        entry: Callable[[Sequence[str], Path | None], Entry] = importlib.import_module(module).entry
    except Exception:
        traceback.print_exc()
        return None
    return entry
