"""Slurm by pilots: allocations that a campaign submits itself, in which its trials run as steps. One wait in the queue
serves many trials; when an allocation ends and jobs are left, the next is submitted.

The pilot job runs the local server over a spool in the home, which must be on a file system that the nodes share: a
trial is put into the spool, whether or not a pilot runs, and the server starts it as one `srun --exact` step. A pilot
without trials gives its nodes back after `pilot_idle_s`. Not covered: the next pilot waits in the queue only once the
last has ended; nothing is sent to a pilot but through files."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from time import monotonic, time

from meshtune.runners.base import (
    Cause,
    JobSpec,
    JobState,
    JobStatus,
    Refused,
    Runner,
    RunnerUnavailable,
    Start,
    SubmitFailed,
)
from meshtune.runners.command import Answer
from meshtune.runners.json_files import write_whole
from meshtune.runners.schedulers.local.runner import LocalRunner
from meshtune.runners.schedulers.slurm.allocation import (
    MARGIN_S,
    Allocation,
    AllocationRunner,
    failed_nodes,
    note_failed,
)
from meshtune.runners.schedulers.slurm.runner import create_jobs
from meshtune.runners.schedulers.slurm.script import Mode, SlurmOptions
from meshtune.search_spaces.checks import raising
from meshtune.search_spaces.cluster import ClusterSpec

# Below the spool's root: the number of the newest pilot; what the one that runs told of itself.
NUMBER_FILE, FACTS_FILE = "newest-pilot", "allocation"
# Between two tries to send a pilot that jobs wait for.
REFUSED_S = 30.0
# Where pilots are recorded, below the spool's root; of so many, files are kept.
RECORDS, KEPT = "pilots", 3


class PilotServer(LocalRunner):
    """The local runner whose server is a job of another runner's, the newest pilot; it sends one where jobs are left
    and none is queued or runs."""

    def __init__(self, root: Path, pilots: Runner, allocation: Allocation, options: SlurmOptions) -> None:
        super().__init__(root, slots=allocation.nodes * allocation.devices_per_node)
        self._pilots, self._allocation, self._options = pilots, allocation, options
        self.pilot = JobStatus(state=JobState.QUEUED)
        self._refused = 0
        # Why the next one was not taken, empty where it was; and when it is sent again, by `time.monotonic`.
        self._refusal, self._again_at = "", 0.0
        # Of the job for which the next pilot is sent, which may serve other campaigns too.
        self._labels: Mapping[str, str] = {}

    def submit(self, spec: JobSpec, needs_s: float = 0.0) -> str:
        """A pilot first: what the scheduler refuses was not sent."""
        self._labels = spec.labels
        with raising(SubmitFailed, f"{spec.name} cannot be written", OSError):
            self._spool.create()
            self._send_pilot()
        return super().submit(spec, needs_s)

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        with suppress(OSError, ValueError):
            self._labels = next((self._spool.job(id).spec.labels for id in ids if self._spool.has(id)), {})
        seen = super().poll(ids)
        waits = f"waits for its pilot allocation: {self._refusal or self.pilot.reason or self.pilot.state}"
        if self.pilot.state is JobState.RUNNING:
            waits = "waits for free nodes of its pilot allocation"
        return {
            id: replace(status, reason=waits, warning=self._refusal) if status.state is JobState.QUEUED else status
            for id, status in seen.items()
        }

    def cancel(self, id: str) -> None:
        """Without a pilot that runs nobody else ends the job; a pilot that nobody waits for leaves the queue."""
        super().cancel(id)
        try:
            if self._spool.status(id).state is not JobState.QUEUED or not self._spool.has(id):
                return
            self.look()
            if self.pilot.state is JobState.RUNNING:
                return
            ended = JobStatus(state=JobState.CANCELLED, reason="cancelled", finished_at=time())
            self._spool.set_status(id, ended)
            left = self._waits()
        except OSError as error:
            raise RunnerUnavailable(f"{id} cannot be cancelled: {error.strerror}") from error
        if not left:
            self.end_pilot()

    def _seen(self) -> dict[str, JobStatus]:
        return {name: self._spool.status(name) for name in self._spool.names()}

    def _waits(self) -> bool:
        """Whether a job has not ended."""
        return any(not status.state.final for status in self._seen().values())

    def refusals(self) -> int:
        """How many pilots that a look sent were refused since this was asked last."""
        refused, self._refused = self._refused, 0
        return refused

    def end_pilot(self) -> None:
        """Raises RunnerUnavailable."""
        if (pilot := self._pilots.find(self._name(self._newest()))) is not None:
            self._pilots.cancel(pilot)

    def _wake_server(self) -> None:
        """`submit` has seen to it."""

    def _ensure_server(self) -> bool:
        """See that a pilot is queued or runs. Always True: where none is taken, jobs wait and may be cancelled. Raises
        OSError, RunnerUnavailable."""
        if monotonic() >= self._again_at:
            with suppress(SubmitFailed):
                try:
                    self._send_pilot(asked=False)
                except Refused:
                    self._refused += 1
        return True

    def _send_pilot(self, *, asked: bool = True) -> None:
        """Unless one is queued or runs, or, where it is not asked for, no job is left. Raises OSError, RunnerError."""
        number, self._refusal, self._again_at = self.look(), "", 0.0
        if self.pilot.state.final:
            if number > self._newest():  # one that may be under way still has nothing to lose
                self._bury()
            if not asked and not self._waits():
                return
            write_whole(self._spool.root / NUMBER_FILE, str(number))
            try:
                self._pilots.submit(self._job(number))
            except (Refused, SubmitFailed) as error:
                why = f"{error}; a pilot lasts pilot_s({self._options.pilot_s:g})"
                self._refusal, self._again_at = f"the next pilot could not be sent: {why}", monotonic() + REFUSED_S
                raise type(error)(why) from None
            self.pilot = JobStatus(state=JobState.QUEUED)
            old, root = number - KEPT, self._spool.root
            shutil.rmtree(root / f"pilot-{old}", ignore_errors=True)
            (root / RECORDS / "jobs" / f"{self._name(old)}.json").unlink(missing_ok=True)

    def look(self) -> int:
        """Bring `pilot` up to date; the number of the next one. That of one which was never sent is free."""
        number = self._newest()
        id = self._pilots.find(self._name(number)) if number else None
        self.pilot = JobStatus(state=JobState.LOST) if id is None else self._pilots.poll([id])[id]
        return max(1, number + (id is not None))

    def _bury(self) -> None:
        """The jobs that the ended pilot was running are lost with it, and the next one keeps away from its nodes that
        failed. Those that wait for one that failed before it ran any, as by its setup, fail too: so would the next."""
        note_failed(self._spool.root, self.pilot.failed_nodes)
        reason = f"its pilot allocation ended: {self.pilot.reason or self.pilot.state}"
        seen, began_at = self._seen(), self.pilot.started_at or 0.0
        in_vain = self.pilot.state is JobState.FAILED and not any(
            (status.started_at or 0.0) > began_at for status in seen.values()
        )
        for name, status in seen.items():
            ended = replace(status, reason=reason, finished_at=time(), failed_nodes=self.pilot.failed_nodes)
            if status.state is JobState.RUNNING:
                cause = self.pilot.cause or Cause.PREEMPTION
                self._spool.set_status(name, replace(ended, state=JobState.LOST, cause=cause))
            elif in_vain and not status.state.final:
                cause = self.pilot.cause or Cause.USER_BUG
                self._spool.set_status(name, replace(ended, state=JobState.FAILED, cause=cause))

    def _newest(self) -> int:
        with suppress(OSError, ValueError):
            return int((self._spool.root / NUMBER_FILE).read_text(encoding="ascii"))
        return 0

    def _name(self, number: int) -> str:
        return f"{self._spool.root.name}-{number}"

    def _job(self, number: int) -> JobSpec:
        root, options = self._spool.root, self._options
        facts = shlex.quote(str(root / FACTS_FILE))
        server = ("-m", "meshtune.runners.schedulers.local.server", str(root))
        times = ("--idle-s", f"{options.pilot_idle_s:g}", "--ends-in-s", f"{options.pilot_s:g}")
        script = (
            f'echo "allocation=$SLURM_JOB_ID cpus_on_node=$SLURM_CPUS_ON_NODE" > {facts}.new\nmv {facts}.new {facts}\n'
            f"exec {shlex.join((sys.executable, *server, *times))}\n"
        )
        return JobSpec(
            name=self._name(number),
            command=("bash", "-c", script),
            directory=root / f"pilot-{number}",
            nodes=self._allocation.nodes,
            devices_per_node=self._allocation.devices_per_node,
            time_limit_s=options.pilot_s,
            start=Start.JOB,
            avoid=tuple(failed_nodes(root)),
            labels={name: value for name, value in self._labels.items() if name != "trial"},
        )


class PilotRunner(AllocationRunner):
    """A Runner over the steps of one pilot after the other."""

    mode = Mode.PILOT

    def __init__(self, root: Path, options: SlurmOptions, allocation: Allocation, server: PilotServer) -> None:
        super().__init__(root, options, allocation, server)
        self._server, self.refusals = server, server.refusals

    @property
    def root(self) -> Path:
        return self._spool.root

    def _tell(self, *arguments: str) -> Answer:
        """From outside the allocation, which may be another cluster's."""
        program, *rest = arguments
        return super()._tell(program, *self._options.cluster_arguments, *rest)

    def _facts(self) -> str:
        return f". {shlex.quote(str(self._spool.root / FACTS_FILE))}\n"

    def _number(self) -> str:
        with suppress(OSError):
            words = (self._spool.root / FACTS_FILE).read_text(encoding="ascii").split()
            return next((word.partition("=")[2] for word in words if word.startswith("allocation=")), "")
        return ""

    def _check_time(self, spec: JobSpec) -> None:
        """See that the pilot has nodes enough that have not failed, or ends. Raises Refused, RunnerUnavailable."""
        if self._options.pilot_s < spec.time_limit_s + MARGIN_S:
            takes = f"a trial takes up to {spec.time_limit_s:g} s (+ {MARGIN_S:g} s)"
            raise Refused(f"pilot_s({self._options.pilot_s:g}): {takes}")
        if failed := failed_nodes(self._spool.root):
            self._server.look()  # another campaign may have sent the next one
            nodes = set(self._server.pilot.nodes)
            if failed & nodes and len(nodes - failed) < spec.nodes:
                self._server.end_pilot()


def create_pilots(root: Path, cluster: ClusterSpec, options: SlurmOptions) -> PilotRunner:
    """The pilots themselves are jobs of a Slurm runner."""
    nodes = max(cluster.nodes, options.pilot_nodes or 0)
    allocation = Allocation(id="", nodes=nodes, devices_per_node=cluster.devices_per_node, cpus_per_node=0)
    # Campaigns whose pilots would be alike share them.
    key = sha256(repr((nodes, cluster.devices_per_node, options)).encode()).hexdigest()[:8]
    root = (root / f"pilot-{key}").resolve()
    pilots = create_jobs(root / RECORDS, replace(options, mode=Mode.JOB), cluster, nodes)
    return PilotRunner(root, options, allocation, PilotServer(root, pilots, allocation, options))
