"""The simulated workload: a training code in name only, whose jobs the simulated runner measures by arithmetic.

Its job file (`simulated.json`, version 1) says what would be trained, how and where. Nothing is ever executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import prod
from pathlib import Path
from typing import Any

from meshtune.runners.base import JobSpec, JobStatus
from meshtune.runners.documents import read_value
from meshtune.runners.json_files import read_versioned, render_versioned
from meshtune.runners.outcome import Outcome
from meshtune.runners.programs.megatron.options import MegatronOptions
from meshtune.runners.programs.megatron.rules import capabilities_of
from meshtune.runners.programs.table import capabilities, table_of
from meshtune.runners.programs.workloads.base import JobRequest, Workload, outcome_without_result
from meshtune.runners.programs.workloads.torch import TorchWorkload
from meshtune.runners.trainer.job import Measuring
from meshtune.search_spaces.checks import Closed, Positive, Problem, did_you_mean
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import Capabilities
from meshtune.search_spaces.knob_values import word
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.physics.framework_profiles import FRAMEWORKS, FrameworkProfile
from meshtune.search_spaces.physics.recipes import with_recipe
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import ContextParallel, Plan
from meshtune.search_spaces.recipe import PLAIN, Recipe

TABLE = table_of("meshtune.runners.programs.simulated")
JOB_FILE = "simulated.json"
JOB_VERSION = 1
# No such program exists: a runner that starts it all the same fails, and its log names the reason.
COMMAND = ("meshtune-simulated-jobs-run-on-the-simulated-runner-only",)


class Code(StrEnum):
    """The training code that is played."""

    MEGATRON_DEEPSPEED = "megatron-deepspeed"
    MEGATRON_DEEPSPEED_FLASH = "megatron-deepspeed-flash"
    MEGATRON_CORE = "megatron-core"
    NANOTRON = "nanotron"
    OPTIMUS = "optimus"
    OPTIMUS_EP_UNAWARE = "optimus-ep-unaware"
    FSDP = "fsdp"
    TRAINER = "trainer"

    @property
    def framework(self) -> FrameworkProfile:
        own = TABLE.lists["physics"].get(self, {})
        return replace(FRAMEWORKS[own.get("of", self)], **own.get("but", {}))

    @property
    def capabilities(self) -> Capabilities:
        """What it can run, as its documentation says; of the programs that are run here, what they can."""
        match self:
            case Code.MEGATRON_CORE:
                return capabilities_of(MegatronOptions())
            case Code.TRAINER:
                return TorchWorkload({}).capabilities
        return capabilities(TABLE, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob(Closed):
    """One run of `model` under `plan` on `cluster`, by this training code.

    incumbent_step_time_s: the run ends as PRUNED once it is surely slower than this. time_factor, memory_factor: what
    its knobs make of both."""

    model: ModelSpec
    plan: Plan
    cluster: ClusterSpec
    recipe: Recipe = PLAIN
    code: Code = Code.MEGATRON_DEEPSPEED
    incumbent_step_time_s: Positive | None = None
    measuring: Measuring = field(default_factory=Measuring)
    time_factor: Positive = 1.0
    memory_factor: Positive = 1.0

    @property
    def training(self) -> Training:
        return Training(self.model, self.cluster, with_recipe(self.code.framework, self.recipe), self.recipe)


def render_job(job: SimulatedJob) -> str:
    return render_versioned(job, JOB_VERSION)


def parse_job(text: str) -> SimulatedJob:
    """The job that a file's text describes. Raises ValueError, whose message names the field."""
    return read_versioned(SimulatedJob, text, JOB_VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect(Closed):
    """How many times as long a step takes with a value of a knob, and as much memory it needs."""

    time: Positive = 1.0
    memory: Positive = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedOptions(Closed):
    """framework: the training code that is played. contexts: kinds of context parallelism that it is taken to have
    besides its own. measuring: how the built-in trainer would measure it. effects: of knobs' values, by the knob's name
    and the value's word; other values change nothing."""

    framework: Code = Code.MEGATRON_DEEPSPEED
    contexts: frozenset[ContextParallel] = frozenset()
    measuring: Measuring = field(default_factory=Measuring)
    effects: dict[str, dict[str, Effect]] = field(default_factory=dict)


class SimulatedWorkload(Workload):
    """Describes jobs for the simulated runner. Raises InvalidValue for wrong options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = read_value(SimulatedOptions, {**options, **_worded(options)})

    @property
    def capabilities(self) -> Capabilities:
        own = self._options.framework.capabilities
        return replace(own, contexts=own.contexts | self._options.contexts)

    @property
    def framework(self) -> FrameworkProfile:
        return self._options.framework.framework

    def problems_with_names(self, knobs: KnobSet) -> list[Problem]:
        """Knobs of any kind may be told, since nobody is there to hear; `effects` may name no others."""
        found = []
        for name, values in self._options.effects.items():
            if (knob := knobs.named(name)) is None:
                found.append(Problem(f"effects.{name}", f"is no knob of the spec; {did_you_mean(name, knobs.names)}"))
                continue
            known = [word(value) for value in knob.values]
            unknown = [value for value in values if value not in known]
            found += [
                Problem(f"effects.{name}.{value}", f"is no value of the knob; {did_you_mean(value, known)}")
                for value in unknown
            ]
        return found

    def job(self, request: JobRequest) -> JobSpec:
        """The job's file. `seed`, of weights and data, changes nothing about it; the runner has a seed of its own."""
        pairs = ((self._options.effects.get(name, {}), word(value)) for name, value in request.plan.knobs.items())
        effects = [known[value] for known, value in pairs if value in known]
        job = SimulatedJob(
            model=request.model,
            plan=request.plan,
            recipe=request.recipe,
            cluster=request.cluster,
            code=self._options.framework,
            incumbent_step_time_s=request.incumbent_step_time_s,
            measuring=self._options.measuring,
            time_factor=prod(effect.time for effect in effects),
            memory_factor=prod(effect.memory for effect in effects),
        )
        return request.job(COMMAND, {JOB_FILE: render_job(job)})

    def read_without_result(self, directory: Path, status: JobStatus) -> Outcome:
        return outcome_without_result(status, "")


def _worded(options: Mapping[str, Any]) -> dict[str, Any]:
    """The effects with values as words: a document may have true, false and numbers there."""
    effects = options.get("effects")
    if not isinstance(effects, Mapping):
        return {}
    return {
        "effects": {
            name: {word(value): effect for value, effect in values.items()} if isinstance(values, Mapping) else values
            for name, values in effects.items()
        }
    }
