"""The torchtitan workload: its trainer for a few steps, measured by its own log.

A trial's configuration is the plan's and the user's, but that every step is told and nothing is saved. One process per
device; torchtitan reads RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR itself. A step's time is what `tps` says, tokens
per second and device as a whole number: exact to a part in twice that number.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshtune.runners.base import JobSpec, JobStatus
from meshtune.runners.dialects.torchtitan.dialect import (
    FLAGS_FILE,
    TOML_FILE,
    capabilities,
    render_config,
    render_flags,
    sections_of,
)
from meshtune.runners.dialects.torchtitan.options import Dtype, Release, TorchtitanOptions
from meshtune.runners.documents import read_value
from meshtune.runners.logs.patterns import Patterns
from meshtune.runners.logs.reader import outcome_from_log, outcome_without_context
from meshtune.runners.outcome import RESULT_FILE, Outcome
from meshtune.runners.workloads.log_context import CONTEXT_FILE, context_of, read_context, render_context
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.framework_profile import FrameworkProfile
from meshtune.search_spaces.physics.framework_profiles import TORCHTITAN
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space_context import Capabilities

# MetricsProcessor.log in torchtitan/components/metrics.py; grad_norm since 0.2.0, mfu N/A with quantization in 0.3.0.
# Ranks that see no loss, of all stages of a pipeline but the last, say -1 (trainer.py, train_step).
PATTERNS = Patterns(
    {
        "step": r"(?<!validate )\bstep: +(\d+)  +loss: ",
        "tokens_per_s_per_device": r"(?<!validate )\bstep: +\d+  +loss: .*  tps: ([\d,]+)  ",
        "loss": r"(?<!validate )\bstep: +\d+  +loss: +(\d[.\d]*|nan|inf)  ",
        "memory_gib": r"(?<!validate )\bstep: +\d+  +loss: .*  memory: +([\d.]+)GiB\(",
        "illegal": (
            r"(?:Error|Exception): .*(?:Invalid parallel dims|global batch size must be multiple|DDP has not supported"
            r"|must be (?:evenly )?divisible by|CUDA graphs (?:do not support|support only)|[Vv]irtual stages|per rank)"
        ),
    }
)


class TorchtitanWorkload:
    """Profiles torchtitan. Raises InvalidValue for wrong options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = read_value(TorchtitanOptions, dict(options))

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(self._options)

    @property
    def dtype(self) -> str:
        return str(self._options.dtype)

    @property
    def framework(self) -> FrameworkProfile:
        if self._options.dtype is Dtype.FLOAT32:
            return replace(
                TORCHTITAN,
                name="torchtitan FSDP2, float32",
                dtype=self.dtype,
                activation_bytes=4,
                transfer_bytes=4,
                gather_bytes=4,
            )
        return TORCHTITAN

    def materialize(
        self,
        name: str,
        model: ModelSpec,
        plan: Plan,
        cluster: ClusterSpec,
        directory: Path,
        *,
        seed: int,
        time_limit_s: float,
        incumbent_step_time_s: float | None = None,
    ) -> JobSpec:
        """torchtitan cannot give up by itself, so incumbent_step_time_s changes nothing. Raises CannotExpress, and
        InvalidValue where the user's TOML cannot be read."""
        options = self._options
        sections = _with_measuring(sections_of(model, plan, cluster, options), options, directory, seed)
        if options.release is Release.TOML:
            files = {TOML_FILE: render_config(sections, options)}
            words = ["--job.config_file", str(directory / TOML_FILE), *shlex.split(" ".join(options.arguments))]
        else:
            flags = render_flags(sections, options)
            files = {FLAGS_FILE: "".join(f"{line}\n" for line in flags)}
            words = [word for line in flags for word in shlex.split(line)]
        command = (options.python, "-m", "torchtitan.train", *words)
        if options.directory:
            command = ("sh", "-c", 'cd "$0" && exec "$@"', str(Path(options.directory).absolute()), *command)
        context = context_of(model, plan, cluster, dtype=self.dtype, warmup_steps=options.warmup_steps)
        return JobSpec(
            name=name,
            command=command,
            directory=directory,
            nodes=cluster.nodes,
            devices_per_node=cluster.devices_per_node,
            time_limit_s=time_limit_s,
            files={**files, CONTEXT_FILE: render_context(context)},
            env=dict(options.env),
        )

    def read(self, directory: Path, status: JobStatus) -> Outcome:
        try:
            context = read_context(directory)
        except (OSError, ValueError) as error:
            return outcome_without_context(status, error)
        outcome = outcome_from_log(directory, status, context, PATTERNS, steps=self._options.steps)
        measured = outcome.measurement
        if measured is None or (directory / RESULT_FILE).exists():
            return outcome
        # Its memory is what the allocator holds (max_reserved), not what tensors fill.
        held = replace(measured, peak_memory_bytes=(), peak_held_bytes=measured.peak_memory_bytes)
        return replace(outcome, measurement=held)


def _with_measuring(
    sections: Mapping[str, Mapping[str, Any]], options: TorchtitanOptions, directory: Path, seed: int
) -> dict[str, dict[str, Any]]:
    """The sections of a run that takes its steps, tells each, and leaves nothing behind outside of its folder."""
    toml = options.release is Release.TOML
    quiet = {"enable_tensorboard": False, "enable_wandb": False, "disable_color_printing": True}
    return {
        **{section: dict(keys) for section, keys in sections.items()},
        "training": {**sections["training"], "steps": options.steps},
        "metrics": {"log_freq": 1, **quiet},
        "checkpoint": {"enable": False},
        "debug": {"seed": seed},
        "profiling" if toml else "profiler": {"enable_profiling": False},
        "validation" if toml else "validator": {"enable": False},
        "job" if toml else "": {"dump_folder": str(directory)},
    }
