"""Exports a measured plan: as JSON for programs, as the files that run it again by hand, in the words of other
people's training codes, and as the job script of a scheduler. FORMATS has them all; `runners.registry` describes the
schedulers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from meshtune.runners.base import JobSpec, Start
from meshtune.runners.documents import plain
from meshtune.runners.programs.dialects.base import CannotExpress, Files
from meshtune.runners.programs.workloads.knobs import arguments, keys, variables
from meshtune.runners.registry import SIMULATED, WORKLOADS, Scheduler, UnknownBackend, load, load_part, schedulers
from meshtune.runners.schedulers.batch.launch_wrapper import GANG_FILE, render_gang
from meshtune.search_spaces.checks import InvalidValue, Problem, UserError, did_you_mean
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind
from meshtune.search_spaces.knob_values import word
from meshtune.search_spaces.knobs import sized
from meshtune.search_spaces.physics.training import MODEL_UNKNOWN
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.spec import CampaignSpec, job_of, workload_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.results.export_options import ToldKnobs, options_of, tell, with_keys
from meshtune.tuner.results.handover import Handover, MeasuredWith, dtype_of, measured_with, origin_verb, warned
from meshtune.tuner.results.launch import LAUNCH_FILE, launch_script, torchrun
from meshtune.tuner.results.ranking import Ranked, rank
from meshtune.tuner.results.views import ranked_views, view_of
from meshtune.tuner.results.winners import FASTEST_CONFIRMED, FASTEST_ONCE, RECOMMENDED, winners_of

# The program of a user whose campaign does not name it.
PROGRAM = "train.py"
# The number formats of every dialect, and the one of those that are told none.
DTYPES = ("float32", "float16", "bfloat16")
WRITTEN_DTYPE = "bfloat16"
# What a scheduler is asked for, for a real launch: how long it takes is not known here.
_LIMIT_S = 24 * 3600.0


class NothingToExport(UserError, LookupError):
    """The campaign has no such measured trial."""


def choose(campaign: Campaign, trials: Sequence[Trial], selector: str) -> Ranked:
    """The measured plan that a word, a trial's number or its plan's key names. Raises NothingToExport.

    The words: "recommended", "fastest-once", "fastest-confirmed", and the ends of the ranking, "best" and "worst".
    """
    ranking = rank(campaign, trials)
    if not ranking:
        raise NothingToExport(f"campaign {campaign.id} has no measured trial yet")
    winners = winners_of(campaign.spec, ranking)
    if selector == RECOMMENDED:
        return winners.recommended or ranking[0]
    if selector == FASTEST_ONCE and winners.fastest_once is not None:
        return next(entry for entry in ranking if entry.rank == winners.fastest_once.rank)
    if selector == FASTEST_CONFIRMED:
        if winners.fastest_confirmed is None:
            raise NothingToExport(f"campaign {campaign.id} has no plan with a second run")
        return winners.fastest_confirmed
    if selector in ("best", "worst"):
        return ranking[0] if selector == "best" else ranking[-1]
    for entry in ranking:
        if selector in (str(entry.trial.number), str(entry.measured_by.number), entry.trial.plan.key):
            return entry
    known = ", ".join(str(entry.trial.number) for entry in ranking)
    raise NothingToExport(f"campaign {campaign.id} has no measured trial {selector!r}; measured: {known}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    spec: CampaignSpec
    plan: Plan
    # Runs in the folder that the files are written to: the user's launch, or, of a program that meshtune starts itself,
    # what measures the plan.
    job: JobSpec
    # Of the scheduler or the program that the format is for.
    options: Mapping[str, Any] = field(default_factory=dict)
    # The measurement, as plain JSON values, and the program that it is of.
    setting: Mapping[str, Any] = field(default_factory=dict)
    measured_with: MeasuredWith | None = None

    @property
    def cluster(self) -> ClusterSpec:
        """The part of the spec's cluster that the plan takes."""
        return sized(self.spec.cluster, self.plan)

    def told(self, name: str) -> ToldKnobs:
        """The knobs that the program of this format is told, but for those at the value that is omitted: another
        program than the one that was measured, variables alone, and arguments where it was simulated."""
        known, plan, own = self.spec.knobs, self.plan, self.spec.workload.kind == name
        words = tuple(arguments(known, plan)) if own or self.plays(name) else ()
        return ToldKnobs(variables=variables(known, plan), arguments=words, keys=keys(known, plan) if own else {})

    def plays(self, name: str) -> bool:
        """Whether the measured program is a simulation of the format's; by default it is of Megatron-DeepSpeed."""
        workload = self.spec.workload
        return workload.kind == SIMULATED and str(workload.options.get("framework", "megatron")).startswith(name)

    def untold(self, name: str) -> tuple[str, ...]:
        """The knobs that the program of this format is not told, with their values."""
        if self.spec.workload.kind == name:
            return ()
        own = self.plan.knobs
        told = ("env", "size", "argument") if self.plays(name) else ("env", "size")
        named = [knob for knob in self.spec.knobs if knob.way not in told and knob.name in own]
        # At the value that is omitted there is nothing to tell.
        return tuple(f"{one.name} = {word(own[one.name])}" for one in named if one.told(own[one.name]) is not None)

    def workload_options(self, name: str) -> dict[str, Any]:
        """The options, on top of those of the spec's workload where that has the format's name, but for the length of
        its trials; else of its number format."""
        if self.spec.workload.kind == name:
            own = self.spec.workload.options
            return {**{key: own[key] for key in own if key not in ("steps", "warmup_steps")}, **self.options}
        dtype = workload_of(self.spec).dtype
        return {**({"dtype": dtype} if dtype in DTYPES else {}), **self.options}

    def program(self, name: str) -> str:
        """The script, from wherever the files lie."""
        options = self.workload_options(name)
        script = Path(str(options.get("script") or PROGRAM))
        return shlex.quote(str(Path(folder).absolute() / script if (folder := options.get("directory")) else script))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportView:
    """A measured plan in the words of one format. files: by name, to be put into `directory`. command: the line that
    starts it there; null for a format that starts nothing. note: what the files are not, such as a job that could be
    started, of a simulated campaign; else empty. handover: a warning where the format is for another program than
    measured_with; null elsewhere."""

    format: str
    trial: int
    plan_key: str
    simulated: bool
    directory: str
    files: Mapping[str, str]
    command: str | None
    note: str
    measured_with: MeasuredWith
    handover: Handover | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    name: str
    # For people.
    words: str
    # The texts by file name. Raises InvalidValue for options, CannotExpress for a plan without words.
    render: Callable[[Export], Files]
    # The line that starts the plan in the folder of its files; None: the format starts nothing. On several nodes a
    # launcher's line is typed on each of them, with its NODE_RANK and the first one's MASTER_ADDR.
    command: Callable[[Export, Files], str] | None = None
    # The file that a scheduler is given; "" where the format is for none.
    script: str = ""
    # The program that it is for; "" where that is the one that measured the plan, or none.
    program: str = ""


