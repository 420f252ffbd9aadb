"""A laboratory per runner: a place for jobs, ways to wait for them, and proof that no process is left behind.

Another runner joins the contract suite (test_contract.py and test_life_cycle.py in tests/runners) in two steps:

1. a module in this folder with a subclass of `Laboratory` that says how to `open` its runner and how to `close`, and,
   where it is not so, what `slots`, `limit_s`, `wide` and the fixture it `needs` are;
2. a line in LABORATORIES of tests/runners/conftest.py, with the marks that its tests carry; of a runner of another
   package, the variable MESHTUNE_LABORATORY instead (docs/how-to/add-a-scheduler.md).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from meshtune.runners.base import JobSpec, JobState, JobStatus, Runner
from meshtune.runners.schedulers.local.runner import LocalRunner

LIMIT_S = 60.0
MARK = "LABORATORY"
BUILT_S = 1.0  # of a processor: several times what a rank needs to meet its peers and to build a tiny model


def wait_for(holds: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"not so after {limit_s} s"
        time.sleep(0.01)


def processes_where(holds: Callable[[Path], bool]) -> list[int]:
    """The processes of which `holds` is true, given their folder in /proc; one that has ended is none."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdecimal() and holds(folder):
                found.append(int(folder.name))
    return found


def alive(pid: int) -> bool:
    """False for a zombie too: it runs nothing any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """Of a process's first thread; none of one that is gone."""
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def computed_s(pid: int) -> float:
    """Seconds of a processor that a process has used, by itself and its kernel; infinity: it is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return float("inf")


def wait_steps(ranks: Sequence[int]) -> None:
    """Until these ranks of the trainer take steps, or are gone. What a rank has computed says that it is in a step;
    time does not, on a machine that does other things too."""
    wait_for(lambda: min(map(computed_s, ranks)) > BUILT_S)


class Laboratory:
    """Jobs of one runner under test. Subclasses say how to open it and what it leaves running on purpose.

    slots: how many processes the runner of `open` lets run at once, all on one node. limit_s: how long anything may
    take there. period_s: between two looks at a job. needs: the fixture that must be there first; its value is `place`.
    """

    slots = 4
    # Whether its scheduler itself gives a job other nodes, where one is dead before it starts.
    heals = False
    # Whether a job that is larger than the place waits for the place to grow.
    grows = False
    limit_s = LIMIT_S
    period_s = 0.01
    needs: ClassVar[str | None] = None
    alive = staticmethod(alive)
    wait_for = staticmethod(wait_for)

    def __init__(self, folder: Path, place: object = None) -> None:
        self.folder, self.place = folder, place
        self.opened: list[Runner] = []
        self.runner = self.open()

    def open(self) -> Runner:
        """Another runner object for the same jobs, as after a restart of the service."""
        raise NotImplementedError

    def wide(self) -> Runner:
        """A runner that has two nodes of two processes, where that of `open` has only one node."""
        return self.runner

    def kill_node(self, node: str) -> str:
        """As when the machine loses power; its name. `place` is this test's own."""
        raise NotImplementedError

    def lose_node(self, *, first: bool) -> str:
        """Let a node die on which a job of two nodes would start next, its first or its second, and name it; `place` is
        this test's own. `runner` is `wide` by then."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def spec(
        self, name: str, script: str, *, processes: int = 1, env: dict[str, str] | None = None, **changes
    ) -> JobSpec:
        """A job of a shell script, in a folder of its own."""
        fields = {
            "name": name,
            "command": ("sh", "-c", script),
            "directory": self.folder / "work" / name,
            "devices_per_node": processes,
            "time_limit_s": 60.0,
            # Every process of the job inherits it, however it is started: `left` finds it there.
            "env": {MARK: str(self.folder), **(env or {})},
        }
        return JobSpec(**fields | changes)

    def submit(self, name: str, script: str, **changes) -> str:
        return self.runner.submit(self.spec(name, script, **changes))

    def short(self, name: str, **changes) -> str:
        """Submit a job that soon ends well by itself."""
        return self.submit(name, "touch ran", **changes)

    def long(self, name: str, **changes) -> str:
        """Submit a job that goes on until somebody ends it."""
        return self.submit(name, "touch ran; exec sleep 300", **changes)

    def ran(self, name: str) -> bool:
        """Whether that short or long job was ever started."""
        return (self.folder / "work" / name / "ran").exists()

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)

    def status(self, id: str) -> JobStatus:
        return self.runner.poll([id])[id]

    def wait(self, id: str, *states: JobState, limit_s: float | None = None) -> JobStatus:
        """The job's status once it is in one of these states, by default in a final one."""
        limit_s = limit_s or self.limit_s
        deadline = time.monotonic() + limit_s
        while True:
            status = self.status(id)
            if status.state in states or (not states and status.state.final):
                return status
            assert not status.state.final, f"{id} ended unexpectedly: {status}"
            assert time.monotonic() < deadline, f"{id} is {status} after {limit_s} s"
            time.sleep(self.period_s)

    def wait_file(self, name: str, file: str) -> Path:
        path = self.folder / "work" / name / file
        wait_for(path.exists)
        return path

    def wait_text(self, name: str, file: str) -> str:
        """The file's text once it ends in a line break."""
        path = self.folder / "work" / name / file
        wait_for(lambda: path.exists() and path.read_text().endswith("\n"))
        return path.read_text()

    def left(self) -> list[int]:
        """Processes of jobs that run."""
        mark = f"{MARK}={self.folder}".encode()
        return [
            pid
            for pid in processes_where(lambda folder: mark in (folder / "environ").read_bytes().split(b"\0"))
            if alive(pid)
        ]

    def wait_nothing_left(self, limit_s: float = LIMIT_S) -> None:
        wait_for(lambda: not self.left(), limit_s)


class LocalLaboratory(Laboratory):
    def open(
        self, *, root: Path | None = None, idle_s: float = 30.0, slots: int | None = None, gives_devices: bool = False
    ) -> LocalRunner:
        runner = LocalRunner(
            root or self.folder / "spool", slots=slots or self.slots, gives_devices=gives_devices, idle_s=idle_s
        )
        self.opened.append(runner)
        return runner

    def servers(self) -> list[int]:
        """The living servers of this laboratory; what they forked looks the same but for its parent."""
        wanted = [b"meshtune.runners.schedulers.local.server", str(self.folder / "spool").encode()]
        found = processes_where(
            lambda folder: all(word in (folder / "cmdline").read_bytes().split(b"\0") for word in wanted)
        )
        return [pid for pid in found if alive(pid) and self._parent(pid) not in found]

    def _parent(self, pid: int) -> int:
        try:
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return 0

    def wait_server(self) -> int:
        found: list[int] = []

        def one() -> bool:
            found[:] = self.servers()
            return len(found) == 1

        wait_for(one)
        return found[0]

    def close(self) -> None:
        for runner in self.opened:
            if runner._server is not None:  # one that has just been started is not seen in /proc yet
                runner._server.terminate()
                runner._server.wait(LIMIT_S)
            runner.close()
        for pid in self.servers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not self.servers())
