"""The deepspeed workload: a user's own script under DeepSpeed for a few steps, measured by DeepSpeed's own log.

One process per device; DeepSpeed reads RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR itself. Read are the samples per
second of each single step, never a running average."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from meshtune.runners.base import Cause, JobSpec, JobStatus
from meshtune.runners.log_lines import lines_of
from meshtune.runners.outcome import Outcome
from meshtune.runners.processes.gang import log_path
from meshtune.runners.programs.deepspeed.options import (
    CONFIG_FILE,
    TABLE,
    UNTIMED_STEPS,
    DeepSpeedOptions,
    Dtype,
    capabilities_of,
    config_of,
)
from meshtune.runners.programs.dialects.base import overlaid
from meshtune.runners.programs.dialects.config_import import at, flat, placed
from meshtune.runners.programs.log_patterns import Patterns
from meshtune.runners.programs.log_reader import outcome_from_log
from meshtune.runners.programs.workloads.base import (
    SHAPES,
    JobRequest,
    ProgramWorkload,
    context_file,
    failed,
    in_directory,
    read_context,
)
from meshtune.runners.programs.workloads.knobs import Telling, arguments, keys, problems, variables
from meshtune.runners.untrusted_text import read_words
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.physics.framework_profiles import DEEPSPEED, FLOAT32, FrameworkProfile

_LOG = TABLE.lists["log"]
STEP_PATTERNS = Patterns(_LOG["script"])
PIPELINE_PATTERNS = Patterns({**_LOG["pipeline"], "illegal": _LOG["script"]["illegal"]})
# The product that the samples per second are of (DeepSpeedConfig.print in deepspeed/runtime/config.py).
_BATCH = re.compile(r"\]\s+train_batch_size \.+ ([1-9][0-9]{0,14})\s*$")


class DeepSpeedWorkload(ProgramWorkload[DeepSpeedOptions]):
    """Profiles a script under DeepSpeed. Raises InvalidValue for wrong options."""

    kind = DeepSpeedOptions
    able = staticmethod(capabilities_of)

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.told_shapes = frozenset(filter(self._options.tells, SHAPES))
        if not (self._options.script or self._options.module):
            raise InvalidValue([Problem("script", "is missing, and so is module")])

    @property
    def framework(self) -> FrameworkProfile:
        stated = self._options.reduce_bucket
        bucket = float(stated) if isinstance(stated, (int, float)) else DEEPSPEED.bucket_weights
        kept = str(at(self._options.config, "zero_optimization.offload_optimizer.device") or "none")
        known = replace(DEEPSPEED, host_optimizer=kept != "none", disk_optimizer=kept == "nvme", bucket_weights=bucket)
        if self._options.dtype is Dtype.FLOAT32:
            return replace(known, name="DeepSpeed, float32", **FLOAT32)
        return replace(known, name=f"DeepSpeed, {self._options.dtype}", dtype=str(self._options.dtype))

    @property
    def program(self) -> str:
        return self._options.module or PurePath(self._options.script).name

    def problems_with_knobs(self, knobs: KnobSet) -> list[Problem]:
        options = self._options
        given = (word.partition("=")[0] for text in options.arguments for word in read_words(text))
        by_plan = dict.fromkeys(options.table.written, "the plan")
        telling = Telling(
            workload="deepspeed",
            variables={**dict.fromkeys(options.env, "workload.env"), "DS_ACCELERATOR": "meshtune"},
            arguments=dict.fromkeys(given, "workload.arguments"),
            files={CONFIG_FILE: {**dict.fromkeys(flat(_measured({})), "every trial"), **by_plan}},
        )
        return problems(knobs, telling)

    def job(self, request: JobRequest) -> JobSpec:
        """A script decides nothing by itself, so incumbent_step_time_s changes nothing. Raises CannotExpress, and
        InvalidValue where the user's ds_config cannot be read."""
        options = self._options
        program = ["-m", options.module] if options.module else [options.script]
        words = options.words(request.model, request.plan, request.seed, request.directory / CONFIG_FILE)
        started = (options.python, *program, *words, *arguments(request.knobs, request.plan))
        command = in_directory(options.directory, started)
        config = config_of(request.model, request.plan, request.cluster, options)
        measured = config if request.real else overlaid(config, _measured(config))
        measured = placed(measured, keys(request.knobs, request.plan, CONFIG_FILE))
        context = context_file(request, dtype=self.dtype, warmup_steps=options.warmup_steps - self._untimed)
        on_cpu = {"DS_ACCELERATOR": "cpu"} if request.cluster.device.kind is DeviceKind.CPU else {}
        files = {CONFIG_FILE: json.dumps(measured, indent=2) + "\n", **context}
        return request.job(command, files, {**on_cpu, **options.env, **variables(request.knobs, request.plan)})

    def read_without_result(self, directory: Path, status: JobStatus) -> Outcome:
        patterns = PIPELINE_PATTERNS if self._options.pipeline_module else STEP_PATTERNS
        outcome = outcome_from_log(directory, status, patterns, steps=self._options.steps - self._untimed)
        if (measured := outcome.measurement) is None:
            return outcome
        context = read_context(directory)
        global_batch = context.plan.global_batch_size
        found = (_BATCH.search(line) for line in lines_of(log_path(directory, 0)))
        # The samples that it counts in a step: of AutoTP's ranks each one's.
        batch = next((int(match[1]) for match in found if match), None if context.plan.tp > 1 else global_batch)
        if batch is None:
            told = "the log does not say how many samples DeepSpeed counts in a step (train_batch_size, at level info)"
            return failed(Cause.USER_BUG, told, log_tail=outcome.log_tail)
        ratio = batch / global_batch
        corrected = replace(
            measured,
            step_times_s=tuple(time * ratio for time in measured.step_times_s),
            warmup_times_s=tuple(time * ratio for time in measured.warmup_times_s),
            # On a CPU the whole process's, interpreter and libraries included.
            peak_memory_bytes=() if context.device is DeviceKind.CPU else measured.peak_memory_bytes,
        )
        return replace(outcome, measurement=corrected)

    @property
    def _untimed(self) -> int:
        """Steps that DeepSpeed takes before it tells their times."""
        return 0 if self._options.pipeline_module else UNTIMED_STEPS


def _measured(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a trial's ds_config says beyond the plan."""
    trial = TABLE.lists["trial"]
    monitors = [name for name in trial["monitors"].split() if name in config]
    left_out = dict.fromkeys(trial["left_out"].split())
    return {**trial["settings"], **left_out, **{name: {"enabled": False} for name in monitors}}
