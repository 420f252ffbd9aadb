"""The seam to the training code: how a Plan becomes a job, and what its end means."""

from __future__ import annotations

import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from meshtune.runners.base import Cause, JobSpec, JobState, JobStatus, RunnerUnavailable
from meshtune.runners.documents import read_value
from meshtune.runners.job_files import read_document, storage_fault
from meshtune.runners.json_files import read_versioned, render_versioned
from meshtune.runners.log_lines import read_tail
from meshtune.runners.measuring import WATCH_FILE, WATCH_SAYS
from meshtune.runners.outcome import FAILED, Measurement, Outcome, ResultMalformed, ResultMissing, Verdict, read_result
from meshtune.runners.processes.gang import THREADS, log_path
from meshtune.runners.programs.dialects.base import ProgramOptions
from meshtune.runners.report import DIRECTORY
from meshtune.runners.report import VERDICTS as TOLD_VERDICTS
from meshtune.runners.told_knobs import ToldKnob, told_knobs
from meshtune.search_spaces.checks import Problem
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind
from meshtune.search_spaces.columns import Capabilities
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knob_values import KnobValue
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.framework_profiles import FrameworkProfile
from meshtune.search_spaces.physics.recipes import flops_per_token
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.recipe import PLAIN, Recipe

# The file beside a job's log by which it is read: the size of a step, and which time the program logs.
CONTEXT_FILE = "brief.json"
_CONTEXT_VERSION = 1
# The model's sizes that a job may be told by name.
SHAPES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len")
# What a search may learn from each cause, beside those that a job itself tells.
VERDICTS: Mapping[Cause, Verdict] = {
    **{Cause(cause): Verdict(verdict) for cause, verdict in TOLD_VERDICTS.items()},
    **dict.fromkeys((Cause.NODE_FAULT, Cause.PREEMPTION, Cause.OTHER_HARDWARE), Verdict.LOST),
    Cause.TIME_LIMIT: Verdict.TIMED_OUT,
}


