"""The torchtitan workload: its trainer for a few steps, measured by its own log.

One process per device; torchtitan reads RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR itself. A step's time is what
`tps` says, tokens per second and device as a whole number."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshtune.runners.base import JobSpec, JobStatus
from meshtune.runners.outcome import Outcome
from meshtune.runners.programs.dialects.base import read_arguments, render_lines
from meshtune.runners.programs.dialects.torchtitan.config import flat, key_of
from meshtune.runners.programs.dialects.torchtitan.dialect import (
    FLAGS_FILE,
    TOML_FILE,
    capabilities,
    keys_of_plans,
    own_flags,
    render_config,
    render_flags,
    sections_of,
)
from meshtune.runners.programs.dialects.torchtitan.options import Dtype, Release, TorchtitanOptions
from meshtune.runners.programs.log_patterns import Patterns
from meshtune.runners.programs.log_reader import outcome_from_log
from meshtune.runners.programs.workloads.base import JobRequest, ProgramWorkload, context_file, in_directory
from meshtune.runners.programs.workloads.config_file import placed
from meshtune.runners.programs.workloads.knobs import Telling, arguments, keys, problems, variables
from meshtune.runners.untrusted_text import read_words
from meshtune.search_spaces.checks import Problem
from meshtune.search_spaces.columns import Capabilities
from meshtune.search_spaces.knob_values import KnobValue
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.physics.framework_profiles import FLOAT32, TORCHTITAN, FrameworkProfile

# MetricsProcessor.log in torchtitan/components/metrics.py; grad_norm since 0.2.0, mfu N/A with quantization in 0.3.0.
# Ranks that see no loss, of all stages of a pipeline but the last, say -1 (trainer.py, train_step).
# Lines of a validation, "validate step:", are none of a step's.
_STEP = r"(?:^|[^ \w]|[^e] |[^t]e |[^a]te |[^d]ate )step: +"
PATTERNS = Patterns(
    {
        "step": _STEP + r"(\d+)  +loss: ",
        "tokens_per_s_per_device": _STEP + r"\d+  +loss: .*  tps: ([\d,]+)  ",
        "loss": _STEP + r"\d+  +loss: +(\d[.\d]*|nan|inf)  ",
        "gradient_norm": _STEP + r"\d+  +loss: .*  grad_norm: +([.\d]+|nan|inf)  ",
        "memory_gib": _STEP + r"\d+  +loss: .*  memory: +([\d.]+)GiB\(",
        "illegal": (
            r"(?:Error|Exception): .*(?:Invalid parallel dims|global batch size must be multiple|DDP has not supported"
            r"|must be (?:evenly )?divisible by|CUDA graphs (?:do not support|support only)|[Vv]irtual stages|per rank)"
        ),
    }
)

# Options of the kind of recomputation, which is a subcommand.
_OF_SUBCOMMAND = "__activation_checkpoint."


class TorchtitanWorkload(ProgramWorkload[TorchtitanOptions]):
    """Profiles torchtitan. Raises InvalidValue for wrong options."""

    kind = TorchtitanOptions

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(self._options)

    @property
    def framework(self) -> FrameworkProfile:
        if self._options.dtype is Dtype.FLOAT32:
            return replace(TORCHTITAN, name="torchtitan FSDP2, float32", **FLOAT32)
        return TORCHTITAN

    @property
    def program(self) -> str:
        """The release, and the module of the user's own models where one is named."""
        return " ".join((str(self._options.release), *self._options.given.get("--module", ())))

    def problems_with_knobs(self, knobs: KnobSet) -> list[Problem]:
        options = self._options
        measured = (".".join(key).lstrip(".") for key in flat(_measuring(options, 0, "")))
        by_plan = dict.fromkeys(keys_of_plans(options), "the plan")
        given = {_key(name): "workload.arguments" for name in options.given}
        taken = {**given, **dict.fromkeys(measured, "every trial"), **by_plan}
        telling = Telling(
            workload="torchtitan",
            example="--compile.components",
            variables=dict.fromkeys(options.env, "workload.env"),
            arguments={f"--{key}": place for key, place in taken.items()},
            plain=_key,
            files={TOML_FILE if options.release.has_file else FLAGS_FILE: taken},
        )
        return problems(knobs, telling)

    def job(self, request: JobRequest) -> JobSpec:
        """torchtitan cannot give up by itself, so incumbent_step_time_s changes nothing. Raises CannotExpress, and
        InvalidValue where the user's TOML cannot be read."""
        options = self._options
        sections = _with_measuring(request, options)
        told = keys(request.knobs, request.plan)
        added = render_lines(read_arguments(arguments(request.knobs, request.plan))[0])
        if options.release.has_file:
            for key, value in told.items():
                sections = placed(sections, key.removeprefix(f"{TOML_FILE}:").split("."), value)
            files = {TOML_FILE: render_config(sections, options)}
            words = [
                "--job.config_file",
                str(request.directory / TOML_FILE),
                *(word for flag, values in own_flags(sections, options).items() for word in (flag, *values)),
                *(word for line in added for word in read_words(line)),
            ]
        else:
            *flags, recompute = render_flags(sections, options)
            added += [key_flag(key.removeprefix(f"{FLAGS_FILE}:"), value) for key, value in told.items()]
            # What belongs to a subcommand stands after it.
            late = [line for line in added if line.replace("-", "_").startswith(_OF_SUBCOMMAND)]
            lines = [*flags, *(line for line in added if line not in late), recompute, *late]
            files = {FLAGS_FILE: "".join(f"{line}\n" for line in lines)}
            words = [word for line in lines for word in read_words(line)]
        command: tuple[str, ...] = (options.python, "-m", "torchtitan.train", *words)
        if options.directory:
            command = in_directory(Path(options.directory).absolute(), command)
        context = context_file(request, dtype=self.dtype, warmup_steps=options.warmup_steps)
        return request.job(command, {**files, **context}, {**options.env, **variables(request.knobs, request.plan)})

    def read_without_result(self, directory: Path, status: JobStatus) -> Outcome:
        outcome = outcome_from_log(directory, status, PATTERNS, steps=self._options.steps)
        measured = outcome.measurement
        if measured is None:
            return outcome
        # Its memory is what the allocator holds (max_reserved), not what tensors fill.
        held = replace(measured, peak_memory_bytes=(), peak_held_bytes=measured.peak_memory_bytes)
        return replace(outcome, measurement=held)


