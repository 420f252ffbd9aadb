"""Starts and ends the processes of one gang on this machine, warm where it can.

A warm process is a fork of this one, which has imported the module already; any other is fork and exec. Every process
leads a session of its own, so that what it starts dies with it, and dies itself when its parent does (Linux
PR_SET_PDEATHSIG), so that no gang outlives its server. What left the session, or outlived a killed server, is known by
a mark in its environment; not found is what a warm process forks, without exec, out of its session.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from zlib import crc32

from meshtune.runners.base import JobSpec

# What `python -m MODULE` would run, as a function of the arguments after it.
Entry = Callable[[list[str]], int]
_PR_SET_PDEATHSIG = 1
_FIRST_PORT, _PORTS = 20_000, 12_000
# Names the job in the environment of its ranks, which every program they start inherits.
JOB_MARK = "MESHTUNE_JOB"
# A process that forks faster than it is found escapes one look at all processes, but not many; and one with much memory
# takes a while to die.
_MARK_LIMIT_S, _MARK_PERIOD_S = 1.0, 0.001
# What a job sees of its surroundings; everything else (tokens, passwords) stays with us.
_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TZ", "PYTHONPATH", "VIRTUAL_ENV"),
    *("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "ROCM_PATH", "ROCR_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "ONEAPI_DEVICE_SELECTOR"),
)


def minimal_environment() -> dict[str, str]:
    """The part of our environment that jobs may see, with one compute thread per process."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the processes of one job can meet."""

    address: str
    port: int


def meeting_here(spec: JobSpec) -> Meeting:
    """On this machine: a port of the job's own, below those that the kernel gives to clients."""
    return Meeting("127.0.0.1", _FIRST_PORT + crc32(spec.name.encode()) % _PORTS)


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


def start_gang(spec: JobSpec, entry: Entry | None) -> list[int]:
    """Start every process of the job; return their ids in rank order. Raises OSError, and then none is left.

    entry: what each process runs in a fork of this one; None: fork and exec the job's command.
    """
    pids: list[int] = []
    try:
        for rank in range(spec.processes):
            pids.append(start_rank(spec, rank, meeting_here(spec), entry))
    except OSError:
        for pid in pids:
            kill_tree(pid)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        raise
    return pids


def start_rank(spec: JobSpec, rank: int, meeting: Meeting, entry: Entry | None) -> int:
    """Start one process of the job, as the leader of a session that dies with us; return its id. Raises OSError.

    entry: what it runs in a fork of this process; None: fork and exec the job's command.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _settle(spec, rank, meeting, parent)
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


def _exec(command: tuple[str, ...]) -> NoReturn:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        # In Python's words, and with the name that they lack here.
        raise SystemExit(f"{type(error).__name__}: {error}: {command[0]!r}") from None


def kill_tree(pid: int) -> None:
    """Kill a process that `start_gang` started, and that is not reaped yet, with everything in its process group."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_marked(mark: str) -> None:
    """Kill every process whose environment carries this mark, and what they start meanwhile."""
    end = time.monotonic() + _MARK_LIMIT_S
    while found := [pid for pid in _processes() if _is_marked(pid, mark)]:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= end:
            return
        time.sleep(_MARK_PERIOD_S)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]


def _is_marked(pid: int, mark: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # gone, or somebody else's
        return False
    return f"{JOB_MARK}={mark}".encode() in environment.split(b"\0")


def reap_one() -> tuple[int, int] | None:
    """(process id, exit code) of a child that ended, the rest of its process group killed; None when none has.

    The group dies before the child is reaped: until then its number cannot be anybody else's.
    """
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if ended is None:
        return None
    kill_tree(ended.si_pid)
    _, wait_status = os.waitpid(ended.si_pid, 0)
    return ended.si_pid, os.waitstatus_to_exitcode(wait_status)


def first_death(deaths: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The (rank, exit code) to blame, of those that failed before anybody killed their gang, in order of notice.

    Several may be noticed at once: then one that a signal ended made the others fail, for it could not have known.
    """
    failed = [death for death in deaths if death[1] != 0]
    return next((death for death in failed if death[1] < 0), failed[0] if failed else None)


def exit_text(rank: int, code: int) -> str:
    """How a rank ended, for people. code: as from os.waitstatus_to_exitcode."""
    if code < 0:
        with suppress(ValueError):
            return f"rank {rank} was killed by {signal.Signals(-code).name}"
        return f"rank {rank} was killed by signal {-code}"
    return f"rank {rank} exited with code {code}"


def log_path(directory: Path, rank: int) -> Path:
    """Where a rank's standard output and error go."""
    return directory / f"rank-{rank}.log"


def _exit_code(exit_: SystemExit) -> int:
    """What the interpreter would make of it."""
    if exit_.code is None:
        return 0
    if isinstance(exit_.code, int):
        return exit_.code
    sys.stderr.write(f"{exit_.code}\n")
    return 1


def _settle(spec: JobSpec, rank: int, meeting: Meeting, parent: int) -> None:
    """Make the fresh child a rank: its session, death with its parent, folder, log, environment, default signals."""
    os.setsid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.chdir(spec.directory)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(log_path(spec.directory, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    os.closerange(3, 256)
    environment = {**minimal_environment(), **spec.env, **rank_environment(spec, rank, meeting)}
    os.environ.clear()
    os.environ.update(environment)