Options = TypeVar("Options", bound=ProgramOptions)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The job that is to measure `plan`.

    incumbent_step_time_s: it may end as PRUNED once it is surely slower than this. knobs: those of the space, of which
    the plan has values. recipe: of the built-in trainer and the simulated ones; others have it in their own settings.
    real: the user's own launch instead, which measures nothing, without what trials alone have; of the workload
    `command`, others know no such difference."""

    name: str
    model: ModelSpec
    plan: Plan
    cluster: ClusterSpec
    directory: Path
    _: KW_ONLY
    seed: int
    time_limit_s: float
    incumbent_step_time_s: float | None = None
    knobs: Sequence[Knob] = ()
    real: bool = False
    recipe: Recipe = PLAIN

    def job(
        self, command: tuple[str, ...], files: Mapping[str, str], env: Mapping[str, str] | None = None, **rest: Any
    ) -> JobSpec:
        """Its job, on all devices of its cluster. rest: fields of JobSpec."""
        return JobSpec(
            name=self.name,
            command=command,
            directory=self.directory,
            nodes=self.cluster.nodes,
            devices_per_node=self.cluster.devices_per_node,
            time_limit_s=self.time_limit_s,
            files=files,
            env=env or {},
            **rest,
        )


class Workload(ABC):
    """Training code that can be profiled. Holds no state between calls."""

    # The model's sizes that its jobs are told by name; None where it runs no model but the one that a spec names.
    told_shapes: frozenset[str] | None = None

    @staticmethod
    def completed(options: Mapping[str, Any], cluster: ClusterSpec) -> Mapping[str, Any]:
        """The options of a spec, with those that it leaves out and the cluster decides."""
        return options

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Which plans it can run."""

    @property
    @abstractmethod
    def framework(self) -> FrameworkProfile:
        """What the physics needs to know of it."""

    @property
    def program(self) -> str:
        """The name of the user's program that its jobs run, by which measurements of one are told from another's; ""
        where the kind of the workload and its framework say all."""
        return ""

    def problems_with(self, model: ModelSpec) -> list[Problem]:
        """Why its options do not go with the model, by option."""
        return []

    def problems_with_recipe(self, recipe: Recipe, model: ModelSpec) -> list[Problem]:
        """What of a recipe its jobs would not do, by the recipe's key."""
        return []

    def problems_with_knobs(self, knobs: KnobSet) -> list[Problem]:
        """Why its jobs cannot be told of some of the knobs, by the knob's name."""
        return []

    def problems_with_names(self, knobs: KnobSet) -> list[Problem]:
        """The names in its options that are those of knobs alone, and of none of these, by option."""
        return []

    @property
    def option_values(self) -> Mapping[str, KnobValue]:
        """The values of the options that knobs can set, which hold where none does."""
        return {}

    @property
    def dtype(self) -> str:
        """The number format it computes in, by which a device's peak FLOP/s is looked up."""
        return self.framework.dtype

    @property
    def knows_dtype(self) -> bool:
        """False where nobody said the number format, and that of a framework is taken that may be like it."""
        return True

    @property
    def steps(self) -> int | None:
        """How many a job takes whose files do not say; None where they, or what they do, are open."""
        return None

    @property
    def watched(self) -> Mapping[str, str] | None:
        """The patterns that count the steps of jobs that run until enough are told, empty for the usual ones; None:
        they end by themselves."""
        return None

    @abstractmethod
    def job(self, request: JobRequest) -> JobSpec:
        """The job of `materialize`."""

    def materialize(self, request: JobRequest) -> JobSpec:
        """The job that measures a plan, as pure text: nothing is written or started."""
        job, patterns = self.job(request), None if request.real else self.watched
        if patterns is None:
            return job
        # A user's own start has no such variables.
        unset = [name for name in THREADS if name not in job.env]
        settings = {"time_limit_s": job.time_limit_s, "log": dict(patterns), "unset": unset}
        return replace(
            job,
            command=(sys.executable, "-m", "meshtune.runners.watch", "--", *job.command),
            files={**job.files, WATCH_FILE: json.dumps(settings, indent=1) + "\n"},
            env={DIRECTORY: str(job.directory), **job.env},
        )

    def read(self, directory: Path, status: JobStatus) -> Outcome:
        """What became of a job whose state is final, from what it left in `directory`. May be repeated.

        A failure without a result, whose folder is gone or cannot be written just now, is the storage's. Raises
        RunnerUnavailable where what the job left cannot be read now."""
        try:
            reported = outcome_from_result(directory)
            outcome = self.read_without_result(directory, status) if reported is None else reported
        except OSError as error:
            raise RunnerUnavailable(f"what a job left cannot be read: {error}") from error
        except (ValueError, ArithmeticError) as error:  # numbers of the job's own making
            reported, outcome = None, failed(Cause.CRASH, f"what the job left makes no sense: {error}")
        if reported is None:
            # Why no step was measured, by the end of the first rank's log.
            lines = read_tail(log_path(directory, 0)).splitlines()
            said = [line.removeprefix(WATCH_SAYS) for line in lines if line.startswith(WATCH_SAYS)][:1]
            outcome = replace(outcome, reason="; ".join(filter(None, (outcome.reason, *said))))
        missing = reported is None or reported.reason.startswith(_MALFORMED)
        if missing and outcome.cause in (Cause.CRASH, Cause.USER_BUG):
            if fault := storage_fault(directory):
                outcome = failed(Cause.STORAGE, f"{fault}; {outcome.reason}", log_tail=outcome.log_tail)
            elif _NO_MODULE.search(f"{outcome.reason}\n{outcome.log_tail}"):
                outcome = replace(outcome, reason=f"{outcome.reason}; {_ADVICE}")
        if status.warning:
            return replace(outcome, reason="; ".join(told for told in (outcome.reason, status.warning) if told))
        return outcome

    @abstractmethod
    def read_without_result(self, directory: Path, status: JobStatus) -> Outcome:
        """The outcome of a job that left no result file, by its logs and its runner. Raises OSError."""


