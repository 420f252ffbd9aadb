"""The job script for PBS Pro and the options that shape it; Aurora's customs are the defaults. PBS cannot be told which
nodes to avoid: a select statement has no "not" (pbs_resources(7B))."""

from __future__ import annotations

import getpass
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Annotated, Any, ClassVar

from meshtune.runners.base import JobSpec, JobStatus, RunnerUnavailable, Start
from meshtune.runners.command import Answer
from meshtune.runners.documents import read_value
from meshtune.runners.processes.gang import FIRST_PORT, PORTS
from meshtune.runners.schedulers.batch.base import BatchRunner
from meshtune.runners.schedulers.batch.launch_wrapper import read_notes
from meshtune.runners.schedulers.batch.records import JobRecord
from meshtune.runners.schedulers.batch.script import (
    BACKSTOP_S,
    BatchOptions,
    SubmitHost,
    render_body,
    render_launch,
    render_rank,
    submit_host,
)
from meshtune.runners.schedulers.batch.shared_look import SharedRunner, share
from meshtune.runners.schedulers.pbs.vocabulary import Unreadable, read_jobs, read_status, status_of
from meshtune.search_spaces.checks import Checks, Text
from meshtune.search_spaces.cluster import ClusterSpec

SCRIPT_FILE = "pbs.sh"
LOG_FILE = "pbs.log"
# What would send our environment along, make an array of it, or run it again unasked.
_FORBIDDEN = ("-V", "-v", "-J", "-r")
_Word = Annotated[str, Text(r"^\S*$", "be one word")]
_PER_NODE = "{processes_per_node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PbsOptions(BatchOptions):
    """What a site or a user adds to every job."""

    directive = "#PBS -"
    form: ClassVar[Mapping[str, str]] = {
        "queue": "as qsub's -q",
        "project": "as qsub's -A",
        "filesystems": "those that the job needs: home:flare",
        "select": "what each node must have: ncpus=208:ngpus=6",
        "place": "how nodes are shared",
        "mpiexec": "how processes are started",
        "binding": "further arguments of the launcher, where each device has a process",
        **BatchOptions.form,
    }

    # As for `qsub -q` and `-A`.
    queue: _Word = ""
    project: _Word = ""
    # `-l filesystems=`, required at ALCF: `home:flare`.
    filesystems: _Word = ""
    # Resources of each node, in PBS's words: `ncpus=208:ngpus=6`. Without it a node's chunk has the site's default,
    # often 1 CPU; name `ncpus` where jobs are bound to their request. Open MPI starts as many processes on a node as
    # PBS_NODEFILE has lines of it: `ncpus=32:mpiprocs={processes_per_node}`.
    select: _Word = ""
    # How nodes are shared.
    place: _Word = "scatter:excl"
    # How to start `processes` processes, `processes_per_node` on each node. The default suits HPE's PALS and MPICH's
    # Hydra, of which --envall has what the setup lines set reach the processes on all nodes.
    mpiexec: str = "mpiexec -n {processes} --ppn {processes_per_node} --envall"
    # Further arguments of it where each device has a process: `--cpu-bind=list:4-7:8-11`. One process for a node, such
    # as torchrun, is bound to nothing: its own would all share what is meant for the first.
    binding: Annotated[str, Text(r"^[^\n]*$", "be a single line")] = ""
    # As everywhere; here by default.
    login_shell: bool = True

    def _check(self, checks: Checks) -> None:
        fit = not {"{", "}"} & set(self.select.replace(_PER_NODE, ""))
        checks.require(fit, "select", f"may hold {_PER_NODE} alone, not {self.select!r}")
        BatchOptions._check(self, checks)
        for line in self.extra_lines:
            apart = line.removeprefix("#PBS ").startswith(_FORBIDDEN)
            checks.require(not apart, "extra_lines", f"must not have {', '.join(_FORBIDDEN)}, as {line!r}")
        checks.require(_is_template(self.mpiexec), "mpiexec", f"must start {{processes}}, not {self.mpiexec!r}")


def render_script(spec: JobSpec, options: Mapping[str, Any]) -> str:
    """The script of a job as it would be sent from here. Raises InvalidValue."""
    return render(spec, read_value(PbsOptions, dict(options)), submit_host())


def render(spec: JobSpec, options: PbsOptions, host: SubmitHost) -> str:
    """The script of a job; its directory must be absolute."""
    return (
        options.shebang
        + "".join(f"#PBS {directive}\n" for directive in _directives(spec, options))
        + "".join(f"{line}\n" for line in options.extra_lines)
        + f"cd {shlex.quote(str(spec.directory))} || exit 1\n"
        + render_body("$PBS_JOBID", host, shlex.quote(str(spec.directory / SCRIPT_FILE)), options, spec)
        + _MEETING
        + render_launch(f"{_start(spec, options)}{_rank(spec, options, host)} </dev/null", options)
    )


def _rank(spec: JobSpec, options: PbsOptions, host: SubmitHost) -> str:
    alone = " PALS_RANKID=0" if spec.start is Start.JOB else ""
    rank = render_rank(shlex.quote(host.python), spec, options)
    return f'env{alone} MASTER_ADDR="$address" MASTER_PORT="$port" {rank}'


