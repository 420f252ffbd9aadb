"""A real Slurm of several nodes on this machine: slurmctld, one slurmd per node and a munge of its own, in one folder.

    with SlurmLab(nodes=4, cpus=4) as lab:            # or the session's own: the fixture `slurm` of tests/conftest.py
        os.environ.update(lab.environment)            # SLURM_CONF: all Slurm commands and our runner then speak to it
        lab.kill_node("n1"); lab.restart_controller()

Needs root and Debian's slurmctld, slurmd, slurm-client, slurm-wlm-basic-plugins and munge (22.05 tried). Nodes are n0,
n1 ... at 127.0.1.1, 127.0.1.2 ...; partitions are `main` (all nodes, the default) and `one` (n0 alone).
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobs import children, processes_where

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "sinfo", "scontrol", "scancel")
START_LIMIT_S = 90.0
CALL_LIMIT_S = 30.0
STOP_LIMIT_S = 30.0
# Below the ports that the kernel gives to clients, and below those that jobs meet at.
_PORTS = range(10_000, 19_900)

# Why each setting is there: munge and the daemons run as root from one folder, without cgroups; nodes may promise more
# than the machine has and come back by themselves; a job starts within a second, and is forgotten only by a test that
# asks for it.
_CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters={shared}
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
SlurmctldTimeout=30
SlurmdTimeout={slurmd_timeout_s}
MessageTimeout={message_timeout_s}
TCPTimeout=1
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
InactiveLimit=0
MinJobAge={min_job_age_s}
KillWait=2
Waittime=0
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.txt
GresTypes=gpu
{accounting}
{plugins}
"""


