"""The job script for `flux batch`, and the options that shape it. A job is a Flux instance of its own on the nodes that
it gets; `flux run` starts the ranks in it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from meshtune.runners.base import JobSpec, Start
from meshtune.runners.documents import read_value
from meshtune.runners.processes.gang import FIRST_PORT, PORTS
from meshtune.runners.schedulers.batch.script import (
    BACKSTOP_S,
    BatchOptions,
    SubmitHost,
    render_body,
    render_launch,
    render_rank,
    submit_host,
)
from meshtune.search_spaces.checks import Checks

SCRIPT_FILE = "flux.sh"
LOG_FILE = "flux.log"
# What a job takes along of the environment that it is sent from; the script sets the rest.
_CARRIED = ("PATH", "HOME")


@dataclass(frozen=True, slots=True, kw_only=True)
class FluxOptions(BatchOptions):
    """What a site or a user adds to every job."""

    directive = "#flux: -"

    # As for `flux batch --queue` and `--bank`.
    queue: str = ""
    bank: str = ""
    # Which nodes, in the words of RFC 35: "a100 and not rank:0".
    requires: str = ""
    # Cores for each device of a job that shares its nodes; None: a job has its nodes for itself.
    cores_per_device: int | None = None
    # GPUs that each device of a job on shared nodes is.
    gpus_per_device: int = 0
    # As everywhere; here by default.
    login_shell: bool = True

    def __post_init__(self) -> None:
        checks = Checks()
        for name in ("queue", "bank"):
            text = getattr(self, name)
            checks.require(len(text.split()) <= 1 and text == text.strip(), name, f"must be one word, not {text!r}")
        checks.require("\n" not in self.requires, "requires", f"must be one line, not {self.requires!r}")
        checks.whole(1, cores_per_device=1 if self.cores_per_device is None else self.cores_per_device)
        checks.whole(0, gpus_per_device=self.gpus_per_device)
        needless = bool(self.gpus_per_device) and self.cores_per_device is None
        checks.require(not needless, "gpus_per_device", "goes with cores_per_device: whole nodes have all their GPUs")
        self._check(checks)
        checks.done()


def render_script(spec: JobSpec, options: Mapping[str, Any]) -> str:
    """The script of a job as it would be sent from here. Raises InvalidValue."""
    return render(spec, read_value(FluxOptions, dict(options)), submit_host())


def render(spec: JobSpec, options: FluxOptions, host: SubmitHost) -> str:
    """The script of a job; its directory must be absolute."""
    return (
        options.shebang
        + "".join(f"#flux: {directive}\n" for directive in _directives(spec, options))
        + "".join(f"{line}\n" for line in options.extra_lines)
        + f"cd {shlex.quote(str(spec.directory))} || exit 1\n"
        # As Flux tells it to the submitter: in the locale C the first letter is ASCII.
        + "id=${FLUX_ENCLOSING_ID/#ƒ/f}\n"
        + render_body("$id", host, shlex.quote(str(spec.directory / SCRIPT_FILE)), options, spec)
        + _MEETING
        + render_launch(_start(spec, options, host), options)
    )


def _directives(spec: JobSpec, options: FluxOptions) -> list[str]:
    size = [f"--nodes={spec.nodes}", "--exclusive"]
    if options.cores_per_device is not None:
        size = [f"--nodes={spec.nodes}", f"--nslots={spec.devices}", f"--cores-per-slot={options.cores_per_device}"]
        size += [f"--gpus-per-slot={options.gpus_per_device}"] if options.gpus_per_device else []
    required = [f"({options.requires})"] if options.requires else []
    required += [f"not host:{','.join(spec.avoid)}"] if spec.avoid else []
    return [
        f"--job-name={spec.name}",
        *size,
        f"--time-limit={ceil(spec.time_limit_s + BACKSTOP_S)}s",
        *("--env=-*", *(f"--env={name}" for name in _CARRIED)),
        shlex.quote(f"--cwd={spec.directory}"),
        # '{{' starts a pattern in a file's name.
        shlex.quote(f"--output={spec.directory / LOG_FILE}"),
        *([f"--queue={options.queue}"] if options.queue else []),
        *([f"--bank={options.bank}"] if options.bank else []),
        *([shlex.quote(f"--requires={' and '.join(required)}")] if required else []),
    ]


# A port by the millisecond in which the job was sent (RFC 19). The script runs on the job's first node; on one node the
# name of the host need not resolve.
_MEETING = f"""\
[ "$(flux getattr size)" = 1 ] && address=127.0.0.1 || address=$(hostname)
number=$(flux job id --to=dec "$id")
export MASTER_ADDR="$address" MASTER_PORT=$(({FIRST_PORT} + number / 16777216 % {PORTS}))
"""


def _start(spec: JobSpec, options: FluxOptions, host: SubmitHost) -> str:
    """The launcher of the ranks; none for a script that launches for itself, which is on the first node already."""
    wrapper = f"{render_rank(shlex.quote(host.python), spec, options)} </dev/null"
    if spec.start is Start.JOB:
        return f"env MESHTUNE_RANK=0 {wrapper}"
    size = f"--nodes={spec.nodes} --exclusive --tasks-per-node={spec.processes_per_node}"
    # A rank may end well long before the others.
    return f"flux run {size} -o exit-timeout=none sh -c {shlex.quote(_RANK)} sh {wrapper}"


# Flux's exit-on-error looks at the first task that exits, which may have ended well: a rank that fails by itself ends
# the others by an exception. Of a job that is cancelled all get SIGTERM, which the wrapper obeys, and SIGHUP after it.
_RANK = (
    'trap "" HUP; trap told=1 TERM INT; '
    'MESHTUNE_RANK=$FLUX_TASK_RANK MESHTUNE_LOCAL_RANK=$FLUX_TASK_LOCAL_ID "$@"; code=$?; '
    '[ $code = 0 ] || [ -n "$told" ] || flux job raise --severity=0 --type=exec "$FLUX_JOB_ID" "a rank failed"; '
    "exit $code"
)
