"""The torchtitan workload: its trainer for a few steps, measured by its own log.

One process per device; torchtitan reads RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR itself. A step's time is what
`tps` says, tokens per second and device as a whole number. A plan is a TOML file for releases to 0.2.2, flags for
0.3.0; both laid over the user's own."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshtune.runners.base import JobSpec, JobStatus
from meshtune.runners.documents import read_value
from meshtune.runners.outcome import Outcome
from meshtune.runners.programs.dialects.base import (
    Arguments,
    Files,
    overlaid,
    read_arguments,
    read_base,
    render_lines,
    render_toml,
    require_words,
)
from meshtune.runners.programs.dialects.config_import import flat, placed
from meshtune.runners.programs.log_patterns import Patterns
from meshtune.runners.programs.log_reader import outcome_from_log
from meshtune.runners.programs.torchtitan.options import TABLE, Dtype, TorchtitanOptions, capabilities_of, key_of
from meshtune.runners.programs.torchtitan.special import facts
from meshtune.runners.programs.workloads.base import JobRequest, ProgramWorkload, context_file, in_directory
from meshtune.runners.programs.workloads.knobs import Telling, arguments, keys, problems, variables
from meshtune.runners.untrusted_text import read_toml, read_words
from meshtune.search_spaces.checks import Problem
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.framework_profiles import FLOAT32, TORCHTITAN, TORCHTITAN_COMPILED, FrameworkProfile
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.routing import Routing

TOML_FILE = "torchtitan.toml"
FLAGS_FILE = "torchtitan.args"
_PROGRAM = TABLE.lists["program"]
_RECOMPUTE = "activation_checkpoint."
PATTERNS = Patterns(TABLE.lists["log"])
# Options of the kind of recomputation, which is a subcommand.
_OF_SUBCOMMAND = "__activation_checkpoint."


def render(model: ModelSpec, plan: Plan, cluster: ClusterSpec, extra: Mapping[str, Any] | None = None) -> Files:
    """The TOML file or the flags of a plan. extra: options of the workload. Raises CannotExpress, InvalidValue."""
    options = read_value(TorchtitanOptions, dict(extra or {}))
    settings = settings_of(model, plan, cluster, options)
    if options.release.has_file:
        return {TOML_FILE: render_config(settings, options)}
    return {FLAGS_FILE: "".join(f"{line}\n" for line in render_flags(settings, options))}


def settings_of(
    model: ModelSpec, plan: Plan, cluster: ClusterSpec, options: TorchtitanOptions, **trial: Any
) -> dict[str, Any]:
    """What a plan says, by key; None for a key that the user's own configuration must not have. trial: steps, seed and
    folder, for what every trial says beside. Raises CannotExpress."""
    require_words(f"torchtitan {options.release}", model, plan, cluster, capabilities_of(options))
    return options.table.write({**facts(model, plan, options), **trial})


def render_config(settings: Mapping[str, Any], options: TorchtitanOptions) -> str:
    """The user's TOML with these settings laid over it. Raises InvalidValue where the user's cannot be read."""
    return render_toml(overlaid(read_base(options.config, read_toml), placed({}, settings)))


def render_flags(settings: Mapping[str, Any], options: TorchtitanOptions) -> list[str]:
    """The user's flags, those of these settings in place of his, and last the kind of recomputation, one per line."""
    # By section, as people write them.
    written = [
        flag_of(key, value, " ")
        for key, value in flat(placed({}, settings)).items()
        if value is not None and not key.startswith(_RECOMPUTE)
    ]
    return [
        *render_lines(own_flags(settings, options)),
        *written,
        f"{_PROGRAM['subcommand']}{settings[f'{_RECOMPUTE}mode']}",
    ]


def own_flags(settings: Mapping[str, Any], options: TorchtitanOptions) -> Arguments:
    """The user's flags but for those that these settings replace, whichever way they are written: flags count more than
    a file."""
    replaced = {*settings, _PROGRAM["file"]}
    return {flag: values for flag, values in options.given.items() if key_of(flag)[0] not in replaced}


def flag_of(key: str, value: Any, between: str = "=") -> str:
    """The flag that sets a key, as a text for a shell. between: flag and value, "=" or a space."""
    if isinstance(value, bool):
        section, dot, name = key.rpartition(".")
        return f"--{key}" if value else f"--{section}{dot}no_{name}"
    return shlex.join([f"--{key}={value}"] if between == "=" else [f"--{key}", str(value)])


class TorchtitanWorkload(ProgramWorkload[TorchtitanOptions]):
    """Profiles torchtitan. Raises InvalidValue for wrong options."""

    kind = TorchtitanOptions
    able = staticmethod(capabilities_of)

    @property
    def framework(self) -> FrameworkProfile:
        known = TORCHTITAN_COMPILED if self._options.compiled else TORCHTITAN
        if self._options.dtype is Dtype.FLOAT32:
            known = replace(TORCHTITAN, name="torchtitan FSDP2, float32", **FLOAT32)
        own = self._options
        return replace(
            known,
            routing=Routing.EVEN if own.even else Routing.LEARNED,
            product_dtype="float8" if own.float8 else known.product_dtype,
            overlaps_tensor=own.async_tp,
            overlaps_tensor_forward=own.async_tp,
        )

    @property
    def program(self) -> str:
        """The release, and the module of the user's own models where one is named."""
        return " ".join((str(self._options.release), *self._options.given.get("--module", ())))

    def problems_with_knobs(self, knobs: KnobSet) -> list[Problem]:
        options = self._options
        taken = {
            **{key_of(name)[0]: "workload.arguments" for name in options.given},
            **dict.fromkeys(options.keys_set(by_trials=True), "every trial"),
            # A plan sets this one where no CUDA graphs go with it.
            **dict.fromkeys(options.keys_set(by_trials=False) - {"training.disable_cuda_graphs"}, "the plan"),
        }
        telling = Telling(
            workload="torchtitan",
            example="--compile.components",
            variables=dict.fromkeys(options.env, "workload.env"),
            arguments={f"--{key}": place for key, place in taken.items()},
            plain=lambda flag: key_of(flag)[0],
            files={TOML_FILE if options.release.has_file else FLAGS_FILE: taken},
        )
        return problems(knobs, telling)

    def job(self, request: JobRequest) -> JobSpec:
        """torchtitan cannot give up by itself, so incumbent_step_time_s changes nothing. Raises CannotExpress, and
        InvalidValue where the user's TOML cannot be read."""
        options, folder = self._options, str(request.directory)
        trial = {"steps": options.steps, "seed": request.seed, "folder": folder}
        settings = settings_of(request.model, request.plan, request.cluster, options, **trial)
        told = keys(request.knobs, request.plan, TOML_FILE if options.release.has_file else FLAGS_FILE)
        added = render_lines(read_arguments(arguments(request.knobs, request.plan))[0])
        if options.release.has_file:
            files = {TOML_FILE: render_config({**settings, **told}, options)}
            file = shlex.join(["--job.config_file", str(request.directory / TOML_FILE)])
            lines = [file, *render_lines(own_flags(settings, options)), *added]
        else:
            *flags, recompute = render_flags(settings, options)
            added += [flag_of(key, value) for key, value in told.items()]
            # What belongs to a subcommand stands after it.
            late = [line for line in added if line.replace("-", "_").startswith(_OF_SUBCOMMAND)]
            lines = [*flags, *(line for line in added if line not in late), recompute, *late]
            files = {FLAGS_FILE: "".join(f"{line}\n" for line in lines)}
        words = [word for line in lines for word in read_words(line)]
        command = in_directory(options.directory, (options.python, "-m", "torchtitan.train", *words))
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
