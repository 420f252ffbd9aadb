"""The job script for PBS Pro and the options that shape it; Aurora's customs are the defaults. PBS cannot be told which
nodes to avoid: a select statement has no "not" (pbs_resources(7B))."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from meshtune.runners.base import JobSpec, Start
from meshtune.runners.batch.script import BACKSTOP_S, LAUNCH_WRAPPER, BatchOptions, SubmitHost, render_body, submit_host
from meshtune.runners.documents import read_value
from meshtune.runners.processes.gang import FIRST_PORT, PORTS
from meshtune.search_spaces.checks import Checks

SCRIPT_FILE = "pbs.sh"
LOG_FILE = "pbs.log"
# What would send our environment along, make an array of it, or run it again unasked.
_FORBIDDEN = ("-V", "-v", "-J", "-r")


@dataclass(frozen=True, slots=True, kw_only=True)
class PbsOptions(BatchOptions):
    """What a site or a user adds to every job."""

    directive = "#PBS -"

    # As for `qsub -q` and `-A`.
    queue: str = ""
    project: str = ""
    # Those that the job needs: home:flare.
    filesystems: str = ""
    # What each node must have, in PBS's words: ncpus=208:ngpus=6.
    select: str = ""
    # How nodes are shared.
    place: str = "scatter:excl"
    # How to start `processes` processes, `processes_per_node` on each node. --envall: what the setup lines set reaches
    # the processes on all nodes (PALS and Hydra).
    mpiexec: str = "mpiexec -n {processes} --ppn {processes_per_node} --envall"

    def __post_init__(self) -> None:
        checks = Checks()
        for name in ("queue", "project", "filesystems", "select", "place"):
            text = getattr(self, name)
            checks.require(len(text.split()) <= 1 and text == text.strip(), name, f"must be one word, not {text!r}")
        self._check(checks)
        for line in self.extra_lines:
            apart = line.removeprefix("#PBS ").startswith(_FORBIDDEN)
            checks.require(not apart, "extra_lines", f"must not have {', '.join(_FORBIDDEN)}, as {line!r}")
        checks.require(_is_template(self.mpiexec), "mpiexec", f"must start {{processes}}, not {self.mpiexec!r}")
        checks.done()


def render_script(spec: JobSpec, options: Mapping[str, Any]) -> str:
    """The script of a job as it would be sent from here. Raises InvalidValue."""
    return render(spec, read_value(PbsOptions, dict(options)), submit_host())


def render(spec: JobSpec, options: PbsOptions, host: SubmitHost) -> str:
    """The script of a job; its directory must be absolute."""
    return (
        # A login shell, in which `module` is a command.
        "#!/bin/bash -l\n"
        + "".join(f"#PBS {directive}\n" for directive in _directives(spec, options))
        + "".join(f"{line}\n" for line in options.extra_lines)
        + f"cd {shlex.quote(str(spec.directory))} || exit 1\n"
        + render_body("$PBS_JOBID", host, options.setup)
        + _MEETING
        + f"exec {_start(spec, options)}env{' PALS_RANKID=0' if spec.start is Start.JOB else ''} "
        + f'MASTER_ADDR="$address" MASTER_PORT="$port" {shlex.quote(host.python)} {LAUNCH_WRAPPER} </dev/null\n'
    )


def _directives(spec: JobSpec, options: PbsOptions) -> list[str]:
    select = ":".join(part for part in (f"select={spec.nodes}", options.select) if part)
    return [
        f"-N {spec.name}",
        *([f"-q {options.queue}"] if options.queue else []),
        *([f"-A {options.project}"] if options.project else []),
        f"-l {select}",
        f"-l place={options.place}",
        f"-l walltime={_clock(spec.time_limit_s + BACKSTOP_S)}",
        *([f"-l filesystems={options.filesystems}"] if options.filesystems else []),
        # One log, written in place as the job goes; no second run; no mail, which the end of a job can cause.
        *("-j oe", "-k doe", f"-o {shlex.quote(str(spec.directory / LOG_FILE))}", "-r n", "-m n"),
    ]


def _start(spec: JobSpec, options: PbsOptions) -> str:
    """The launcher; none for a script that launches for itself, which is on the first node already."""
    if spec.start is Start.JOB:
        return ""
    return options.mpiexec.format(processes=spec.processes, processes_per_node=spec.processes_per_node) + " "


# A port of the job's own, as long as jobs do not share nodes.
_MEETING = f"""\
address=$(head -n 1 "$PBS_NODEFILE")
port=$(({FIRST_PORT} + ${{PBS_JOBID%%[!0-9]*}} % {PORTS}))
"""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(ceil(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"


def _is_template(text: str) -> bool:
    try:
        return text.format(processes=1, processes_per_node=1) != text
    except (LookupError, ValueError):
        return False