class SlurmLab:
    """One Slurm cluster. gpus: pretended ones per node. min_job_age_s: when it forgets a job. frail: a node that does
    not answer is down within some 5 s, which a busy machine may take for a dead one; else within a minute.
    shares_memory: a job has the memory that it asks for, by default a node's whole, and others wait for the rest.
    cli_filter, job_submit: the site's plug-in of that name, in Lua. prolog: shell lines that each node runs before a
    job's first process there."""

    accounting = "AccountingStorageType=accounting_storage/none"

    def __init__(
        self,
        *,
        nodes: int = 4,
        cpus: int = 4,
        gpus: int = 2,
        min_job_age_s: int = 3600,
        frail: bool = False,
        shares_memory: bool = False,
        cli_filter: str = "",
        job_submit: str = "",
        prolog: str = "",
    ) -> None:
        self.nodes = tuple(f"n{number}" for number in range(nodes))
        self.cpus, self.gpus = cpus, gpus
        self._settings = {
            "slurmd_timeout_s": 3 if frail else 30,
            "message_timeout_s": 2 if frail else 10,
            "min_job_age_s": min_job_age_s,
            "shared": "CR_CPU_Memory" if shares_memory else "CR_CPU",
            "plugins": "CliFilterPlugins=lua\n" * bool(cli_filter) + "JobSubmitPlugins=lua" * bool(job_submit),
        }
        self._scripts = {"cli_filter.lua": cli_filter, "job_submit.lua": job_submit, "prolog.sh": prolog}
        # A socket's path has at most 107 bytes; pytest's own temporary folders are too deep.
        self.folder = Path(tempfile.mkdtemp(prefix="mt-slurm-", dir="/tmp"))
        self._settings["plugins"] += f"\nProlog={self.folder}/prolog.sh" * bool(prolog)
        self._daemons: dict[str, subprocess.Popen] = {}

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs to speak to this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self) -> SlurmLab:
        try:
            self._write()
            munge = [f"--{name}={self.folder}/munge{end}" for name, end in _MUNGE_FILES.items()]
            self._start("munge.pid", "munged", "--foreground", "--force", *munge)
            self.start_accounting()
            self.start_controller()
            for node in self.nodes:
                self.start_node(node)
            self.wait_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(AssertionError, subprocess.SubprocessError):
            self.cancel_all(limit_s=3.0)
        for node in self.nodes:
            self._stop(f"slurmd.{node}.pid")
        self._stop("slurmctld.pid")
        self.stop_accounting()
        self._stop("munge.pid")
        for pid in [*self._left(), *self._tasks()]:  # a stepd whose slurmd was killed outlives it
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str, limit_s: float = CALL_LIMIT_S, **options: Any) -> str:
        """What a command says, in this cluster's environment."""
        environment = {**os.environ, **self.environment, "LC_ALL": "C"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=False, env=environment, **options
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}\n{self.log()}"
        return done.stdout

    def log(self) -> str:
        """The end of the controller's log."""
        path = self.folder / "slurmctld.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-15:]) if path.exists() else ""

    def start_accounting(self) -> None:
        """Before the controller; nothing here."""

    def stop_accounting(self) -> None:
        """After the controller; nothing here."""

    def start_controller(self) -> None:
        self._start("slurmctld.pid", "slurmctld", "-D", "-f", self.environment["SLURM_CONF"])

    def stop_controller(self) -> None:
        self._stop("slurmctld.pid")

    def restart_controller(self) -> None:
        self.stop_controller()
        self.start_controller()
        wait_for(self.answers, "slurmctld does not answer")

    def start_node(self, node: str) -> None:
        (self.folder / "spool" / node).mkdir(parents=True, exist_ok=True)
        self._start(f"slurmd.{node}.pid", "slurmd", "-D", "-N", node, "-f", self.environment["SLURM_CONF"])

    def kill_node(self, node: str) -> str:
        """As when the machine loses power: its slurmd, and all that its slurmd started, die at once. Its name."""
        pids = [int((self.folder / f"slurmd.{node}.pid").read_text()), *self._steps(node)]
        victims = [found for pid in pids for found in (pid, *_family(pid))]
        while victims:
            for victim in victims:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            victims = self._tasks(f"{node}\0")  # that a stepd was about to start
        return node

    def answers(self) -> bool:
        try:
            self.run("scontrol", "ping", limit_s=3.0)
        except (AssertionError, subprocess.TimeoutExpired):
            return False
        return True

    def wait_idle(self, nodes: int | None = None) -> None:
        """Wait until that many nodes, by default all, are idle."""
        wanted = len(self.nodes) if nodes is None else nodes
        wait_for(lambda: self._idle() >= wanted, f"fewer than {wanted} nodes are idle")

    def cancel_all(self, limit_s: float = CALL_LIMIT_S) -> None:
        self.run("scancel", "--quiet", "--user=root", limit_s=limit_s)

    def jobs(self, *, states: str = "all") -> list[tuple[str, str, str]]:
        """(number, name, state) of every job that the controller still knows, by number."""
        lines = self.run("squeue", "-h", f"--states={states}", "-o", "%i %j %T").splitlines()
        return sorted((tuple(line.split()) for line in lines), key=lambda job: int(job[0]))

    def wait_job(self, id: str, state: str = "COMPLETED") -> None:
        """Wait until the job of that number is in that state."""
        wait_for(lambda: any(job[0] == id and job[2] == state for job in self.jobs()), f"job {id} is not {state}")

    def _idle(self) -> int:
        try:
            return len(self.run("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N", limit_s=3.0).split())
        except (AssertionError, subprocess.TimeoutExpired):
            return 0

    def _write(self) -> None:
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o400)
        host = socket.gethostname().split(".")[0]
        port, *ports = free_ports(1 + len(self.nodes))
        lines = [
            _CONFIGURATION.format(
                folder=self.folder, host=host, port=port, accounting=self.accounting, **self._settings
            )
        ]
        gres = f" Gres=gpu:{self.gpus}" if self.gpus else ""
        for number, (node, own) in enumerate(zip(self.nodes, ports, strict=True)):
            address = f"NodeHostname={host} NodeAddr=127.0.1.{number + 1} Port={own}"
            lines.append(f"NodeName={node} {address} CPUs={self.cpus} RealMemory=2000{gres} State=UNKNOWN\n")
        for name, members, default in (("main", ",".join(self.nodes), "YES"), ("one", self.nodes[0], "NO")):
            lines.append(f"PartitionName={name} Nodes={members} Default={default} MaxTime=INFINITE State=UP\n")
        (self.folder / "slurm.conf").write_text("".join(lines))
        (self.folder / "gres.conf").write_text(self._devices())
        for name, text in {"cgroup.conf": "", "jobcomp.txt": "", **self._scripts}.items():
            (self.folder / name).write_text(text)
        (self.folder / "prolog.sh").chmod(0o755)
        (self.folder / "state").mkdir()

    def _devices(self) -> str:
        """Slurm sets CUDA_VISIBLE_DEVICES for character devices only, not for plain files."""
        for number in range(self.gpus):
            os.mknod(self.folder / f"gpu{number}", 0o20666, os.makedev(1, 3))
        if not self.gpus:
            return ""
        return f"NodeName={','.join(self.nodes)} Name=gpu File={self.folder}/gpu[0-{self.gpus - 1}]\n"

    def _start(self, pid_file: str, *command: str, environment: Mapping[str, str] | None = None) -> None:
        """Start a daemon, which dies with this process, however that ends."""
        self._stop(pid_file)  # one that was killed left its file
        with (self.folder / "start.log").open("ab") as log:
            self._daemons[pid_file] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
                preexec_fn=_die_with_parent,
            )
        path = self.folder / pid_file
        wait_for(lambda: path.exists() or self._daemons[pid_file].poll() is not None, f"no {pid_file}")
        assert self._daemons[pid_file].poll() is None, (self.folder / "start.log").read_text(errors="replace")

    def _stop(self, pid_file: str) -> None:
        daemon = self._daemons.pop(pid_file, None)
        if daemon is None:
            return
        daemon.terminate()
        try:
            # A controller that is killed before it has saved its state puts what runs back into the queue.
            daemon.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        (self.folder / pid_file).unlink(missing_ok=True)

    def _steps(self, node: str) -> list[int]:
        """The slurmstepd processes of a node; those of this cluster have its folder in their environment."""
        mark = f"SLURMD_NODENAME={node}".encode()
        return [pid for pid in self._left() if any(mark in _environment(child) for child in _family(pid))]

    def _tasks(self, node: str = "") -> list[int]:
        """The processes of jobs on a node, whose name ends with a zero; on any."""
        marks = f"SLURM_CONF={self.folder}/".encode(), f"SLURMD_NODENAME={node}".encode()
        return processes_where(lambda folder: all(mark in (folder / "environ").read_bytes() for mark in marks))

    def _left(self) -> list[int]:
        mark = f"SLURM_CONF={self.folder}".encode()
        daemons = processes_where(lambda folder: (folder / "comm").read_text() == "slurmstepd\n")
        return [pid for pid in daemons if any(mark in _environment(child) for child in [pid, *_family(pid)])]


_MUNGE_FILES = {"key-file": ".key", "socket": ".sock", "pid-file": ".pid", "log-file": ".log", "seed-file": ".seed"}


def why_not() -> str | None:
    """Why there can be no lab here; None where there can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no Slurm: {', '.join(missing)} not on PATH"
    return None if os.geteuid() == 0 else "the Slurm lab needs root"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, in a row."""
    while True:
        first = random.randrange(_PORTS.start, _PORTS.stop - count)
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("", port))
            return list(range(first, first + count))


def wait_for(holds: Callable[[], object], complaint: str, limit_s: float = START_LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"{complaint} after {limit_s} s"
        time.sleep(0.05)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _family(pid: int) -> list[int]:
    """The living descendants of a process."""
    return [found for child in children(pid) for found in (child, *_family(child))]