class ProgramWorkload(Workload, Generic[Options]):
    """Another program's training, by the options of a spec. Raises InvalidValue for wrong ones."""

    kind: ClassVar[type[ProgramOptions]]
    # Which plans it can run with such options.
    able: ClassVar[staticmethod[[Any], Capabilities]]

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = cast(Options, read_value(self.kind, dict(options)))

    @property
    def capabilities(self) -> Capabilities:
        return type(self).able(self._options)

    @property
    def steps(self) -> int | None:
        return None if self._options.watch else self._options.steps

    @property
    def watched(self) -> Mapping[str, str] | None:
        return {} if self._options.watch else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContext:
    """tokens_per_step: over all replicas. updates: of one step, which generates the rows of several. warmup_steps: the
    first steps, which are not timed. knobs: what the job is told of them; command: where arguments tell one, the words
    of its command line but for these. Others as Measurement."""

    plan: Plan
    tokens_per_step: int
    devices: int
    model_flops_per_token: float | None
    peak_flops_per_device: float | None = None
    updates: int = 1
    warmup_steps: int = 0
    device: DeviceKind = DeviceKind.CUDA
    knobs: Mapping[str, ToldKnob] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Of one step."""
        return self.plan.global_batch_size * self.updates

    def measurement(self, step_times_s: Sequence[float], **rest: Any) -> Measurement:
        """What the program measured, warm-up steps first. Raises InvalidValue where no step is left to time."""
        return Measurement(
            step_times_s=tuple(step_times_s[self.warmup_steps :]),
            warmup_times_s=tuple(step_times_s[: self.warmup_steps]),
            tokens_per_step=self.tokens_per_step,
            devices=self.devices,
            model_flops_per_token=self.model_flops_per_token,
            peak_flops_per_device=self.peak_flops_per_device,
            **rest,
        )


def context_file(request: JobRequest, *, dtype: str, warmup_steps: int, command: Sequence[str] = ()) -> dict[str, str]:
    """The file of one trial's context, by its name. dtype: what the program computes in, for the device's peak.
    command: see LogContext."""
    told, rollout = told_knobs(request.knobs, request.plan), request.recipe.rollout
    flops = flops_per_token(request.model, request.recipe) if request.model.known and rollout is None else None
    updates = rollout.updates if rollout else 1
    context = LogContext(
        plan=request.plan,
        tokens_per_step=request.plan.global_batch_size * request.model.seq_len * updates,
        devices=request.plan.world_size,
        model_flops_per_token=flops,
        peak_flops_per_device=request.cluster.device.peak_flops.get(dtype),
        updates=updates,
        warmup_steps=warmup_steps,
        device=request.cluster.device.kind,
        knobs=told,
        command=tuple(command) if any(knob.way == "argument" for knob in told.values()) else (),
    )
    return {CONTEXT_FILE: render_context(context)}


def render_context(context: LogContext) -> str:
    return render_versioned(context, _CONTEXT_VERSION)


def read_context(directory: Path) -> LogContext:
    """Raises OSError, ValueError."""
    return read_versioned(LogContext, read_document(directory / CONTEXT_FILE), _CONTEXT_VERSION)


def in_directory(directory: str, command: tuple[str, ...]) -> tuple[str, ...]:
    """The command, started in a directory of its own choice, as seen from where the tuner runs; empty: in its job's."""
    return ("sh", "-c", 'cd "$0" && exec "$@"', str(Path(directory).absolute()), *command) if directory else command


def started_in(command: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The directory and the command of `in_directory`; "" and the command itself where it is none."""
    wrapped = tuple(command[:3]) == in_directory(".", ())[:3]
    return (command[3], tuple(command[4:])) if wrapped else ("", tuple(command))


def failed(cause: Cause, reason: str, **rest: Any) -> Outcome:
    """A failure of known cause. rest: fields of Outcome."""
    return Outcome(verdict=VERDICTS[cause], cause=cause, reason=reason, **rest)


def outcome_without_result(status: JobStatus, log_tail: str) -> Outcome:
    """What a job's end means when it left no result file and no word of its own: what its runner says of it."""
    log_tail = log_tail or status.log_tail
    if status.state is JobState.CANCELLED:
        return Outcome(verdict=Verdict.CANCELLED, reason=status.reason, log_tail=log_tail)
    if status.state is JobState.SUCCEEDED:
        return failed(Cause.CRASH, "the job ended without an error, but wrote no result file", log_tail=log_tail)
    if status.cause is not None:
        return failed(status.cause, status.reason, log_tail=log_tail)
    verdict = {JobState.TIMED_OUT: Verdict.TIMED_OUT, JobState.LOST: Verdict.LOST}.get(status.state, Verdict.CRASHED)
    return Outcome(verdict=verdict, cause=FAILED[verdict], reason=status.reason, log_tail=log_tail)


# bash's and sh's words where no modules system has set the shell up.
_NO_MODULE = re.compile(r"\bm(?:odule|l): (?:command )?not found")
# What people can do about it.
_ADVICE = (
    "`module` is no command in that shell: have the setup source the file that makes it one "
    "(`. /etc/profile.d/modules.sh`), or set login_shell: true of runner slurm or pbs"
)


_MALFORMED = "the result file is malformed: "


def outcome_from_result(directory: Path) -> Outcome | None:
    """The outcome in the job's result file, None where there is none. A malformed file is a crash of the job. Raises
    OSError."""
    try:
        return read_result(directory)
    except ResultMissing:
        return None
    except ResultMalformed as error:
        return failed(Cause.CRASH, f"{_MALFORMED}{error}", log_tail=read_tail(log_path(directory, 0)))
