"""The job script of a trial under Slurm, as pure text: what `sbatch` is given, and what `--dry-run` shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from typing import Annotated, Any, ClassVar

from meshtune.runners.base import JobSpec, Start
from meshtune.runners.documents import read_value
from meshtune.runners.processes.gang import FIRST_PORT, PORTS
from meshtune.runners.schedulers.batch.script import (
    BACKSTOP_S,
    BatchOptions,
    Line,
    SubmitHost,
    render_body,
    render_launch,
    render_rank,
    submit_host,
)
from meshtune.search_spaces.checks import Checks, Count, Positive, Text, Whole
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind

SCRIPT_FILE = "slurm.sh"
LOG_FILE = "slurm.log"
_Word = Annotated[str, Text(r"^[A-Za-z0-9_.,:/@+&|*()\[\]=-]*$", "be one word of Slurm's")]
_GRES = re.compile(r"[A-Za-z0-9_.:-]*")
_NAMED = ("partition", "account", "qos", "constraint", "reservation", "wckey")
_OF_SRUN = ("mpi", "cpu_bind", "gpu_bind")


class Mode(StrEnum):
    """One Slurm job per trial; trials as steps inside the allocation that we run in; or as steps inside allocations
    that we submit ourselves, one after the other."""

    JOB = "job"
    ALLOCATION = "allocation"
    PILOT = "pilot"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions(BatchOptions):
    """What a site or a user adds to every job."""

    directive = "#SBATCH -"
    form: ClassVar[Mapping[str, str]] = {
        **{name: f"as sbatch's --{name}" for name in _NAMED},
        "gres": "name of one device, such as gpu:h100; a job asks for as many per node as the plan uses",
        "cpus_per_device": "CPUs of each device's process",
        "memory_mib_per_device": "host memory asked for with each device, in MiB",
        "container_image": "pyxis: the image",
        **BatchOptions.form,
    }

    # One job per trial; trials as steps of the allocation that the campaign runs in; or of allocations that it submits.
    mode: Mode = Mode.JOB
    # As sbatch's options of these names.
    partition: _Word = ""
    account: _Word = ""
    qos: _Word = ""
    constraint: _Word = ""
    reservation: _Word = ""
    wckey: _Word = ""
    # Name of one device, such as `gpu:h100`; a job asks for as many per node as its plan uses. "" asks for none; by
    # default `gpu` where the cluster's devices are CUDA.
    gres: str | None = None
    # The cluster of several under one accounting, as -M of Slurm's commands; by default the one of this machine.
    cluster: _Word = ""
    # As srun's option of this name.
    mpi: _Word = ""
    # As srun's options of these names, where each device has a process. One process for a node, such as torchrun, is
    # bound to nothing: its own would all share what is meant for the first.
    cpu_bind: _Word = ""
    gpu_bind: _Word = ""
    # pyxis: the image, and SRC:DST pairs. The job's folder is mounted too, where the ranks start; `python` is a path in
    # the container.
    container_image: Line = ""
    container_mounts: tuple[Line, ...] = ()
    # Further arguments of srun alone, each a word with its value, taken literally: `--network=job_vni`; of the same
    # option the last counts.
    srun_arguments: tuple[Line, ...] = ()
    # Nodes to keep away from.
    exclude: tuple[_Word, ...] = ()
    # CPUs of each device's process. By default one where no devices are asked for; else the CPUs of the smallest
    # fitting node with such devices, divided by its devices (`sinfo`; where Slurm names no devices, by those of the
    # cluster's spec). A script that is only shown leaves them to the site. `OMP_NUM_THREADS` is 1 unless `setup`
    # exports another number.
    cpus_per_device: Whole | None = None
    # Host memory that a job asks for with each device, in MiB (`--mem`). By default, of devices that are asked for
    # where Slurm shares out memory too (`SelectTypeParameters` with `MEMORY`), 95 % of the device's share of that node;
    # 0 leaves it to Slurm's default, as does an `--mem...` of your own in `extra_lines`.
    memory_mib_per_device: Count | None = None
    # With `mode: pilot`: how long each allocation may last.
    pilot_s: Positive = 14400.0
    # With `mode: pilot`: nodes of each allocation, by default the cluster's; more let trials run side by side
    # (`parallel`).
    pilot_nodes: Whole | None = None
    # With `mode: pilot`: how long an allocation waits for another trial before it is given back.
    pilot_idle_s: Positive = 120.0

    def _check(self, checks: Checks) -> None:
        for word in self.srun_arguments:
            problem = f"must each be an option with its value, such as '--network=job_vni', not {word!r}"
            checks.require(word.startswith("-"), "srun_arguments", problem)
        if self.container_image:
            checks.require(self.mode is Mode.JOB, "container_image", f"needs mode: {Mode.JOB}; else use prefix")
        else:
            checks.require(not self.container_mounts, "container_mounts", "needs container_image")
        fit = self.gres is None or bool(_GRES.fullmatch(self.gres))
        checks.require(fit, "gres", f"must be as 'gpu' or 'gpu:h100', not {self.gres!r}")
        BatchOptions._check(self, checks)

    @property
    def cluster_arguments(self) -> tuple[str, ...]:
        """Of every command of Slurm's."""
        return (f"--clusters={self.cluster}",) if self.cluster else ()

    @property
    def leaves_cpus_to_site(self) -> bool:
        return bool(self.gres) and self.cpus_per_device is None