def _dialect(
    name: str,
    words: str,
    renderer: str,
    command: Callable[[Export, Files], str],
    program: str = "",
    dtypes: Sequence[str] = DTYPES,
) -> ExportFormat:
    """The words of another program. renderer: "module:function(model, plan, cluster, options) -> files by name".
    program: by default that of the workload of this name. dtypes: the number formats that it has."""

    def render(export: Export) -> Files:
        if not export.spec.model.known and export.spec.workload.kind != name:
            raise CannotExpress(program or WORKLOADS[name].words, [Problem("model", MODEL_UNKNOWN)])
        measured = dtype_of(export.spec)
        if "dtype" not in export.options and measured in DTYPES and measured not in dtypes:
            fact = f"is {measured}; the format has {' and '.join(dtypes)} alone: --option dtype={dtypes[-1]} changes it"
            raise CannotExpress(program or WORKLOADS[name].words, [Problem("number format", fact)])
        options = tell(name, export.workload_options(name), export.told(name))
        files: Files = load(renderer)(export.spec.model, export.plan, export.cluster, options)
        return with_keys(name, files, export.told(name))

    program = program or WORKLOADS[name].words
    return ExportFormat(name=name, words=words, render=render, command=command, program=program)


def _scheduler(name: str, scheduler: Scheduler) -> ExportFormat:
    """A scheduler's script beside the files of what it starts."""
    command, script = f"{scheduler.send} {scheduler.script_file}", scheduler.script_file

    def render(export: Export) -> Files:
        spec, (job, options) = export.spec, _launched(export, name)
        gang = {GANG_FILE: render_gang(job)} if scheduler.runner else {}
        own = spec.runner.options if spec.runner.kind == name else {}
        # As the runner of that kind does: a script alone does not know what a device is.
        devices = {"gres": "gpu"} if name == "slurm" and spec.cluster.device.kind is not DeviceKind.CPU else {}
        text = load_part(name, "script")(job, {**devices, **own, **options})
        return {**job.files, **gang, script: text}

    return ExportFormat(name=name, words=scheduler.words, render=render, command=lambda *_: command, script=script)


