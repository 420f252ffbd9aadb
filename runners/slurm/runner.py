"""The Slurm runner: one batch job per trial, sent with sbatch, watched with one squeue for all, remembered in files.
Not covered: job arrays, heterogeneous jobs, federations, and clusters where only a token opens the controller."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshtune.runners.base import InvalidJob, JobSpec, JobStatus, Refused, Runner, RunnerUnavailable
from meshtune.runners.batch.base import BatchRunner, Record, ThrottledRunner
from meshtune.runners.batch.launch_wrapper import noted_end, read_notes
from meshtune.runners.batch.script import submit_host
from meshtune.runners.processes.command import Answer
from meshtune.runners.slurm.allocation import create_steps
from meshtune.runners.slurm.script import SCRIPT_FILE, Mode, SlurmOptions, minutes, options_for, render
from meshtune.runners.slurm.vocabulary import (
    REFUSALS,
    SACCT_FORMAT,
    SILENCES,
    SQUEUE_FORMAT,
    UNKNOWN_JOB,
    parse_bad_nodes,
    parse_cpus_per_device,
    parse_jobs,
    parse_partitions,
    room_for,
    status_of,
    suspects,
)
from meshtune.search_spaces.cluster import ClusterSpec

# What sbatch --parsable says, on a line of its own among those of a site's wrapper: the number, and the cluster's name.
_NUMBER = re.compile(r"^(\d+)(?:;\S*)?$", re.MULTILINE)
_UNKNOWN_NODE = ("Invalid node name",)
# The controller's clock is at most so far behind ours: the accounting is asked for jobs since then by its clock.
CLOCKS_APART_S = 86400.0


class SlurmRunner(BatchRunner[SlurmOptions]):
    script_file = SCRIPT_FILE
    refusals = REFUSALS
    silences = SILENCES
    cancel_command = "scancel"
    over = UNKNOWN_JOB
    script_text = staticmethod(render)

    # Until sacct says otherwise.
    _has_accounting = True

    def _placed(self, spec: JobSpec) -> JobSpec:
        """Without `avoid` where that would leave too few nodes."""
        if {"\\", "\n"} & set(str(spec.directory)):
            raise InvalidJob(f"{spec.name} would run in {str(spec.directory)!r}, a name that Slurm cannot write to")
        partitions = parse_partitions(self._ask("scontrol", "show", "partition", "--oneliner"))
        # Without any in the options, all: a site's plug-in may choose another one than the default.
        named = self._options.partition.split(",") if self._options.partition else []
        usable = [partition for partition in partitions if not named or partition.name in named]
        refusals = [partition.refusal(spec.nodes, minutes(spec)) for partition in usable]
        if refusals and all(refusals):
            raise Refused(f"{spec.name} needs {refusals[0]}")
        if self._options.leaves_cpus_to_site:
            where = [f"--partition={self._options.partition}"] if self._options.partition else []
            nodes = self._ask("sinfo", "--noheader", "--Node", *where, "--format=%c|%G")
            cpus = parse_cpus_per_device(nodes, self._options.gres or "")
            self._options = replace(self._options, cpus_per_device=cpus)
        if usable and not room_for(usable, spec.nodes, (*self._options.exclude, *spec.avoid)):
            return replace(spec, avoid=())
        return spec

    def _send(self, spec: JobSpec, script: Path) -> tuple[Answer, str | None]:
        # In the script, --export=NIL: Slurm would then load the user's login environment, tokens and all. What
        # `_environment` holds may be seen.
        answer = self._call("sbatch", "--parsable", "--export=ALL", str(script))
        if spec.avoid and answer.code != 0 and answer.says(_UNKNOWN_NODE):
            spec = replace(spec, avoid=())
            return self._send(spec, self._write_script(spec))
        number = _NUMBER.search(answer.out) if answer.code == 0 else None
        return answer, number.group(1) if number else None

    def _search(self, record: Record) -> str | None:
        """By name and folder, at the controller and in the accounting."""
        queued = self._ask("squeue", "--noheader", "--states=all", f"--name={record.name}", "--format=%i|%Z")
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.sent_at - CLOCKS_APART_S))
        accounted = (f"--name={record.name}", f"--starttime={since}", "--format=JobIDRaw,WorkDir")
        return _oldest(queued, record.directory) or _oldest(self._sacct(*accounted), record.directory)

    def _look(self, records: Mapping[str, Record]) -> dict[str, JobStatus]:
        """By one squeue for all, and one sacct and sinfo where they can tell more."""
        specs = {id: record.job() for id, record in records.items()}
        notes = {id: read_notes(record.directory) for id, record in records.items()}
        numbers = {id: record.number for id, record in records.items()}
        answer = self._call(
            *("squeue", "--noheader", "--states=all", f"--jobs={','.join(numbers.values())}"),
            f"--format={SQUEUE_FORMAT}",
        )
        # Of one job that it has forgotten squeue says so, of several it shows the others.
        if answer.code != 0 and not answer.says(UNKNOWN_JOB):
            raise RunnerUnavailable(f"squeue: {answer.complaint}")
        found = parse_jobs(answer.out if answer.code == 0 else "")
        unsettled = [
            number for id, number in numbers.items() if number not in found and noted_end(notes[id], specs[id]) is None
        ]
        if unsettled:
            out = self._sacct(f"--jobs={','.join(unsettled)}", f"--format={SACCT_FORMAT}")
            # The accounting may lag behind: only an end that it knows counts.
            found |= {number: seen for number, seen in parse_jobs(out).items() if seen.state.final}
        asked = {
            node
            for id, number in numbers.items()
            if number in found
            for node in suspects(specs[id], found[number], notes[id])
        }
        bad_nodes: tuple[str, ...] = ()
        if asked:
            out = self._ask("sinfo", "--noheader", "--Node", f"--nodes={','.join(sorted(asked))}", "--format=%N|%T")
            bad_nodes = parse_bad_nodes(out)
        return {
            id: status_of(
                specs[id], found.get(numbers[id]), notes[id], cancel_asked=record.cancel_asked, bad_nodes=bad_nodes
            )
            for id, record in records.items()
        }

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


def create(root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> Runner:
    chosen = options_for(cluster, options)
    runner: Runner
    if chosen.mode is Mode.ALLOCATION:
        runner = create_steps(root, cluster, chosen)
    else:
        runner = SlurmRunner(root, chosen, nodes=cluster.nodes, devices_per_node=cluster.devices_per_node)
    return ThrottledRunner(runner, chosen.poll_s)