def options_for(cluster: ClusterSpec, options: Mapping[str, Any]) -> SlurmOptions:
    """The options of a campaign, with what follows from its cluster. Raises InvalidValue."""
    chosen = read_value(SlurmOptions, dict(options))
    if chosen.gres is None:
        return replace(chosen, gres="" if cluster.device.kind is DeviceKind.CPU else "gpu")
    return chosen


def render_script(spec: JobSpec, options: Mapping[str, Any]) -> str:
    """As it would be sent from here. Without `gres` none is asked for. Raises InvalidValue."""
    return render(spec, read_value(SlurmOptions, dict(options)), submit_host())


def render(spec: JobSpec, options: SlurmOptions, host: SubmitHost) -> str:
    """The job's directory must be absolute."""
    return (
        options.shebang
        + "".join(f"#SBATCH {option}\n" for option in _head(spec, options))
        + "".join(f"{line}\n" for line in options.extra_lines)
        + f"cd {_quoted(spec.directory)} || exit 1\n"
        + render_body("$SLURM_JOB_ID", host, _quoted(spec.directory / SCRIPT_FILE), options, spec)
        + _MEETING
        + render_launch(_launch(spec, options) + render_rank(_quoted(host.python), spec, options), options)
    )


def minutes(spec: JobSpec) -> int:
    return ceil((spec.time_limit_s + BACKSTOP_S) / 60)


def _head(spec: JobSpec, options: SlurmOptions) -> list[str]:
    size = _size(spec, options)
    named = [f"--{name}={getattr(options, name)}" for name in _NAMED if getattr(options, name)]
    keep_away = ",".join(dict.fromkeys((*options.exclude, *spec.avoid)))
    whose = ",".join(f"{name}={value}" for name, value in spec.labels.items())
    return [
        f"--job-name={spec.name}",
        *([f"--comment={whose}"] if whose else []),
        *size,
        *_memory(spec, options),
        f"--time={minutes(spec)}",
        "--no-requeue",
        # Sent by hand, the script takes nothing along; the runner sends it with an environment that is clean.
        "--export=NIL",
        f"--chdir={_quoted(spec.directory)}",
        # '%' starts a pattern in a file's name.
        f"--output={_quoted(spec.directory / LOG_FILE).replace('%', '%%')}",
        *named,
        *options.cluster_arguments,
        *([f"--exclude={keep_away}"] if keep_away else []),
    ]


def _size(spec: JobSpec, options: SlurmOptions) -> list[str]:
    """A script that launches itself gets a task per device too, for its own srun."""
    tasks = 1 if spec.start is Start.NODE else spec.devices_per_node
    cpus = []
    if not options.leaves_cpus_to_site:
        cpus = [f"--cpus-per-task={(options.cpus_per_device or 1) * spec.devices_per_node // tasks}"]
    devices = [f"--gres={options.gres}:{spec.devices_per_node}"] if options.gres else []
    return [f"--nodes={spec.nodes}", f"--ntasks-per-node={tasks}", *cpus, *devices]


def _memory(spec: JobSpec, options: SlurmOptions) -> list[str]:
    """Of the whole job; its srun takes the same."""
    wanted = (options.memory_mib_per_device or 0) * spec.devices_per_node
    own = any(line.startswith("#SBATCH --mem") for line in options.extra_lines)
    return [f"--mem={wanted}M"] if wanted and not own else []


def _launch(spec: JobSpec, options: SlurmOptions) -> str:
    """--wait=0: a rank may end well before the others. srun does not take --cpus-per-task from the job since 22.05."""
    if spec.start is Start.JOB:
        return ""
    words = [*_size(spec, options), f"--ntasks={spec.processes}"]
    if options.leaves_cpus_to_site:
        words.append(f"--cpus-per-task=$((SLURM_CPUS_ON_NODE / {spec.processes_per_node}))")
    own = [_quoted(word) if _SPECIAL.search(word) else word for word in step_arguments(spec, options)]
    return f"srun {' '.join([*words, '--export=ALL', '--kill-on-bad-exit=1', '--wait=0', *own])} "


_SPECIAL = re.compile(r"[^A-Za-z0-9_.,:/@%+=-]")


def step_arguments(spec: JobSpec, options: SlurmOptions) -> list[str]:
    """What the options add to an srun: binding, the container, and what is taken as it stands."""
    of_srun = _OF_SRUN if spec.start is Start.DEVICE else ("mpi",)
    words = [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in of_srun if getattr(options, name)]
    if options.container_image:
        # pyxis starts ranks in the image's own folder.
        mounts = ",".join([*options.container_mounts, f"{spec.directory}:{spec.directory}"])
        words += [f"--container-image={options.container_image}", f"--container-mounts={mounts}"]
        words.append(f"--container-workdir={spec.directory}")
    return [*words, *options.srun_arguments]


# A node's address is what Slurm itself reaches it by; its name may not resolve.
_MEETING = f"""\
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(timeout 20 scontrol show node "$first" --oneliner | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')
export MASTER_ADDR="${{address:-$first}}" MASTER_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))
"""


def _quoted(value: object) -> str:
    """In double quotes, which bash and the reader of #SBATCH lines take alike."""
    return '"' + re.sub(r'(["\\$`])', r"\\\1", str(value)) + '"'
