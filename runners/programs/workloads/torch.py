"""The built-in workload: `runners.trainer`, a real training loop of a GPT on synthetic tokens, in PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from meshtune.runners.base import JobSpec, JobState, JobStatus
from meshtune.runners.documents import read_value
from meshtune.runners.job_files import UnfitFile, read_document
from meshtune.runners.log_lines import read_tail
from meshtune.runners.outcome import FAILED, Outcome, Verdict
from meshtune.runners.processes.gang import log_path
from meshtune.runners.programs.log_reader import died_silently, outcome_of_failure, rank_logs
from meshtune.runners.programs.table import capabilities, table_of
from meshtune.runners.programs.workloads.base import JobRequest, Workload, failed, outcome_without_result
from meshtune.runners.programs.workloads.knobs import Telling, options, problems, variables
from meshtune.runners.step_breakdown import MIN_TIMES
from meshtune.runners.told_knobs import told_knobs
from meshtune.runners.trainer.failure import LAST_WORDS_BYTES, first_cause, read_failures, silent_ranks
from meshtune.runners.trainer.job import (
    JOB_FILE,
    OPTIONS,
    SHAPES,
    AttentionKernel,
    Dtype,
    JobMalformed,
    Router,
    TrainerJob,
    TrainerOptions,
    parse_job,
    recipe_obstacles,
    render_job,
    too_uneven,
    uneven_copies,
    unfit_option,
    unshared,
)
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind
from meshtune.search_spaces.columns import CONTEXTS, Capabilities, Constraint
from meshtune.search_spaces.knob_values import KnobValue
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.framework_profiles import TRAINER, FrameworkProfile, compiled
from meshtune.search_spaces.plan import ContextParallel
from meshtune.search_spaces.recipe import Recipe
from meshtune.search_spaces.routing import Routing

# What the trainer can run: beside the codes that are simulated.
TABLE = table_of("meshtune.runners.programs.simulated")
_ULYSSES = CONTEXTS.index(ContextParallel.ULYSSES)
_SLICES = Constraint(
    "trainer-slices",
    "each context rank holds one slice from the front and one from the back, so that causal work is even",
    lambda c, s: (c["cp"] == 1) | (c["context"] == _ULYSSES) | (s.model.seq_len % (2 * c["cp"]) == 0),
    lambda p, s: f"2 * cp({p.cp}) does not divide seq_len({s.model.seq_len})",
)

_KERNELS = Constraint(
    "trainer-xpu-context",
    "torch has attention kernels whose answers can be merged for CPUs and CUDA alone; ulysses needs none",
    lambda c, s: (c["cp"] == 1) | (c["context"] == _ULYSSES) | (s.cluster.device.kind is not DeviceKind.XPU),
    lambda p, s: f"{p.context} with cp({p.cp}) on {s.cluster.device.kind}; context: ulysses runs there",
)


_EVEN = Constraint(
    "balanced-router",
    "with router: balanced each expert gets as many tokens of a sequence from every rank",
    lambda c, s: uneven_copies(s.model, c["cp"], np.where(c["etp"] > 0, c["tp"], 1)) == 0,
    lambda p, s: unshared(s.model, p),
)


class TorchWorkload(Workload):
    """Profiles the built-in trainer; its options are TrainerOptions. Raises InvalidValue for wrong ones."""

    @staticmethod
    def completed(options: Mapping[str, Any], cluster: ClusterSpec) -> Mapping[str, Any]:
        """With bfloat16 on an accelerator that has it: float32 makes products so slow there that communication looks
        free. Compiled on CUDA, as people train there; on a CPU compiling takes longer than measuring. On an accelerator
        at least 3 s are timed, until its power has settled, unless the steps are counted out, and as few steps are
        profiled as name a slow rank."""
        device = cluster.device
        has_bfloat16 = Dtype.BFLOAT16 in device.peak_flops or Dtype.BFLOAT16 in device.sustained_flops
        defaults: dict[str, Any] = {}
        if device.kind is not DeviceKind.CPU and has_bfloat16:
            defaults["dtype"] = str(Dtype.BFLOAT16)
        if device.kind is DeviceKind.CUDA:
            defaults["compile"] = True
        measuring = options.get("measuring", {})
        if device.kind is not DeviceKind.CPU and isinstance(measuring, Mapping):  # what is none is refused later
            least: dict[str, Any] = {} if "max_steps" in measuring else {"min_seconds": 3.0}
            options = {**options, "measuring": {"profile_steps": MIN_TIMES, **least, **measuring}}
        return {**defaults, **options}

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = read_value(TrainerOptions, dict(options))
        if self._options.async_tp and not self._options.compile:
            raise InvalidValue([Problem("async_tp", "needs compile: true")])

    @property
    def capabilities(self) -> Capabilities:
        even = (_EVEN,) if self._options.router is Router.BALANCED else ()
        return capabilities(
            TABLE,
            "trainer",
            (_SLICES, _KERNELS, *even),
            shapes=SHAPES,
            choice_of_sequence_parallel=not self._options.async_tp,
        )

    @property
    def framework(self) -> FrameworkProfile:
        """With other options than the usual ones it is another one, whose trials teach nothing of this."""
        own, usual = self._options, TRAINER[self._options.dtype]
        usual = compiled(usual) if own.compile else usual
        kept = replace(usual.kept, selective=own.selective, loss_chunks=own.loss_chunks)
        own_attention = own.attention in (AttentionKernel.AUTO, AttentionKernel.CUDNN)
        differs = {
            f"selective {kept.selective}": kept.selective is not usual.kept.selective,
            f"{kept.loss_chunks} chunks of the loss": kept.loss_chunks != usual.kept.loss_chunks,
            "float8": own.float8,
            "async tp": own.async_tp,
            f"{own.attention} attention": not own_attention,
        }
        return replace(
            usual,
            name=", ".join([usual.name, *(name for name, so in differs.items() if so)]),
            routing=Routing.EVEN if own.router is Router.BALANCED else Routing.LEARNED,
            imbalance=own.imbalance or usual.imbalance,
            product_dtype="float8" if own.float8 else "",
            overlaps_tensor=own.async_tp,
            overlaps_tensor_forward=own.async_tp,
            attention_kernels=usual.attention_kernels if own_attention else ("flash2",),
            kept=kept,
        )

    @property
    def option_values(self) -> Mapping[str, KnobValue]:
        return {name: getattr(self._options, name) for name in OPTIONS}

    def problems_with(self, model: ModelSpec) -> list[Problem]:
        told = too_uneven(model, self._options.imbalance)
        return [Problem("imbalance", told)] if told else []

    def problems_with_recipe(self, recipe: Recipe, model: ModelSpec) -> list[Problem]:
        return [Problem(*told) for told in recipe_obstacles(recipe, model, self._options)]

    def problems_with_knobs(self, knobs: KnobSet) -> list[Problem]:
        own = "the trainer itself, with `option: threads`"
        telling = Telling(
            workload="torch",
            variables={"OMP_NUM_THREADS": own, "MKL_NUM_THREADS": own},
            options={name: partial(unfit_option, name) for name in OPTIONS},
        )
        return problems(knobs, telling)

    def job(self, request: JobRequest) -> JobSpec:
        """The job, whose knobs take the place of the spec's options."""
        device = request.cluster.device
        own_options = {each.name: getattr(self._options, each.name) for each in fields(TrainerOptions)}
        told: dict[str, Any] = own_options | options(request.knobs, request.plan)
        job = TrainerJob(
            name=request.name,
            model=request.model,
            plan=request.plan,
            recipe=request.recipe,
            device=device.kind,
            seed=request.seed,
            knobs=told_knobs(request.knobs, request.plan),
            memory_limit_bytes=device.memory_bytes if device.kind is DeviceKind.CPU else None,
            peak_flops=device.peak_flops.get(str(told["dtype"])),
            incumbent_step_time_s=request.incumbent_step_time_s,
            **told,
        )
        own = variables(request.knobs, request.plan)
        # Libraries read variables when a process begins: with some of its own it is no fork of one that runs
        # (`runners.processes.gang.warm_entry` knows the shorter form).
        cold = ("-u",) if own else ()
        command = (sys.executable, *cold, "-m", "meshtune.runners.trainer", JOB_FILE)
        return request.job(command, {JOB_FILE: render_job(job)}, own)

    def read_without_result(self, directory: Path, status: JobStatus) -> Outcome:
        failures = read_failures(directory)
        first = first_cause(failures)
        log_tail = read_tail(log_path(directory, first.rank if first else 0))
        silent: list[int] = []
        with suppress(FileNotFoundError, UnfitFile, JobMalformed):  # then nobody says how many ranks there were
            silent = silent_ranks(failures, parse_job(read_document(directory / JOB_FILE)).plan.world_size)
        if (status.exit_code or 0) < 0 and len(silent) == 1:  # the rank that a signal ended, which left no failure file
            log_tail = read_tail(log_path(directory, silent[0]), LAST_WORDS_BYTES) or log_tail
        # An end that was asked for, or that the infrastructure made, is not the plan's: what dying ranks say is echo.
        if status.state in (JobState.CANCELLED, JobState.LOST) or status.cause is not None:
            return outcome_without_result(status, log_tail)
        if first is None:
            return outcome_of_failure(status, rank_logs(directory), None, log_tail)
        if first.echo and (
            status.state is JobState.TIMED_OUT or died_silently(status, {failure.rank for failure in failures})
        ):
            return outcome_without_result(status, log_tail)
        stuck = silent if first.verdict is Verdict.TIMED_OUT else []
        silence = f"; not a word from rank {', '.join(map(str, stuck))}" if stuck else ""
        return failed(
            first.cause or FAILED[first.verdict],
            first.reason + silence,
            failed_rank=stuck[0] if len(stuck) == 1 else first.rank,
            phase=first.phase,
            log_tail=log_tail or first.traceback,
        )
