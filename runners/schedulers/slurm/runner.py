"""The Slurm runner: one batch job per trial, sent with sbatch, watched with one squeue for all, remembered in files.
Not covered: job arrays, heterogeneous jobs, federations, and clusters where only a token opens the controller."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path

from meshtune.runners.base import InvalidJob, JobSpec, JobState, JobStatus, Refused, RunnerUnavailable
from meshtune.runners.command import Answer
from meshtune.runners.json_files import write_whole
from meshtune.runners.schedulers.batch.base import BatchRunner
from meshtune.runners.schedulers.batch.launch_wrapper import GANG_FILE, noted_end, read_notes, render_gang
from meshtune.runners.schedulers.batch.records import JobRecord
from meshtune.runners.schedulers.batch.script import submit_host
from meshtune.runners.schedulers.slurm.nodes import (
    NODE_FORMAT,
    Partition,
    SlurmNode,
    ask_states,
    parse_bad_nodes,
    parse_nodes,
    parse_partitions,
    room_for,
    share_per_device,
)
from meshtune.runners.schedulers.slurm.sbatch import directives
from meshtune.runners.schedulers.slurm.script import LOG_FILE, SCRIPT_FILE, SlurmOptions, minutes, render
from meshtune.runners.schedulers.slurm.vocabulary import (
    SACCT_FORMAT,
    SILENCES,
    SQUEUE_FORMAT,
    UNKNOWN_JOB,
    parse_jobs,
    read_failed_nodes,
    status_of,
    suspects,
)
from meshtune.runners.untrusted_text import option_value
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind

# What sbatch --parsable says, on a line of its own among those of a site's wrapper: the number, and the cluster's name.
_NUMBER = re.compile(r"^(\d+)(?:;\S*)?$", re.MULTILINE)
_UNKNOWN_NODE = ("Invalid node name",)
_UNKNOWN_CLUSTER = "known by database"
_SHARES_MEMORY = re.compile(r"^SelectTypeParameters\s*=.*MEMORY", re.MULTILINE | re.IGNORECASE)
# The rest is the node's own (MemSpecLimit): who asks for all of RealMemory may wait for ever.
MEMORY_TO_JOBS = 0.95
# Waiting jobs are checked for nodes at most once in so many looks.
LIFTS_APART = 6
# The controller's clock is at most so far behind ours: the accounting is asked for jobs since then by its clock.
CLOCKS_APART_S = 86400.0


class SlurmRunner(BatchRunner[SlurmOptions]):
    script_file = SCRIPT_FILE
    log_file = LOG_FILE
    silences = SILENCES
    cancel_command = "scancel"
    over = UNKNOWN_JOB
    script_text = staticmethod(render)

    # Whether the cluster's devices are not CPUs, even where none are asked for by `gres`.
    accelerated = False
    # Until sacct says otherwise.
    _has_accounting = True
    # When we last asked whether waiting jobs have nodes enough.
    _lifted_at = -inf

    def _placed(self, spec: JobSpec) -> JobSpec:
        """Without `avoid` where that would leave too few nodes that run jobs now."""
        if {"\\", "\n"} & set(str(spec.directory)):
            raise InvalidJob(f"{spec.name} would run in {str(spec.directory)!r}, a name that Slurm cannot write to")
        try:
            usable = self._partitions(self._options.partition)
        except RunnerUnavailable as error:
            if _UNKNOWN_CLUSTER in str(error):
                raise Refused(str(error)) from None
            raise
        refusals = [partition.refusal(spec.nodes, minutes(spec)) for partition in usable]
        if refusals and all(refusals):
            raise Refused(f"{spec.name} needs {refusals[0]}")
        avoid = tuple(node for node in spec.avoid if node not in self._options.exclude)
        shared = self._options.cpus_per_device is None and (self.accelerated or bool(self._options.gres))
        if not avoid and not shared:
            return replace(spec, avoid=())
        nodes = self._fitting(self._options.partition, self._options.constraint)
        if shared:
            self._options = self._with_share(nodes)
        running = [node.name for node in nodes if node.starts_jobs(reserved=bool(self._options.reservation))]
        if usable and not room_for(usable, running, spec.nodes, (*self._options.exclude, *avoid)):
            avoid = ()
        return replace(spec, avoid=avoid)

    def asked(self, spec: JobSpec) -> str:
        """What Slurm says to the job, which it is not given: when it would start, or why not. Raises Refused,
        InvalidJob, RunnerUnavailable."""
        script = self.script_text(self._placed(spec), self._options, submit_host())
        answer = self._call("sbatch", "--test-only", "--export=ALL", stdin=script)
        said = answer.complaint.replace("sbatch: ", "")
        if answer.code != 0:
            raise (RunnerUnavailable if answer.says(self.silences) else Refused)(said)
        return said

    def _call(self, *arguments: str, stdin: str = "") -> Answer:
        program, *rest = arguments
        return super()._call(program, *self._options.cluster_arguments, *rest, stdin=stdin)

    def _partitions(self, names: str) -> list[Partition]:
        """Those of these names; without any, all: a site's plug-in may choose another one than the default."""
        partitions = parse_partitions(self._ask("scontrol", "show", "partition", "--oneliner"))
        named = names.split(",") if names else []
        return [partition for partition in partitions if not named or partition.name in named]

    def _fitting(self, partition: str, constraint: str) -> list[SlurmNode]:
        """The nodes of a partition, by default of all, that have these features."""
        where = [f"--partition={partition}"] if partition else []
        nodes = parse_nodes(self._ask("sinfo", "--noheader", "--Node", *where, f"--format={NODE_FORMAT}"))
        return [node for node in nodes if node.fits(constraint)]

    def _with_share(self, nodes: Sequence[SlurmNode]) -> SlurmOptions:
        """The options with a device's share of the least of these nodes."""
        options = self._options
        share = share_per_device(nodes, options.gres or "gpu", self._devices_per_node)
        if share is None:
            return options
        memory = options.memory_mib_per_device
        if memory is None and share.memory_mib and options.gres:
            config = self._ask("scontrol", "show", "config")
            memory = int(share.memory_mib * MEMORY_TO_JOBS) if _SHARES_MEMORY.search(config) else 0
        return replace(options, cpus_per_device=share.cpus, memory_mib_per_device=memory)

    def _send(self, spec: JobSpec, script: Path) -> tuple[Answer, str | None]:
        # In the script, --export=NIL: Slurm would then load the user's login environment, tokens and all. What
        # `_environment` holds may be seen.
        answer = self._call("sbatch", "--parsable", "--export=ALL", str(script))
        if spec.avoid and answer.code != 0 and answer.says(_UNKNOWN_NODE):
            spec = replace(spec, avoid=())
            return self._send(spec, self._write_script(spec))
        numbers = set(_NUMBER.findall(answer.out)) if answer.code == 0 else set()
        # Of several, some are a site's own: the job is found by its name then.
        return answer, numbers.pop() if len(numbers) == 1 else None

    def _search(self, record: JobRecord) -> str | None:
        """By name and folder, at the controller and in the accounting."""
        queued = self._ask("squeue", "--noheader", "--states=all", f"--name={record.name}", "--format=%i|%Z")
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.sent_at - CLOCKS_APART_S))
        accounted = (f"--name={record.name}", f"--starttime={since}", "--format=JobIDRaw,WorkDir")
        return _oldest(queued, record.directory) or _oldest(self._sacct(*accounted), record.directory)

    def _look(self, records: Mapping[str, JobRecord]) -> dict[str, JobStatus]:
        """By one squeue for all, and one sacct and sinfo where they can tell more."""
        specs = {id: record.job() for id, record in records.items()}
        numbers = {id: record.number for id, record in records.items()}
        answer = self._call(
            *("squeue", "--noheader", "--states=all", f"--jobs={','.join(numbers.values())}"),
            f"--format={SQUEUE_FORMAT}",
        )
        # Of one job that it has forgotten squeue says so, of several it shows the others.
        known = parse_jobs(answer.output("squeue", UNKNOWN_JOB))
        # After the look: a job may end during it.
        notes = {id: read_notes(record.directory) for id, record in records.items()}
        unsettled = [
            number for id, number in numbers.items() if number not in known and noted_end(notes[id], specs[id]) is None
        ]
        if unsettled:
            out = self._sacct(f"--jobs={','.join(unsettled)}", f"--format={SACCT_FORMAT}")
            # The accounting may lag behind: only an end that it knows counts.
            known |= {number: one for number, one in parse_jobs(out).items() if one.state.final}
        seen = {id: known[number] for id, number in numbers.items() if number in known}
        asked = {node for id, one in seen.items() for node in suspects(specs[id], one, notes[id])}
        waiting = [id for id, one in seen.items() if one.state is JobState.QUEUED and specs[id].avoid]
        self._lift({numbers[id]: specs[id] for id in waiting})
        # Slurm notices a dead node after minutes, srun at once.
        bad_nodes = {
            node
            for id, one in seen.items()
            if one.state is JobState.FAILED
            for node in read_failed_nodes(records[id].directory / LOG_FILE)
        }
        if asked:
            bad_nodes.update(parse_bad_nodes(self._ask(*ask_states(asked))))
        return {
            id: status_of(specs[id], seen.get(id), notes[id], cancel_asked=record.cancel_asked, bad_nodes=bad_nodes)
            for id, record in records.items()
        }

    def _lift(self, waiting: Mapping[str, JobSpec]) -> None:
        """Of waiting jobs, by number: let in the nodes that we keep a job away from where too few others run jobs by
        now. What its site shuts out stays out: a job may be of another campaign, and so of other options."""
        now = self._clock()
        if not waiting or now - self._lifted_at < LIFTS_APART * self._options.poll_s:
            return
        self._lifted_at = now
        for number, spec in waiting.items():
            with suppress(RunnerUnavailable, OSError, ValueError):
                words = directives((spec.directory / SCRIPT_FILE).read_text(encoding="utf-8"), "SBATCH")
                partition, constraint, shut = (
                    option_value(words, f"--{name}") or "" for name in ("partition", "constraint", "exclude")
                )
                reserved = bool(option_value(words, "--reservation"))
                nodes = self._fitting(partition, constraint)
                running = [node.name for node in nodes if node.starts_jobs(reserved=reserved)]
                if not room_for(self._partitions(partition), running, spec.nodes, shut.split(",")):
                    kept = ",".join(node for node in shut.split(",") if node not in spec.avoid)
                    self._ask("scontrol", "update", f"jobid={number}", f"ExcNodeList={kept}")
                    write_whole(spec.directory / GANG_FILE, render_gang(replace(spec, avoid=())))

    def _sacct(self, *arguments: str) -> str:
        """Nothing where there is no accounting. Raises RunnerUnavailable when it does not answer."""
        if not self._has_accounting:
            return ""
        answer = self._call("sacct", "--allocations", "--noheader", "--parsable2", "--duplicates", *arguments)
        if answer.code != 0 and answer.says(SILENCES):
            raise RunnerUnavailable(f"sacct: {answer.complaint}")
        self._has_accounting = answer.code == 0
        return answer.out if answer.code == 0 else ""

    def _environment(self, program: str) -> Mapping[str, str]:
        """None of our secrets, nor of the user's SQUEUE_... or SBATCH_... variables."""
        environment = dict(submit_host().environment)
        if "SLURM_CONF" in os.environ:
            environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
        if program != "sbatch":
            environment["SLURM_TIME_FORMAT"] = "%s"
        return environment


def _oldest(text: str, directory: Path) -> str | None:
    """The lowest number of a job in that folder, in lines of "number|folder"."""
    pairs = [line.partition("|")[::2] for line in text.splitlines()]
    return min((id for id, folder in pairs if folder == str(directory) and id.isdecimal()), key=int, default=None)


def create_jobs(root: Path, options: SlurmOptions, cluster: ClusterSpec, nodes: int) -> SlurmRunner:
    """nodes: the most that a job may have."""
    runner = SlurmRunner(root, options, nodes=nodes, devices_per_node=cluster.devices_per_node)
    runner.accelerated = cluster.device.kind is not DeviceKind.CPU
    return runner
