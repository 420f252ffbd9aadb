"""Slurm from inside one allocation: trials as `srun --exact` steps on what salloc or sbatch gave, until its time ends.

Each trial's srun is one local job of a local server, which outlives a killed service; the notes of its ranks say what
became of it. Not covered: scripts that launch by themselves, and an allocation of unequal nodes."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from meshtune.runners.base import Cause, InvalidJob, JobSpec, JobState, JobStatus, NoTimeLeft, Start, is_fit
from meshtune.runners.command import Answer, call
from meshtune.runners.processes.gang import JOB_MARK
from meshtune.runners.schedulers.batch.base import explained
from meshtune.runners.schedulers.batch.launch_wrapper import (
    GANG_FILE,
    doubted,
    noted_elapsed_s,
    noted_end,
    noted_hosts,
    noted_start,
    read_gang,
    read_notes,
    render_gang,
)
from meshtune.runners.schedulers.batch.records import refuse_wider
from meshtune.runners.schedulers.batch.script import (
    duration_s,
    render_launch,
    render_preparation,
    render_rank,
    submit_host,
)
from meshtune.runners.schedulers.local.runner import LocalRunner
from meshtune.runners.schedulers.local.spool import Spool
from meshtune.runners.schedulers.slurm.nodes import ask_states, expand_hosts, parse_bad_nodes
from meshtune.runners.schedulers.slurm.script import Mode, SlurmOptions, minutes, step_arguments
from meshtune.runners.schedulers.slurm.vocabulary import UNKNOWN_JOB, read_failed_nodes
from meshtune.search_spaces.checks import Checks
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind

# A trial must end this long before the allocation does, so that its result is written and seen.
MARGIN_S = 20.0
# How long the ranks of a job that must end get to end what they started.
RANKS_END_S = 5.0
SCRIPT_FILE = "step.sh"
# What the script and its srun say: the log of the one process of the local job.
STEP_LOG = "rank-0.log"
# Of a local job, that is of an srun: those in which its step may go on without it.
ENDED_APART = (JobState.CANCELLED, JobState.LOST, JobState.FAILED)
# Nodes that failed a step, files below the spool's root; Slurm notices a dead one by itself within so long.
FAILED_FOLDER, NOTICED_S = "failed-nodes", 600.0
_CPUS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
# Names need not resolve everywhere; then the controller is asked by every rank, which large sites do not need. The
# local server ends what carries its mark, on its own node: that is srun, while a step is for Slurm to end.
_MEETING = f"""\
first=$(scontrol show hostnames "$SLURM_STEP_NODELIST" | head -n 1)
getent hosts "$first" >/dev/null || \\
first=$(timeout 20 scontrol show node "$first" --oneliner | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')
export MASTER_ADDR="$first"
unset {JOB_MARK}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    id: str
    nodes: int
    # For how many ranks each node has devices.
    devices_per_node: int
    # Of the smallest node.
    cpus_per_node: int


def read_allocation(environment: Mapping[str, str], cluster: ClusterSpec, cpus_per_device: int | None) -> Allocation:
    """The allocation that these variables describe. Raises InvalidValue: there is none, or it is too small."""
    checks = Checks()
    id = environment.get("SLURM_JOB_ID", "")
    problem = "allocation: SLURM_JOB_ID is not set; start meshtune under salloc or in an sbatch script"
    checks.require(bool(id), "mode", problem)
    checks.done()
    counts = _CPUS.findall(environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
    cpus = min((int(count) for count, _ in counts), default=0)
    devices = cpus // (cpus_per_device or 1)
    if cluster.device.kind is not DeviceKind.CPU:
        # Not set everywhere; the spec's word is left then.
        devices = int(environment.get("SLURM_GPUS_ON_NODE", cluster.devices_per_node))
    nodes = sum(int(times or 1) for _, times in counts)
    for name, had, wanted in (("nodes", nodes, cluster.nodes), ("devices_per_node", devices, cluster.devices_per_node)):
        message = f"allocation: {name}({had}) of allocation {id} are too few for the {wanted} of the cluster"
        checks.require(had >= wanted, "mode", message)
    checks.done()
    return Allocation(id=id, nodes=nodes, devices_per_node=devices, cpus_per_node=cpus)


class AllocationRunner:
    """A Runner over the steps of one allocation. The files of its local server lie under `root`."""

    # For messages.
    mode = Mode.ALLOCATION

    def __init__(
        self, root: Path, options: SlurmOptions, allocation: Allocation, local: LocalRunner | None = None
    ) -> None:
        """local: another than one of this machine, over `root` itself."""
        self._options, self._allocation = options, allocation
        self._spool = Spool((root if local else root / f"allocation-{allocation.id}").resolve())
        self._local = local or LocalRunner(self._spool.root, slots=allocation.nodes * allocation.devices_per_node)
        self.cancel, self.find, self.close = self._local.cancel, self._local.find, self._local.close
        # Since when, by `time.monotonic`.
        self._ending: dict[str, float] = {}

    def submit(self, spec: JobSpec) -> str:
        allocation = self._allocation
        if spec.start is Start.JOB and spec.nodes > 1:
            raise InvalidJob(f"{spec.name} launches by itself, which mode: {self.mode} cannot keep to its own nodes")
        refuse_wider(spec, allocation.nodes, allocation.devices_per_node, f"the {self.mode}")
        if (known := self.find(spec.name)) is not None:
            return known
        self._check_time(spec)
        avoid = tuple(dict.fromkeys((*spec.avoid, *failed_nodes(self._spool.root))))
        spec = replace(spec, directory=spec.directory.resolve(), avoid=avoid)
        for stale in spec.directory.glob("rank-*.json"):  # of a job of this name in an earlier allocation
            with suppress(OSError):
                stale.unlink()
        return self._local.submit(
            JobSpec(
                name=spec.name,
                command=("bash", *(["-l"] if self._options.login_shell else []), SCRIPT_FILE),
                directory=spec.directory,
                nodes=1,
                devices_per_node=spec.devices,
                start=Start.JOB,
                time_limit_s=inf,  # a step may wait for its nodes; its ranks keep the time
                files={
                    **spec.files,
                    GANG_FILE: render_gang(spec),
                    SCRIPT_FILE: render_step(spec, self._options, allocation, self._facts()),
                },
                env={name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ},
                labels=spec.labels,
            ),
            needs_s=spec.time_limit_s + MARGIN_S,
        )

    def _facts(self) -> str:
        """Shell lines that set `allocation`, its number, and `cpus_on_node`, of its smallest node."""
        return f"allocation={self._number()} cpus_on_node={self._allocation.cpus_per_node}\n"

    def _number(self) -> str:
        """Slurm's number of the allocation, empty while there is none."""
        return self._allocation.id

    def _check_time(self, spec: JobSpec) -> None:
        """Raises NoTimeLeft, RunnerUnavailable."""
        goes_on, left_s, nodes = self._now()
        if not goes_on:
            raise NoTimeLeft(f"allocation {self._number()} is over")
        if left_s < spec.time_limit_s + MARGIN_S:
            ends = f"allocation {self._number()} ends in {max(0.0, left_s):.0f} s"
            raise NoTimeLeft(f"{ends}, and a trial takes up to {spec.time_limit_s:g} s (+ {MARGIN_S:g} s)")
        failed = failed_nodes(self._spool.root).intersection(nodes)
        if len(nodes) - len(failed) < spec.nodes:
            has = f"allocation {self._number()} has {len(nodes)} nodes, of which failed: {', '.join(sorted(failed))}"
            raise NoTimeLeft(f"{has}; a trial takes {spec.nodes}")

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        seen = dict(self._local.poll(ids))
        left = self._left_steps()
        if left:
            self._end(left)
        judged = {id: self._judge(id, status, stepless=id not in left) for id, status in seen.items()}
        there = {id: self._spool.job(id).spec.directory for id in judged if self._spool.has(id)}
        return {id: doubted(status, there[id]) if id in there else status for id, status in judged.items()}

    def _now(self) -> tuple[bool, float, tuple[str, ...]]:
        """Whether the allocation goes on, the seconds until its end by Slurm's own clock, which a site may move, and
        its nodes. Raises RunnerUnavailable."""
        form = ("--states=all", "--format=%i|%T|%L|%N")
        answer = self._tell("squeue", "--noheader", f"--jobs={self._number()}", *form)
        lines = (line.split("|") for line in answer.output("squeue", UNKNOWN_JOB).splitlines())
        own = (line[1:] for line in lines if line[0] == self._number() and len(line) == 4)
        word, left, nodes = next(own, ("", "", ""))
        left_s = duration_s(left)
        return word == "RUNNING", inf if left_s is None else left_s, expand_hosts(nodes)

    def _left_steps(self) -> dict[str, tuple[str, ...]]:
        """The steps that run without their srun, by job: a killed srun does not take its step along, which keeps others
        from the devices. Raises RunnerUnavailable."""
        steps: dict[str, tuple[str, ...]] = {}
        if self._spool.root.is_dir() and (number := self._number()):
            answer = self._tell("squeue", "--noheader", "--steps", f"--jobs={number}", "--format=%i|%j")
            for line in answer.output("squeue", UNKNOWN_JOB).splitlines():  # an allocation that is over has no steps
                step, _, name = line.partition("|")
                if self._spool.has(name) and self._spool.status(name).state in ENDED_APART:
                    steps[name] = (*steps.get(name, ()), step)
        return steps

    def _judge(self, id: str, status: JobStatus, *, stepless: bool) -> JobStatus:
        """stepless: the job has no step that runs without its srun."""
        if not self._spool.has(id):
            reason = f"the {self.mode} has no such job; an earlier allocation took its own along"
            return replace(status, reason=reason)
        spec = self._spool.job(id).spec
        notes = read_notes(spec.directory)
        nodes = noted_hosts(notes)
        started_at = noted_start(notes)
        if not stepless:
            return JobStatus(state=JobState.RUNNING, reason="is being ended", started_at=started_at, nodes=nodes)
        if status.state is JobState.RUNNING and not notes:
            return JobStatus(state=JobState.QUEUED, reason="waits for free nodes of the allocation")
        seen = replace(status, started_at=started_at, elapsed_s=noted_elapsed_s(notes), nodes=nodes)
        if status.state not in (JobState.SUCCEEDED, JobState.FAILED) or status.cause is not None:
            return seen
        # Its srun came to an end by itself: its ranks know best.
        end = noted_end(notes, read_gang(spec.directory))
        silent = noted_hosts([note for note in notes if note.end is None])
        # Ranks whose peer is gone may wait for it until their time is up.
        if end is not None and not (end.state is JobState.TIMED_OUT and self._down(silent)):
            return replace(seen, state=end.state, reason=end.reason, exit_code=end.exit_code)
        if status.state is JobState.SUCCEEDED:
            return seen
        # Further steps keep away from those that srun says failed.
        named = read_failed_nodes(spec.directory / STEP_LOG)
        note_failed(self._spool.root, named)
        failed, (goes_on, _, _) = named or self._down(silent), self._now()
        if not failed and goes_on and len(silent) < len(nodes):  # Slurm notices a dead node after minutes
            failed = silent
        if not failed and goes_on and not notes:
            nothing = replace(seen, reason=f"srun started nothing: {status.reason}", exit_code=None)
            return explained(nothing, spec.directory, STEP_LOG)
        if failed:
            reason, cause = f"a node failed: {', '.join(failed)}", Cause.NODE_FAULT
        elif goes_on:
            reason, cause = "its srun ended before its ranks, whose nodes answer", None
        else:
            reason, cause = "its allocation ended", Cause.PREEMPTION
        seen = replace(seen, state=JobState.LOST, reason=reason, exit_code=None, cause=cause)
        return explained(replace(seen, failed_nodes=failed), spec.directory, STEP_LOG)

    def _down(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Those of these nodes that are down, failing or silent. Raises RunnerUnavailable."""
        if not nodes:
            return ()
        return parse_bad_nodes(self._tell(*ask_states(nodes)).output("sinfo"))

    def _end(self, left: Mapping[str, Sequence[str]]) -> None:
        """Let the ranks end what they started, then Slurm what is left."""
        now = time.monotonic()
        for name, steps in left.items():
            kindly = ["--signal=TERM"] if now - self._ending.setdefault(name, now) < RANKS_END_S else []
            self._tell("scancel", *kindly, *steps)

    def _tell(self, *arguments: str) -> Answer:
        environment = {**os.environ, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        return call(arguments, time_limit_s=self._options.call_limit_s, environment=environment)


def render_step(spec: JobSpec, options: SlurmOptions, allocation: Allocation, facts: str) -> str:
    """The script that runs a job as one step; its directory must be absolute. facts: see `AllocationRunner._facts`."""
    per_node = spec.processes_per_node
    share = str(options.cpus_per_device or "")
    if not share:
        share = f"(cpus_on_node < {allocation.devices_per_node} ? 1 : cpus_on_node / {allocation.devices_per_node})"
    words = [
        *(f"--job-name={spec.name}", "--exact", "--input=none"),
        *(f"--nodes={spec.nodes}", f"--ntasks={spec.processes}", f"--ntasks-per-node={per_node}"),
        *(f"--time={minutes(spec)}", f"--chdir={spec.directory}"),
        *("--export=ALL", "--kill-on-bad-exit=1", "--wait=0"),
        "--mem=0",  # all memory of the allocation is there for all of its steps
        *([f"--gres={options.gres}:{spec.devices_per_node}"] if options.gres else []),
        *step_arguments(spec, options),
        *("bash", "-c", f'{_MEETING}exec "$@"', "rank"),
    ]
    script = shlex.quote(str(spec.directory / SCRIPT_FILE))
    cpus = f"$(({share} * {spec.devices_per_node} / {per_node}))"
    # An allocation of GPUs has one CPU on each node unless more were asked for: steps would wait for each other's.
    crowded = f'$([ "$cpus_on_node" -lt {allocation.devices_per_node} ] && echo --overcommit)'
    chosen = f"{crowded} ${{keep_away:+--exclude=$keep_away}} --cpus-per-task={cpus}"
    step = f'srun --jobid="$allocation" {chosen} {shlex.join(words)}'
    rank = render_rank(shlex.quote(sys.executable), spec, options)
    facts += _keep_away(spec, options)
    return facts + render_preparation(script, options, submit_host(), spec) + render_launch(f"{step} {rank}", options)


def _keep_away(spec: JobSpec, options: SlurmOptions) -> str:
    """Shell lines that set `keep_away` to those of the allocation's nodes, where enough others are left."""
    avoid = " ".join(f"-e {shlex.quote(node)}" for node in dict.fromkeys((*options.exclude, *spec.avoid)))
    if not avoid:
        return ""
    return f"""\
nodes=$(scontrol show hostnames "$(squeue -h --jobs="$allocation" --format="%i|%N" | sed -n "s/^$allocation|//p")")
keep_away=$(grep -Fx {avoid} <<< "$nodes" | paste -sd, -)
[ "$(grep -Fxvc {avoid} <<< "$nodes")" -ge {spec.nodes} ] || keep_away=
"""


def note_failed(root: Path, nodes: Sequence[str]) -> None:
    with suppress(OSError):
        for node in filter(is_fit, nodes):
            (root / FAILED_FOLDER).mkdir(exist_ok=True)
            (root / FAILED_FOLDER / node).touch()


def failed_nodes(root: Path) -> set[str]:
    """Those that failed a step lately."""
    with suppress(OSError):
        files = list((root / FAILED_FOLDER).iterdir())
        return {path.name for path in files if time.time() - path.stat().st_mtime < NOTICED_S}
    return set()


def create_steps(root: Path, cluster: ClusterSpec, options: SlurmOptions) -> AllocationRunner:
    """Raises InvalidValue."""
    return AllocationRunner(root, options, read_allocation(os.environ, cluster, options.cpus_per_device))
