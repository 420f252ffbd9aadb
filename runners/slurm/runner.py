"""The Slurm runner: one batch job per trial, sent with sbatch, watched with one squeue for all, remembered in files.

What the processes of a job noted (`runners.batch.launch_wrapper`) settles how it ended where Slurm does not know or has
forgotten it. An answer that never came is looked up by the job's name before anything is sent again. Not covered: job
arrays, heterogeneous jobs, federations, and clusters where only a token (SLURM_JWT) opens the controller.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshtune.runners.base import InvalidJob, JobSpec, JobStatus, Runner, RunnerUnavailable, SubmitFailed
from meshtune.runners.batch.base import BatchRunner, sent_job
from meshtune.runners.batch.launch_wrapper import GANG_FILE, gang_end, read_notes, render_gang
from meshtune.runners.batch.records import Record, surroundings
from meshtune.runners.batch.throttle import PacedRunner
from meshtune.runners.processes.command import Answer, call
from meshtune.runners.processes.job_json import write_whole
from meshtune.runners.slurm.allocation import create_steps
from meshtune.runners.slurm.judge import status_of, suspects
from meshtune.runners.slurm.script import SCRIPT_FILE, Mode, SlurmOptions, minutes, options_for, render
from meshtune.runners.slurm.vocabulary import (
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    Partition,
    Sighting,
    is_refusal,
    is_silence,
    parse_bad_nodes,
    parse_partitions,
    parse_sightings,
    room_for,
)
from meshtune.search_spaces.cluster import ClusterSpec

# What sbatch --parsable says, on a line of its own among those of a site's wrapper: the number, and the cluster's name.
_NUMBER = re.compile(r"^(\d+)(?:;\S*)?$", re.MULTILINE)
_UNKNOWN = "Invalid job id"
_UNKNOWN_NODE = "Invalid node name"


class SlurmRunner(BatchRunner):
    """A Runner over the Slurm that sbatch speaks to; see BatchRunner."""

    def __init__(
        self,
        root: Path,
        options: SlurmOptions,
        *,
        nodes: int,
        devices_per_node: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(root, nodes=nodes, devices_per_node=devices_per_node, clock=clock)
        self._options = options
        self._accounting = True

    def _send(self, spec: JobSpec) -> str:
        if {"\\", "\n"} & set(str(spec.directory)):
            raise InvalidJob(f"{spec.name} would run in {str(spec.directory)!r}, a name that Slurm cannot write to")
        spec = self._placed(spec)
        try:
            spec.directory.mkdir(parents=True, exist_ok=True)
            for name, text in spec.files.items():
                write_whole(spec.directory / name, text)
            write_whole(spec.directory / GANG_FILE, render_gang(spec))
            self._write_script(spec)
            self._records.begin(spec.name, spec.directory, self._clock())
            answer = self._sbatch(spec)
        except OSError as error:
            raise SubmitFailed(f"{spec.name} cannot be written: {error}") from error
        if answer.code != 0 and not is_silence(answer.complaint):
            self._records.forget(spec.name)
            kind = InvalidJob if is_refusal(answer.complaint) else SubmitFailed
            raise kind(f"{spec.name} was refused: {answer.complaint}")
        if answer.code == 0 and (number := _NUMBER.search(answer.out)) is not None:
            self._keep_id(spec.name, number.group(1))
        id = self.find(spec.name)
        if id is None:
            raise RunnerUnavailable(f"{spec.name} may not have been sent: {answer.complaint}")
        return id

    def _search(self, record: Record) -> str | None:
        return self._queued(record) or self._accounted(record)

    def _withdraw(self, numbers: Sequence[str]) -> str:
        answer = self._call("scancel", *numbers)
        return "" if answer.code == 0 or _UNKNOWN in answer.complaint else answer.complaint

    def _placed(self, spec: JobSpec) -> JobSpec:
        """The job as Slurm could place it: without `avoid` where that would leave too few nodes. Raises InvalidJob."""
        answer = self._call("scontrol", "show", "partition", "--oneliner")
        if answer.code != 0:
            raise RunnerUnavailable(f"scontrol: {answer.complaint}")
        usable = self._usable(parse_partitions(answer.out))
        refusals = [partition.refusal(spec.nodes, minutes(spec)) for partition in usable]
        if refusals and all(refusals):
            raise InvalidJob(f"{spec.name} needs {refusals[0]}")
        if usable and not room_for(usable, spec.nodes, (*self._options.exclude, *spec.avoid)):
            return replace(spec, avoid=())
        return spec

    def _usable(self, partitions: Sequence[Partition]) -> list[Partition]:
        """Those of the options. Without any, all: a site's plug-in may choose another one than the default."""
        named = self._options.partition.split(",") if self._options.partition else []
        return [partition for partition in partitions if not named or partition.name in named]

    def _write_script(self, spec: JobSpec) -> None:
        write_whole(spec.directory / SCRIPT_FILE, render(spec, self._options, surroundings()))

    def _sbatch(self, spec: JobSpec) -> Answer:
        """What sbatch said, or that it did not answer. Raises OSError."""
        try:
            # In the script, --export=NIL: Slurm would then load the user's login environment, tokens and all. What
            # `_environment` holds may be seen.
            answer = self._call("sbatch", "--parsable", "--export=ALL", str(spec.directory / SCRIPT_FILE))
        except RunnerUnavailable as error:
            return Answer(0, "", str(error))
        if spec.avoid and answer.code != 0 and _UNKNOWN_NODE in answer.complaint:
            spec = replace(spec, avoid=())
            self._write_script(spec)
            return self._sbatch(spec)
        return answer

    def _queued(self, record: Record) -> str | None:
        """The number by which the controller knows a job of that name and folder. Raises RunnerUnavailable."""
        answer = self._call("squeue", "--noheader", "--states=all", f"--name={record.name}", "--format=%i|%Z")
        if answer.code != 0:
            raise RunnerUnavailable(f"squeue: {answer.complaint}")
        return _oldest(answer.out, record.directory)

    def _accounted(self, record: Record) -> str | None:
        """The number by which the accounting, where there is one, knows it."""
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.sent_at - 60))
        out = self._sacct(f"--name={record.name}", f"--starttime={since}", "--format=JobIDRaw,WorkDir")
        return _oldest(out, record.directory)

    def _look(self, records: Mapping[str, Record]) -> dict[str, JobStatus]:
        """The statuses of jobs by id, by one squeue for all, and one sacct and sinfo where they can tell more."""
        specs = {id: sent_job(record) for id, record in records.items()}
        seen = self._seen(records, specs)
        notes = {id: read_notes(record.directory) for id, record in records.items()}
        asked = {
            node
            for id, sighting in seen.items()
            if sighting is not None
            for node in suspects(specs[id], sighting, notes[id])
        }
        bad_nodes = self._bad_nodes(sorted(asked)) if asked else ()
        return {
            id: status_of(
                specs[id],
                seen[id],
                notes[id],
                cancel_asked=self._records.cancel_asked(record.name),
                bad_nodes=bad_nodes,
            )
            for id, record in records.items()
        }

    def _seen(self, records: Mapping[str, Record], specs: Mapping[str, JobSpec]) -> dict[str, Sighting | None]:
        numbers = {id: record.number or id for id, record in records.items()}
        found = parse_sightings(self._squeue(list(numbers.values())))
        unsettled = [
            number
            for id, number in numbers.items()
            if number not in found and gang_end(read_notes(records[id].directory), specs[id]) is None
        ]
        if unsettled:
            out = self._sacct(f"--jobs={','.join(unsettled)}", f"--format={SACCT_FORMAT}")
            # The accounting may lag behind: only an end that it knows counts.
            found |= {id: seen for id, seen in parse_sightings(out).items() if seen.meaning.state.final}
        return {id: found.get(number) for id, number in numbers.items()}

    def _squeue(self, numbers: Sequence[str]) -> str:
        """Raises RunnerUnavailable."""
        answer = self._call(
            "squeue", "--noheader", "--states=all", f"--jobs={','.join(numbers)}", f"--format={SQUEUE_FORMAT}"
        )
        # Of one job that it has forgotten squeue says so, of several it shows the others.
        if answer.code != 0 and _UNKNOWN not in answer.complaint:
            raise RunnerUnavailable(f"squeue: {answer.complaint}")
        return answer.out if answer.code == 0 else ""

    def _sacct(self, *arguments: str) -> str:
        """What sacct says; nothing where there is no accounting. Raises RunnerUnavailable when it does not answer."""
        if not self._accounting:
            return ""
        answer = self._call("sacct", "--allocations", "--noheader", "--parsable2", "--duplicates", *arguments)
        if answer.code != 0 and is_silence(answer.complaint):
            raise RunnerUnavailable(f"sacct: {answer.complaint}")
        self._accounting = answer.code == 0
        return answer.out if answer.code == 0 else ""

    def _bad_nodes(self, nodes: Sequence[str]) -> tuple[str, ...]:
        answer = self._call("sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N|%T")
        if answer.code != 0:
            raise RunnerUnavailable(f"sinfo: {answer.complaint}")
        return parse_bad_nodes(answer.out)

    def _call(self, *arguments: str) -> Answer:
        return call(arguments, time_limit_s=self._options.call_limit_s, environment=_environment(arguments[0]))


def _environment(program: str) -> dict[str, str]:
    """What a Slurm command sees: none of our secrets, which sbatch would pass on, and none of the user's SQUEUE_... or
    SBATCH_... variables, which would change what it says or does."""
    environment = dict(surroundings().environment)
    if "SLURM_CONF" in os.environ:
        environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
    if program != "sbatch":
        environment["SLURM_TIME_FORMAT"] = "%s"
    return environment


def _oldest(text: str, directory: Path) -> str | None:
    """The lowest number of a job in that folder, in lines of "number|folder"."""
    pairs = [line.partition("|")[::2] for line in text.splitlines()]
    return min((id for id, folder in pairs if folder == str(directory) and id.isdecimal()), key=int, default=None)


def create(root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> Runner:
    """The Slurm runner of a campaign. Raises InvalidValue."""
    chosen = options_for(cluster, options)
    runner: Runner
    if chosen.mode is Mode.ALLOCATION:
        runner = create_steps(root, cluster, chosen)
    else:
        runner = SlurmRunner(root, chosen, nodes=cluster.nodes, devices_per_node=cluster.devices_per_node)
    return PacedRunner(runner, chosen.poll_s)
