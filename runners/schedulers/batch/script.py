"""The parts that job scripts of all batch schedulers share. Of two copies of a job (sent again while a request was
under way), the one that starts first claims the job's folder, and the other ends at once."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from meshtune.runners.base import JobSpec, Start
from meshtune.runners.job_files import UnfitFile, read_document
from meshtune.runners.processes.gang import minimal_environment
from meshtune.runners.processes.shell_modules import CALLS_MODULE, MODULE_FILES
from meshtune.runners.untrusted_text import read_words
from meshtune.search_spaces.checks import Amount, Checks, Closed, Positive, Text

LAUNCH_WRAPPER = "-m meshtune.runners.schedulers.batch.launch_wrapper"
# What the scheduler's own limit leaves for the nodes' start, setup lines and imports: the ranks keep the job's limit.
BACKSTOP_S = 120.0
# In the job's folder: the scheduler's number of the copy that ran, written by that copy before anything else.
CLAIM_FILE = "batch-id"
# Written there in its place when the job is cancelled before any copy has begun: none does from then on.
CANCELLED = "cancelled"
# How a copy ends that came second, or a job that the scheduler started once more.
CLAIMED_CODE = 75
# Left in the job's folder by a job that was started once more.
REQUEUED_FILE = "requeued"
# Left there by setup lines that failed: the words for it.
SETUP_FILE = "setup-failed"
# What belongs to the node, not to whoever submits: the scheduler's word there counts.
_OF_THE_NODE = (
    *("TMPDIR", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"),
)


# Burst buffers: Cray's DataWarp (#DW), and Slurm's own (#BB, and #BB_LUA of the plugin in Lua).
_BURST_BUFFER = re.compile(r"#(?:BB\w*|DW) \S.*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
Line = Annotated[str, Text(r"^[^\n]*$", "be single lines")]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions(Closed):
    """The launch template: what a site or a user adds to every job, whatever the scheduler."""

    # How a script's line for the scheduler begins: "#SBATCH -".
    directive: ClassVar[str]
    # What each option that makes a difference to a script means, for people, in the order of a form.
    form: ClassVar[Mapping[str, str]] = {
        "setup": "shell lines before the ranks start: [module load cuda]",
        "environment": "variables of the ranks: {NCCL_DEBUG: INFO}",
        "prefix": "beginning of every rank's command line, such as apptainer exec --nv $SIF",
        "python": "path of the interpreter, with meshtune, that starts the ranks; by default this service's own",
        "extra_lines": "further lines for the scheduler, as they stand in a script",
        "login_shell": "true for a script that runs in a login shell",
    }

    # Further lines of the script for the scheduler, each from `#SBATCH -` or `#PBS -` on, and those for burst buffers:
    # `#DW jobdw capacity=10GB access_mode=striped type=scratch`, `#BB ...`.
    extra_lines: tuple[str, ...] = ()
    # Shell lines before the ranks start, such as `module load cuda`; what they export reaches the ranks. A line that
    # fails fails the job.
    setup: tuple[Line, ...] = ()
    # Shell lines after the ranks have ended, or the setup has failed; they see the setup's variables. One that fails
    # changes nothing. They run too where the scheduler tells the job to end, for as long as it waits before it kills;
    # not so in a step of an allocation, which is killed at once.
    teardown: tuple[Line, ...] = ()
    # Variables of the ranks, exported after the setup lines and taken literally; a workload's own `env` wins.
    environment: Mapping[str, str] = field(default_factory=dict)
    # Beginning of every rank's command line, in the shell's words: `apptainer exec --nv $SIF`, `numactl -l`. Scripts
    # that launch by themselves (`start: job`) are started without.
    prefix: Line = ""
    # The interpreter, with meshtune, that starts the ranks; by default the one that writes the script.
    python: Annotated[str, Text(r"(?s)^(/.*)?$", "be an absolute path")] = ""
    # Time limit of a command of the scheduler.
    call_limit_s: Positive = 30.0
    # Shortest time between two looks at the jobs; of several campaigns of one service the least counts.
    poll_s: Amount = 5.0
    # The script runs in a login shell, which reads the profiles of site and user. Without, `module` and `ml` are made
    # commands where the setup or the job's own files call them.
    login_shell: bool = False

    @property
    def shebang(self) -> str:
        return "#!/bin/bash -l\n" if self.login_shell else "#!/bin/bash\n"

    def _check(self, checks: Checks) -> None:
        for line in self.extra_lines:
            fit = (line.startswith(self.directive) or bool(_BURST_BUFFER.fullmatch(line))) and "\n" not in line
            problem = f"must be lines that start with {self.directive!r}, '#BB' or '#DW', not {line!r}"
            checks.require(fit, "extra_lines", problem)
        for variable in self.environment:
            problem = f"{variable!r} is no name of a variable"
            checks.require(bool(_VARIABLE.fullmatch(variable)), "environment", problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitHost:
    """What a job script takes from the machine it is written on."""

    # The interpreter that starts the ranks, on the shared file system.
    python: str
    environment: Mapping[str, str]
    # Where modules are, for jobs that find no file which says so.
    modules: Mapping[str, str] = field(default_factory=dict)


def submit_host() -> SubmitHost:
    environment = {name: value for name, value in minimal_environment().items() if name not in _OF_THE_NODE}
    modules = {name: os.environ[name] for name in _OF_MODULES if os.environ.get(name)}
    return SubmitHost(python=sys.executable, environment=environment, modules=modules)


def render_body(number: str, host: SubmitHost, script: str, options: BatchOptions, spec: JobSpec | None = None) -> str:
    """Lines that claim the folder, set the environment and run the setup. number: shell expression of the job's id.
    script: shell word of the path where these lines are. spec: the job, whose files may call `module`."""
    complaint = f"another copy of this job has claimed $PWD ({CLAIM_FILE})"
    return (
        f'( set -C; echo "{number}" > {CLAIM_FILE} ) 2>/dev/null || '
        f'{{ echo "{complaint}" >&2; [ "$(cat {CLAIM_FILE})" != "{number}" ] || touch {REQUEUED_FILE}; '
        f"exit {CLAIMED_CODE}; }}\n" + _exports(host.environment) + render_preparation(script, options, host, spec)
    )


def render_preparation(script: str, options: BatchOptions, host: SubmitHost, spec: JobSpec | None = None) -> str:
    """The teardown as a function, the setup, and the variables. script, spec: as for `render_body`."""
    teardown = ""
    if options.teardown:
        # A subshell, so that `exit`, `cd` or `set -e` there end the teardown alone; without the shell's traps.
        teardown = f"{_TEARDOWN}() (\ntrap - ERR EXIT; trap '' TERM\n{_joined(options.teardown)})\n"
    setup = render_setup(script, options.setup, options.teardown)
    return _modules(options, host, spec) + teardown + setup + _exports(options.environment)


def _modules(options: BatchOptions, host: SubmitHost, spec: JobSpec | None) -> str:
    """Lines that make `module` and `ml` functions, for the ranks too, where they are called and the shell has none."""
    texts = (*options.setup, *options.teardown, *((*spec.command, *spec.files.values()) if spec else ()))
    if options.login_shell or not any(map(CALLS_MODULE.search, texts)):
        return ""
    return f"if ! declare -F module >/dev/null; then\n{_exports(host.modules)}{_FIND_MODULES}fi\n"


_OF_MODULES = ("LMOD_PKG", "MODULESHOME", "MODULEPATH")
# Lmod's own file leaves MODULEPATH to the profile's; where it says nothing no module is found.
_AND = " \\\n        "
_FIND_MODULES = f"""\
    for file in {_AND.join(f'"{file}"' for file in MODULE_FILES)}; do
        [ ! -r "$file" ] || . "$file"
        [ -z "$MODULEPATH" ] || ! declare -F module >/dev/null || break
    done
