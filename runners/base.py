"""The seam to the place where jobs run: what a job is, what may become of it, and what every Runner promises. Runners
know jobs, never campaigns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from meshtune.search_spaces.checks import StrEnum, UserError


class RunnerError(UserError):
    """Something went wrong between us and the runner; never the outcome of a job. str() is fit for a user."""


class InvalidJob(RunnerError):
    """The job itself is wrong, whatever the cluster; do not try it again."""


class Refused(RunnerError):
    """Nothing was sent: the cluster, as it is now, does not take such a job (a limit, a partition, too few nodes). A
    fact about the cluster, not about the plan; once the cluster has changed, it may be taken."""


class SubmitFailed(RunnerError):
    """The job was not sent; trying again may help."""


class RunnerUnavailable(RunnerError):
    """The runner did not answer; trying again may help, and nothing is known about the jobs."""


class NoTimeLeft(RunnerError):
    """Nothing was sent: what this runner may use ends before the job would. Another runner object may have more."""


class Start(StrEnum):
    """How many processes of its command a job starts: one per device; one per node, for launchers such as torchrun; or
    one in all, on the first node, for a script that does its own launching."""

    DEVICE = "device"
    NODE = "node"
    JOB = "job"


class Cause(StrEnum):
    """storage: the disk or file server of the job's folder, not the job. other_hardware: it was measured, on nodes of
    another kind than the baseline. user_bug: a failure that no plan can change, such as a missing file or
    module; trying other plans is waste. queue_limit: no failure, a job that was withdrawn because it waited too
    long."""

    OOM = "oom"
    ILLEGAL_SETTING = "illegal_setting"
    HANG = "hang"
    COMMUNICATION = "communication"
    NODE_FAULT = "node_fault"
    STORAGE = "storage"
    PREEMPTION = "preemption"
    OTHER_HARDWARE = "other_hardware"
    TIME_LIMIT = "time_limit"
    QUEUE_LIMIT = "queue_limit"
    USER_BUG = "user_bug"
    CRASH = "crash"


class JobState(StrEnum):
    """A job's state in the runner's eyes. What the job measured is another matter: see `runners.outcome`."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def final(self) -> bool:
        return self not in (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A gang of processes of one command on nodes * devices_per_node devices, started together and ended together.

    Each process gets RANK, WORLD_SIZE, LOCAL_RANK (they count the processes that `start` asks for), NODE_RANK, NNODES,
    MASTER_ADDR and MASTER_PORT."""

    # Unique for ever, the idempotency key; letters, digits, '-', '_' and '.' only.
    name: str
    command: tuple[str, ...]
    # The job's own folder, where it starts, writes its result and logs.
    directory: Path
    nodes: int = 1
    devices_per_node: int = 1
    time_limit_s: float
    # Texts to put into the directory first, by relative name.
    files: Mapping[str, str] = field(default_factory=dict)
    # What the job sees on top of the runner's own minimal environment.
    env: Mapping[str, str] = field(default_factory=dict)
    start: Start = Start.DEVICE
    # Nodes to keep away from where others can be had.
    avoid: tuple[str, ...] = ()
    # Whose it is, by `owner`, `campaign` and `trial`, for who looks at a queue: names as `checks.NAME` has them.
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def processes_per_node(self) -> int:
        """Processes of the command on each node that starts any."""
        return self.devices_per_node if self.start is Start.DEVICE else 1

    @property
    def processes(self) -> int:
        return 1 if self.start is Start.JOB else self.nodes * self.processes_per_node


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def is_fit(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def require_fit(name: str) -> None:
    """Raises InvalidJob for a job name that is unfit for a file."""
    if not is_fit(name):
        raise InvalidJob(
            f"job name {name!r}: letters, digits, '.', '_' and '-' only, the first a letter or digit, "
            "200 characters at most"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLease:
    """Whose a claimed job is: `worker`, empty where it gave no name. seconds: its longest silence, after which the job
    is lost; None: the time limit alone counts. heard: how often, not when. step_times_s: of the steps it reported."""

    worker: str = ""
    seconds: float | None = None
    heard: int = 0
    step_times_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """One look at a job. Times are seconds since the epoch by the runner's clock, which may be wrong or set anew.
    elapsed_s: how long it has run, by a clock that nobody sets; None where the runner has none. reason: a sentence for
    people, where the state needs one. warning: what disturbed the job, and so what it measured, whatever its state;
    of a queued one, what must be mended before it starts. lease: of one that runs because somebody claimed it."""

    state: JobState
    reason: str = ""
    warning: str = ""
    exit_code: int | None = None
    started_at: float | None = None
    finished_at: float | None = None
    elapsed_s: float | None = None
    # The hosts it has or had, where the runner knows, and those of them to blame for its end.
    nodes: tuple[str, ...] = ()
    failed_nodes: tuple[str, ...] = ()
    # Where the runner knows it better than the job.
    cause: Cause | None = None
    # The end of the scheduler's own log of a job that failed, its launcher's complaints included.
    log_tail: str = ""
    lease: WorkerLease | None = None


class Runner(Protocol):
    """Where jobs run. Implementations are usable from one thread at a time; `close` ends what they hold."""

    def submit(self, spec: JobSpec) -> str:
        """Send the job; return the runner's id of it.

        Returned: it was sent, and everything after, failures included, arrives by `poll`. Raised: nothing was sent.
        Only InvalidJob, Refused, SubmitFailed, RunnerUnavailable and NoTimeLeft are raised. Submitting a name that is
        already there sends nothing and returns the id it has."""

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        """Look at these jobs, in one request where the runner can.

        An id that the runner does not know comes back LOST. RunnerUnavailable: no answer, no job's state has changed by
        it. May be repeated at any time."""

    def cancel(self, id: str) -> None:
        """Ask for the job's end and return at once; the end arrives by `poll`. A final job stays as it is."""

    def find(self, name: str) -> str | None:
        """The id of the job of that name, in any state, or None when the runner never got it."""

    def close(self) -> None:
        """Give back what this object holds. Jobs that run go on running. May be repeated."""