def started_by(export: Export, name: str) -> str:
    """The format of the program that a format starts: its own; of a scheduler as the option `program` says, by default
    the spec's where something was measured. "job": the user's own launch, else what measures. Raises InvalidValue."""
    if name not in FORMATS or not FORMATS[name].script:
        return name
    kind, known = export.spec.workload.kind, ["job", *(one.name for one in FORMATS.values() if one.program)]
    program = export.options.get("program") or (kind if export.setting and kind in known else "job")
    if program not in known:
        raise InvalidValue([Problem("program", f"must be one of {', '.join(known)}, not {program!r}")])
    return str(program)


def _launched(export: Export, name: str) -> tuple[JobSpec, Mapping[str, Any]]:
    """What a scheduler starts, and the options left for it. Only Megatron's script is whole once per device."""
    program = started_by(export, name)
    own = {one.name for one in options_of(program)}
    rest = {key: value for key, value in export.options.items() if key not in own and key != "program"}
    if program == "job":
        return export.job, rest
    inner = replace(export, options={key: value for key, value in export.options.items() if key in own})
    command = FORMATS[program].command
    files, size = FORMATS[program].render(inner), (export.cluster.nodes, export.cluster.devices_per_node)
    assert command is not None  # of a program
    # DeepSpeed's own launcher would go to the other nodes by ssh.
    line = _deepspeed_line(inner, files, torchrun(*size)) if program == "deepspeed" else command(inner, files)
    start = Start.DEVICE if program == "megatron" else Start.NODE
    job = replace(export.job, command=("bash", "-c", line), files=files, env={}, start=start, time_limit_s=_LIMIT_S)
    return job, rest


def _job_line(export: Export, files: Files) -> str:
    """The built-in trainer starts its own ranks on one machine, and takes srun's; others read torchrun's variables."""
    if LAUNCH_FILE in files:
        return f"bash {LAUNCH_FILE}"
    job = export.job
    trainer = "meshtune.runners.trainer" in job.command
    words = ("python", *job.command[1:]) if trainer else job.command
    command = _environment(job.env) + shlex.join(words)
    # A script that is started once per node has a launcher of its own, which is told NODE_RANK and MASTER_ADDR.
    if job.processes == 1 or job.start is Start.NODE or (trainer and job.nodes == 1):
        return command
    if trainer:
        return f"srun --nodes={job.nodes} --ntasks-per-node={job.processes_per_node} {command}"
    return f"{torchrun(job.nodes, job.processes_per_node)} --no-python {command}"


def _job_files(export: Export) -> Files:
    is_users = export.spec.workload.kind == "command" and export.spec.runner.kind != SIMULATED
    return {**export.job.files, **({LAUNCH_FILE: launch_script(export.job)} if is_users else {})}