"""


def render_rank(python: str, spec: JobSpec, options: BatchOptions) -> str:
    """What a launcher starts for each rank, in the shell's words. python: the interpreter, likewise."""
    python = shlex.quote(options.python) if options.python else python
    prefix = f" {options.prefix}" if options.prefix and spec.start is not Start.JOB else ""
    return f"{python} {LAUNCH_WRAPPER}{prefix}"


def render_launch(command: str, options: BatchOptions) -> str:
    """The last lines of a script: the command that starts the ranks, in the shell's words, and then the teardown."""
    if not options.teardown:
        return f"exec {command}\n"
    # Told to end, the shell waits for the launcher, which is told so too, and goes on.
    return f"trap : TERM\n{command}\nlaunched=$?\n{_TEARDOWN}\nexit $launched\n"


_TEARDOWN = "job_teardown"


def _exports(variables: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def render_setup(script: str, setup: Sequence[str], teardown: Sequence[str] = ()) -> str:
    """The setup lines, of which each must succeed; the shell's options are as before after them.

    Not `set -eu`: scripts that sites have users source (conda, Lmod, oneAPI's setvars.sh) use variables that are not
    set and commands that fail. What such a script does inside is its own; the line that calls it must succeed. Nor is a
    SIGPIPE a failure, as of `| head`. Tcl modules before 4 return 0 whatever happens: they are heard where standard
    error is a file."""
    if not setup:
        return ""
    begins = _SETUP_BEGINS.replace("SCRIPT", script)
    if teardown:
        begins = begins.replace("    exit 1\n", f"    {_TEARDOWN}\n    exit 1\n")
    return begins + _joined(setup) + _SETUP_ENDS


# In a sourced script BASH_SOURCE is longer. The first setup line is three lines after `setup_at`.
_SETUP_BEGINS = f"""\
setup_failed() {{
    trap - ERR EXIT
    echo "$1" | tee "$setup_in/{SETUP_FILE}" >&2
    exit 1
}}
setup_line() {{
    echo "setup line $(($1 - setup_at - 2)) ($(sed -n "$1p" SCRIPT 2>/dev/null)) returned $2"
}}
setup_in=$PWD setup_options=$(set +o) setup_at=$LINENO; set -o pipefail
trap 'setup_code=$?; [ $setup_code = 141 ] || [ ${{#BASH_SOURCE[@]}} -gt 1 ] || \
setup_failed "$(setup_line $LINENO $setup_code)"' ERR
trap 'setup_failed "the setup ended the script with status $?"' EXIT
"""
# Of modules before 4: "ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for 'nosuch'".
_SETUP_ENDS = """\
trap - ERR EXIT; eval "$setup_options"
setup_said='^ModuleCmd_[A-Za-z]+[.]c[(][0-9]+[)]:ERROR:'
if [ -f /dev/stderr ] && setup_said=$(grep -m 1 -E "$setup_said" /dev/stderr); then
    setup_failed "setup: $setup_said"
fi
"""


def read_setup_failure(directory: Path) -> str:
    """Which setup line of a job failed, and how; empty where none did, as far as can be read."""
    with suppress(OSError, UnfitFile):
        return read_document(directory / SETUP_FILE, _MAX_SETUP_BYTES).strip()
    return ""


_MAX_SETUP_BYTES = 10_000


def directives(script: str, keyword: str) -> list[str]:
    """The words after `#KEYWORD` in the head of a script, up to its first command. Raises UnreadableText."""
    words: list[str] = []
    for line in script.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith(f"#{keyword} "):
            words += read_words(line[len(keyword) + 2 :], comments=True)
    return words


def duration_s(text: str) -> int | None:
    """Of a time such as "1-00:30:00", "1-12", "30:00", "0:09", and "30" minutes; None for UNLIMITED and the like.
    sbatch(1), --time."""
    found = re.fullmatch(r"(?:(\d{1,4})-)?(\d{1,4}(?::\d{1,2}){0,2})(?:\.\d+)?", text)
    if found is None:
        return None
    parts = [int(part) for part in found[2].split(":")]
    hours, minutes, seconds = (*([] if found[1] or len(parts) == 3 else [0]), *parts, 0, 0)[:3]
    return ((int(found[1] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