def _key(flag: str) -> str:
    """The dotted key of a flag."""
    return ".".join(key_of(flag)[0]).lstrip(".")


def key_flag(key: str, value: KnobValue) -> str:
    """The flag that sets a dotted key, as a text for a shell."""
    if not isinstance(value, bool):
        return shlex.join([f"--{key}={value}"])
    section, dot, name = key.rpartition(".")
    return f"--{key}" if value else f"--{section}{dot}no_{name}"


def _with_measuring(request: JobRequest, options: TorchtitanOptions) -> dict[str, Any]:
    """The sections of a run that takes its steps, tells each, and leaves nothing behind outside of its folder."""
    sections = sections_of(request.model, request.plan, request.cluster, options)
    measuring = _measuring(options, request.seed, str(request.directory))
    return {**sections, **measuring, "training": {**sections["training"], **measuring["training"]}}


def _measuring(options: TorchtitanOptions, seed_of_run: int, folder: str) -> dict[str, dict[str, Any]]:
    """What every trial says beyond its plan."""
    toml, seed = options.release.has_file, {"seed": seed_of_run}
    first = options.release is Release.TOML_0_2_0
    quiet = {"enable_tensorboard": False, "enable_wandb": False, "disable_color_printing": True}
    return {
        "training": {"steps": options.steps, **(seed if first else {})},
        "metrics": {"log_freq": 1, **quiet},
        "checkpoint": {"enable": False},
        **({} if first else {"debug": seed}),
        "profiling" if toml else "profiler": {"enable_profiling": False},
        "validation" if toml else "validator": {"enable": False},
        "job" if toml else "": {"dump_folder": folder},
    }