def _deepspeed_line(export: Export, files: Files, start: str = "") -> str:
    spec, own = export.spec, export.workload_options("deepspeed")
    words = "--deepspeed_config ds_config.json"
    if spec.workload.kind == "deepspeed":
        words = load("meshtune.runners.programs.deepspeed.options:script_words")(
            spec.model, export.plan, spec.seed, own
        )
    size = f"--num_nodes {export.cluster.nodes} --num_gpus {export.cluster.devices_per_node}"
    # As in trials, the script learns its rank from LOCAL_RANK, and need not know the argument.
    start = start or f"deepspeed {size} --no_local_rank"
    given = export.told("deepspeed")
    words = " ".join(filter(None, [words, shlex.join(given.arguments)]))
    program = f"--module {shlex.quote(str(own['module']))}" if own.get("module") else export.program("deepspeed")
    on_cpu = {"DS_ACCELERATOR": "cpu"} if spec.cluster.device.kind is DeviceKind.CPU else {}
    return f"{_environment({**on_cpu, **given.variables})}{start} {program} {words}"


def _torchtitan_line(export: Export, files: Files) -> str:
    cluster = export.cluster
    flags = "--job.config_file torchtitan.toml" if "torchtitan.toml" in files else files["torchtitan.args"]
    start = f"{torchrun(cluster.nodes, cluster.devices_per_node)} -m torchtitan.train {' '.join(flags.split())}"
    return _environment(export.told("torchtitan").variables) + start


def _accelerate_line(export: Export, files: Files) -> str:
    peers = "--machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port 29500 "
    several = peers if export.cluster.nodes > 1 else ""
    # accelerate/state.py: `use_cpu` of the file does not reach processes that torch's launcher starts.
    on_cpu = {"ACCELERATE_USE_CPU": "true"} if export.spec.cluster.device.kind is DeviceKind.CPU else {}
    environment = _environment({**on_cpu, **export.told("accelerate").variables})
    return f"{environment}accelerate launch --config_file accelerate.yaml {several}{export.program('accelerate')}"


def _environment(variables: Mapping[str, str]) -> str:
    """What stands before a command that gets these variables."""
    return f"{shlex.join(['env', *(f'{name}={value}' for name, value in variables.items())])} " if variables else ""


_FORMATS = (
    ExportFormat(
        name="json",
        words="the plan with its measurement, for programs",
        render=lambda export: {"setting.json": json.dumps(export.setting, indent=1) + "\n"},
    ),
    ExportFormat(
        name="job",
        words="the user's launch with its values; of a program that meshtune starts, the job that measured it",
        render=_job_files,
        command=_job_line,
    ),
    _dialect(
        "megatron",
        "arguments and launch script of Megatron-LM or Megatron-DeepSpeed",
        "meshtune.runners.programs.megatron.workload:render",
        lambda *_: "bash launch.sh",
    ),
    _dialect("deepspeed", "a ds_config.json", "meshtune.runners.programs.deepspeed.options:render", _deepspeed_line),
    _dialect(
        "torchtitan",
        "torchtitan's flags, or its TOML file",
        "meshtune.runners.programs.torchtitan.workload:render",
        _torchtitan_line,
        dtypes=("float32", "bfloat16"),
    ),
    _dialect(
        "accelerate",
        "the YAML file of accelerate launch",
        "meshtune.runners.programs.accelerate.special:render",
        _accelerate_line,
        program="Accelerate",
    ),
)
_SCRIPTS = {name: _scheduler(name, scheduler) for name, scheduler in schedulers().items() if scheduler.script}
# By name. A runner that takes a script has the name of its format; another package's takes none of those above.
FORMATS: Mapping[str, ExportFormat] = {
    **(own := {format.name: format for format in _FORMATS}),
    **{name: format for name, format in _SCRIPTS.items() if name not in own},
}


def export_of(campaign: Campaign, entry: Ranked, directory: Path, options: Mapping[str, Any] | None = None) -> Export:
    """A measured plan, of a job that would run in `directory`. options: of what the format is for."""
    spec, trial = campaign.spec, entry.trial
    job = job_of(spec, trial.plan, trial.last.job_name, directory.resolve(), real=True)
    return Export(
        spec=spec,
        plan=trial.plan,
        job=replace(job, time_limit_s=_LIMIT_S) if spec.workload.kind == "command" else job,
        options=options or {},
        setting={"campaign": campaign.id, **plain(ranked_views(campaign, [entry])[0])},
        measured_with=measured_with(spec, entry.measurement),
    )


