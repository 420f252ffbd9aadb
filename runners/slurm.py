"""The Slurm runner: one batch job per trial, sent with sbatch, watched with one squeue for all, remembered in files.

What the processes of a job noted (`runners.rank`) settles how it ended where Slurm does not know or has forgotten it.
An answer that never came is looked up by the job's name before anything is sent again. Not covered: job arrays,
heterogeneous jobs, federations, and clusters where only a token (SLURM_JWT) opens the controller.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from runners.base import InvalidJob, JobSpec, JobState, JobStatus, Runner, RunnerUnavailable, SubmitFailed
from runners.batch import Record, Records, surroundings
from runners.commands import Answer, call
from runners.jobfile import decode_job, write_whole
from runners.paced import PacedRunner
from runners.rank import GANG_FILE, gang_end, read_notes, render_gang
from runners.slurm_script import SCRIPT_FILE, Mode, SlurmOptions, minutes, options_for, render
from runners.slurm_states import (
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
from runners.slurm_status import status_of, suspects
from runners.slurm_steps import create_steps
from runners.spool import require_fit
from search_spaces.cluster import ClusterSpec

# What sbatch --parsable says, on a line of its own among those of a site's wrapper: the number, and the cluster's name.
_NUMBER = re.compile(r"^(\d+)(?:;\S*)?$", re.MULTILINE)
_UNKNOWN = "Invalid job id"
_UNKNOWN_NODE = "Invalid node name"


class SlurmRunner:
    """A Runner over the Slurm that sbatch speaks to, and the records under `root`.

    nodes, devices_per_node: of the campaign's cluster; a job that needs more is invalid.
    """

    def __init__(
        self,
        root: Path,
        options: SlurmOptions,
        *,
        nodes: int,
        devices_per_node: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._records = Records(root.resolve())
        self._options = options
        self._nodes, self._devices_per_node = nodes, devices_per_node
        self._clock = clock
        self._accounting = True

    def submit(self, spec: JobSpec) -> str:
        self._refuse_invalid(spec)
        if (known := self.find(spec.name)) is not None:
            return known
        spec = self._placed(replace(spec, directory=spec.directory.resolve()))
        try:
            spec.directory.mkdir(parents=True, exist_ok=True)
            for name, text in spec.files.items():
                write_whole(spec.directory / name, text)
            write_whole(spec.directory / GANG_FILE, render_gang(spec))
            self._write_script(spec)
            self._records.begin(spec.name, spec.directory, self._clock())
            answer = self._send(spec)
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

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        unknown = JobStatus(state=JobState.LOST, reason="this runner sent no such job")
        try:
            records = {id: self._records.of(id) for id in ids}
            known = {
                id: unknown if record is None else self._records.final(record.name) for id, record in records.items()
            }
            open_ = {id: record for id, record in records.items() if record is not None and known[id] is None}
            statuses = self._look(open_) if open_ else {}
        except (OSError, ValueError) as error:
            raise RunnerUnavailable(f"the records of jobs cannot be read: {error}") from error
        return {id: statuses.get(id) or known[id] or unknown for id in ids}

    def cancel(self, id: str) -> None:
        try:
            record = self._records.of(id)
            if record is None or self._records.final(record.name) is not None:
                return
            self._records.ask_cancel(record.name)
        except OSError as error:
            raise RunnerUnavailable(f"{id} cannot be cancelled: {error}") from error
        answer = self._call("scancel", *dict.fromkeys((id, record.number or id)))
        if answer.code != 0 and _UNKNOWN not in answer.complaint:
            raise RunnerUnavailable(f"{id} cannot be cancelled: {answer.complaint}")

    def find(self, name: str) -> str | None:
        """Asks Slurm only for a job that was about to be sent when the answer was lost. Raises RunnerUnavailable."""
        try:
            require_fit(name)
        except InvalidJob:
            return None
        record = self._records.get(name)
        if record is None or record.id is not None:
            return None if record is None else record.id
        id = record.claimed_by or self._queued(record) or self._accounted(record)
        if id is not None:
            self._keep_id(name, id)
        return id

    def close(self) -> None:
        """There is nothing to give back."""

    def _refuse_invalid(self, spec: JobSpec) -> None:
        require_fit(spec.name)
        if not 1 <= spec.nodes <= self._nodes:
            raise InvalidJob(f"{spec.name} needs {spec.nodes} nodes, but the cluster has {self._nodes}")
        if not 1 <= spec.devices_per_node <= self._devices_per_node:
            told = f"{spec.devices_per_node} devices on a node, but the cluster has {self._devices_per_node}"
            raise InvalidJob(f"{spec.name} needs {told}")
        if not spec.command:
            raise InvalidJob(f"{spec.name} has an empty command")
        if {"\\", "\n"} & set(str(spec.directory)):
            raise InvalidJob(f"{spec.name} would run in {str(spec.directory)!r}, a name that Slurm cannot write to")

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

    def _send(self, spec: JobSpec) -> Answer:
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
            return self._send(spec)
        return answer

    def _keep_id(self, name: str, id: str) -> None:
        """Raises RunnerUnavailable: what was sent is found again by its name, as after an answer that never came."""
        try:
            self._records.set_id(name, id)
        except OSError as error:
            raise RunnerUnavailable(f"the id {id} of {name} cannot be written: {error.strerror}") from error

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
        specs = {id: _spec(record) for id, record in records.items()}
        seen = self._seen(records, specs)
        notes = {id: read_notes(record.directory) for id, record in records.items()}
        asked = {
            node
            for id, sighting in seen.items()
            if sighting is not None
            for node in suspects(specs[id], sighting, notes[id])
        }
        bad_nodes = self._bad_nodes(sorted(asked)) if asked else ()
        statuses = {}
        for id, record in records.items():
            status = status_of(
                specs[id],
                seen[id],
                notes[id],
                cancel_asked=self._records.cancel_asked(record.name),
                bad_nodes=bad_nodes,
            )
            if status.state.final:
                with suppress(OSError):  # the next look comes to the same end
                    self._records.set_final(record.name, status)
            statuses[id] = status
        return statuses

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


def _spec(record: Record) -> JobSpec:
    """The job as it was sent; of one whose folder somebody cleared away, no more than the record tells."""
    try:
        return decode_job(json.loads((record.directory / GANG_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return JobSpec(name=record.name, command=(), directory=record.directory, time_limit_s=0.0)


def create(root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> Runner:
    """The Slurm runner of a campaign. Raises InvalidValue."""
    chosen = options_for(cluster, options)
    runner: Runner
    if chosen.mode is Mode.ALLOCATION:
        runner = create_steps(root, cluster, chosen)
    else:
        runner = SlurmRunner(root, chosen, nodes=cluster.nodes, devices_per_node=cluster.devices_per_node)
    return PacedRunner(runner, chosen.poll_s)