def _directives(spec: JobSpec, options: PbsOptions) -> list[str]:
    wanted = options.select.replace(_PER_NODE, str(spec.processes_per_node))
    select = ":".join(part for part in (f"select={spec.nodes}", wanted) if part)
    minutes, seconds = divmod(ceil(spec.time_limit_s + BACKSTOP_S), 60)
    # A user cannot set a comment.
    labels = ",".join(f"MESHTUNE_{name.upper()}={value}" for name, value in spec.labels.items())
    return [
        f"-N {spec.name}",
        *([f"-v {labels}"] if labels else []),
        *([f"-q {options.queue}"] if options.queue else []),
        *([f"-A {options.project}"] if options.project else []),
        f"-l {select}",
        f"-l place={options.place}",
        f"-l walltime={minutes // 60:02}:{minutes % 60:02}:{seconds:02}",
        *([f"-l filesystems={options.filesystems}"] if options.filesystems else []),
        # One log, written in place as the job goes; no second run; no mail, which the end of a job can cause.
        *("-j oe", "-k doe", f"-o {shlex.quote(str(spec.directory / LOG_FILE))}", "-r n", "-m n"),
    ]


def _start(spec: JobSpec, options: PbsOptions) -> str:
    """The launcher; none for a script that launches for itself, which is on the first node already."""
    if spec.start is Start.JOB:
        return ""
    binding = f" {options.binding}" if options.binding and spec.start is Start.DEVICE else ""
    return options.mpiexec.format(processes=spec.processes, processes_per_node=spec.processes_per_node) + f"{binding} "


# A port of the job's own, as long as jobs do not share nodes.
_MEETING = f"""\
address=$(head -n 1 "$PBS_NODEFILE")
port=$(({FIRST_PORT} + ${{PBS_JOBID%%[!0-9]*}} % {PORTS}))
"""


def _is_template(text: str) -> bool:
    try:
        return text.format(processes=1, processes_per_node=1) != text
    except (LookupError, ValueError):
        return False


_ID = re.compile(r"[0-9]+(\.[A-Za-z0-9.-]+)?")
_UNKNOWN = "Unknown Job Id"
_NO_HISTORY = "not configured to maintain job history"


class PbsRunner(BatchRunner[PbsOptions]):
    script_file = SCRIPT_FILE
    log_file = LOG_FILE
    silences = ("cannot connect to server", "Connection refused", "End of File", "Communication failure")
    # Where the server is, and Kerberos's ticket for it.
    connection = ("PBS_CONF_FILE", "PBS_DEFAULT", "PBS_SERVER", "KRB5CCNAME")
    cancel_command = "qdel"
    over = (_UNKNOWN, "Job has finished", "Request invalid for state of job", "Delete already in progress")

    script_text = staticmethod(render)
    # Until the server says otherwise.
    _keeps_history = True

    def _send(self, spec: JobSpec, script: Path) -> tuple[Answer, str | None]:
        answer = self._call("qsub", str(script))
        # A site's own words may come beside the id; of several the job's is found by its name.
        ids = {line.strip() for line in answer.out.splitlines() if _ID.fullmatch(line.strip())}
        return answer, ids.pop() if len(ids) == 1 else None

    def _search(self, record: JobRecord) -> str | None:
        found = self._with_history("qselect", "-u", getpass.getuser(), "-N", record.name).output("qselect")
        return min(found.split(), key=lambda id: int(id.partition(".")[0]), default=None)

    def _look(self, records: Mapping[str, JobRecord]) -> Mapping[str, JobStatus]:
        numbers = {id: record.number for id, record in records.items()}
        # -E asks the server once for all of them; without, some versions print the first one only (openpbs issue 2672).
        answer = self._with_history("qstat", "-E", "-f", "-F", "json", *numbers.values())
        try:
            jobs = read_jobs(answer.out)
        except Unreadable as error:
            raise RunnerUnavailable(f"{error}; {answer.err.strip()}") from None
        # It lists what it knows of them, and says so only where that is none.
        if not jobs and _UNKNOWN not in answer.err:
            raise RunnerUnavailable(f"qstat listed no job: {answer.err.strip() or f'exit status {answer.code}'}")
        return {
            id: status_of(
                record.job(),
                read_status(jobs[numbers[id]]) if numbers[id] in jobs else None,
                read_notes(record.directory),
                cancel_asked=record.cancel_asked,
            )
            for id, record in records.items()
        }

    def _with_history(self, *arguments: str) -> Answer:
        """Ask a command that takes -x, for ended jobs too, of which a server may keep no history."""
        program, *rest = arguments
        if self._keeps_history:
            answer = self._call(program, "-x", *rest)
            if _NO_HISTORY not in answer.err:
                return answer
            self._keeps_history = False
        return self._call(program, *rest)


def create(root: Path, cluster: ClusterSpec, options: Mapping[str, Any]) -> SharedRunner:
    chosen = read_value(PbsOptions, dict(options))
    runner = PbsRunner(root, chosen, nodes=cluster.nodes, devices_per_node=cluster.devices_per_node)
    return share(runner, "pbs", root, chosen.poll_s)