def note_of(export: Export, name: str) -> str:
    """What people would take the files for who do not know; empty where they are what they seem."""
    if export.spec.runner.kind != SIMULATED:
        if started_by(export, name) != "job":
            return ""
        if (workload := export.spec.workload).kind != "command":
            return "This is what measured the plan: it trains nothing. The formats of training programs train."
        steps = "{steps}" in str([workload.options.get(key) for key in ("command", "env", "files")])
        told = "write your own there, and {steps} into workload.trial_arguments"
        return f"The command has the number of a trial's steps, in place of the launch's: {told}." if steps else ""
    if name != "job":
        return ""
    return (
        "Simulated: no device ran this plan, and nothing here can be started. The file describes the job to the "
        "simulated runner; the formats of training programs start it for real."
    )


def handover_of(export: Export, name: str) -> Handover | None:
    """What there is to say of a plan in this format; None where the format is for the program that measured it, or
    for none."""
    name = started_by(export, name)
    format, measured = FORMATS.get(name), export.measured_with
    if format is None or not format.program or measured is None or export.spec.workload.kind == name:
        return None
    own, dtype = dtype_of(export.spec), str(export.workload_options(name).get("dtype") or WRITTEN_DTYPE)
    formats = f"number format {own} there, {dtype} here"
    if own is None:
        formats = f"{dtype} here, as the spec does not say which number format it had there (workload.dtype)"
    untold = export.untold(name)
    differs = [formats] if own != dtype else []
    differs += [f"knobs there, not told here: {', '.join(untold)}"] if untold else []
    known = f" Known to differ: {'; '.join(differs)}." if differs else ""
    return Handover(
        program=format.program,
        differs=tuple(differs),
        untold=untold,
        warning=f"{origin_verb(measured)} {measured.words}, not measured with {format.program}, which has other "
        "kernels, buffers and overlap of communication. There the speed, the memory and the order of the plans may be "
        f"different.{known}".rstrip("."),
        offer=f"To confirm it with runs of {format.program}, describe how that is started in SPEC.yaml (workload "
        f"{name if name in WORKLOADS else 'command'}) and run",
        confirm=f"meshtune confirm {export.setting['campaign']} --trial {export.setting['trial']} --with SPEC.yaml",
    )


def export_files(export: Export, name: str = "") -> Files:
    """The texts of a plan by file name. name: of a format; by default json and job together.

    Raises UnknownBackend for a format that is none, NothingToExport for a simulated job's script, CannotExpress for a
    plan that a training code has no words for.
    """
    if not name:
        return {**FORMATS["json"].render(export), **FORMATS["job"].render(export)}
    if name not in FORMATS:
        raise UnknownBackend(f"no export format is called {name!r}; {did_you_mean(name, FORMATS)}")
    if FORMATS[name].script and export.spec.runner.kind == SIMULATED and started_by(export, name) == "job":
        raise NothingToExport(
            f"campaign {export.setting['campaign']} (simulated) has no job that a scheduler could run"
        )
    files, handover = FORMATS[name].render(export), handover_of(export, name)
    return files if handover is None else {file: warned(file, text, handover) for file, text in files.items()}


def exported(export: Export, name: str = "") -> ExportView:
    """A measured plan with the files of `export_files`. Raises as that."""
    assert export.measured_with is not None
    files, note = export_files(export, name), note_of(export, name or "job")
    simulated = export.spec.runner.kind == SIMULATED
    command = FORMATS[name].command if name else None
    return view_of(
        ExportView,
        export,
        format=name,
        trial=export.setting["trial"],
        plan_key=export.plan.key,
        simulated=simulated,
        directory=str(export.job.directory),
        files=files,
        command=None if command is None or (note and simulated) else command(export, files),
        note=note,
        handover=handover_of(export, name),
    )
