"""The hidden cluster: what a simulated job would measure, by the physics under constants that nobody is told.

A seed makes one cluster. It differs from what `search_spaces.physics.estimate` expects of it in every constant, by
contention between nodes, and by a smooth function of tp, pp and micro-batch size that no formula has; and from run to
run by noise and by nodes that fail. So a search that knows the physics has something left to learn."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp

import numpy as np

from meshtune.runners.base import JobState
from meshtune.runners.hardware import MAX_TEXT, HardwareKind
from meshtune.runners.measuring import is_surely_slower
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.runners.programs.workloads.simulated import SimulatedJob
from meshtune.runners.step_breakdown import Part, Profile
from meshtune.search_spaces.checks import Amount, Chance, Closed, Natural, Share, Some
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import DEFAULTS, PRIOR_LOG_SD, Constants
from meshtune.search_spaces.physics.memory import MemoryPart, memory_parts
from meshtune.search_spaces.physics.recipes import flops_per_token
from meshtune.search_spaces.physics.timing import TimePart, time_parts
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan

# How far the hidden cluster is from the physics, beyond its constants: standard deviations of logarithms.
TIME_RESIDUAL_LOG_SD = 0.06
MEMORY_RESIDUAL_LOG_SD = 0.04
# A transfer between nodes takes 1 + contention * (its share of the step) times as long; drawn around this.
CONTENTION, CONTENTION_LOG_SD = 0.5, 0.3
MOST_SDS = 2.0
# Of the residual: cosines with random directions and phases (Rahimi and Recht 2007), `WAVE` radians per doubling.
FEATURES, WAVE = 16, 0.8
# Of a run: what is dropped as warm-up.
STARTUP_S, WARMUP_STEPS, FIRST_STEP_FACTOR = 60.0, 2, 1.5
SIMULATED = "simulated: nothing was run; the numbers come from the physics under hidden constants"
_PART = {part: Part(str(part)) if part in {*Part} else Part.COMPUTE for part in TimePart}


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenClusterOptions(Closed):
    """The hidden cluster, and how it runs jobs."""

    # Choice of the hidden cluster.
    seed: Natural = 0
    # Standard deviation of the logarithm of step times, once per run and again per step.
    noise: Share = 0.02
    # Share of the jobs that lose a node before their result (`lost`, tried again).
    fault_rate: Chance = 0.0
    # Duration of a job by the clock on the wall.
    seconds_per_trial: Amount = 0.0
    # Jobs that run at once, each on a cluster of its own.
    slots: Some = 4


@dataclass(frozen=True, slots=True)
class Truth:
    """What one plan really costs: seconds per step by part, and bytes by part at the fullest rank."""

    time: Mapping[TimePart, float]
    memory: Mapping[MemoryPart, float]

    @property
    def step_s(self) -> float:
        return sum(self.time.values())

    @property
    def peak_bytes(self) -> float:
        return sum(self.memory.values())

    def times(self, time: float, memory: float) -> Truth:
        """The same, so many times as much of each."""
        return Truth(
            {part: value * time for part, value in self.time.items()},
            {part: value * memory for part, value in self.memory.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a job ends: in this state, after this share of its time on the cluster, with a result file or none."""

    state: JobState
    reason: str = ""
    exit_code: int | None = None
    share: float = 1.0
    outcome: Outcome | None = None


def truth(training: Training, plan: Plan, seed: int) -> Truth:
    constants, columns = hidden_constants(seed), columns_of([plan])
    times = {part: float(value[0]) for part, value in time_parts(training, columns, constants).items()}
    memory = {part: float(value[0]) for part, value in memory_parts(training, columns, constants).items()}
    slower = _contention(times, plan, training.cluster.devices_per_node, seed)
    by_time = exp(_residual(plan, seed, "time", TIME_RESIDUAL_LOG_SD))
    by_memory = exp(_residual(plan, seed, "memory", MEMORY_RESIDUAL_LOG_SD))
    return Truth(
        {part: value * slower.get(part, 1.0) * by_time for part, value in times.items()},
        {part: value * by_memory for part, value in memory.items()},
    )


def hidden_constants(seed: int) -> Constants:
    drawn = {}
    for name, log_sd in PRIOR_LOG_SD.items():
        value = getattr(DEFAULTS, name) * exp(log_sd * _normal(seed, "constant", name))
        drawn[name] = min(value, 1.0) if name.endswith("_efficiency") else value
    return Constants(**drawn)


def run(job: SimulatedJob, name: str, time_limit_s: float, options: HiddenClusterOptions) -> Ending:
    """How the job of this name ends; each name has noise and faults of its own. The limit is on simulated time."""
    rng = _rng(options.seed, "run", name)
    if rng.random() < options.fault_rate:
        node = f"{job.cluster.name}-{rng.integers(job.cluster.nodes):05d}"
        return Ending(state=JobState.LOST, reason=f"simulated: node {node} failed", share=float(rng.random()))
    true = truth(job.training, job.plan, options.seed).times(job.time_factor, job.memory_factor)
    if true.peak_bytes > job.cluster.device.memory_bytes:
        return _out_of_memory(job, true)
    return _measured(job, true, time_limit_s, options, rng)


def _out_of_memory(job: SimulatedJob, true: Truth) -> Ending:
    """States that do not fit fail when they are made, the rest in a step."""
    memory_bytes = job.cluster.device.memory_bytes
    states = sum(true.memory.get(part, 0.0) for part in (MemoryPart.WEIGHTS, MemoryPart.GRADIENTS, MemoryPart.BUFFERS))
    with_optimizer = states + true.memory.get(MemoryPart.OPTIMIZER, 0.0)
    phase = "init" if states > memory_bytes else "optimizer" if with_optimizer > memory_bytes else "backward"
    reason = f"simulated: out of memory in {phase} on a device of {memory_bytes / 2**30:.1f} GiB"
    outcome = Outcome(verdict=Verdict.OOM, reason=reason, phase=phase)
    return Ending(state=JobState.FAILED, reason=reason, exit_code=1, share=0.1, outcome=outcome)


def _measured(
    job: SimulatedJob, true: Truth, time_limit_s: float, options: HiddenClusterOptions, rng: np.random.Generator
) -> Ending:
    noise, device = options.noise, job.cluster.device
    run_s = true.step_s * exp(noise * rng.standard_normal())
    warmup = [run_s * FIRST_STEP_FACTOR, *(run_s for _ in range(WARMUP_STEPS - 1))]
    steps: list[float] = []
    pruned = False
    while not job.measuring.enough(steps) and not pruned:
        steps.append(run_s * exp(noise * rng.standard_normal()))
        pruned = job.incumbent_step_time_s is not None and is_surely_slower(steps, job.incumbent_step_time_s)
        if STARTUP_S + sum(warmup) + sum(steps) > time_limit_s:
            done = f"{len(warmup) + len(steps) - 1} steps of {run_s:.4g} s each are done then"
            reason = f"simulated: would have run longer than its time limit of {time_limit_s:g} s; {done}"
            return Ending(state=JobState.TIMED_OUT, reason=reason)
    measurement = Measurement(
        step_times_s=tuple(steps),
        warmup_times_s=tuple(warmup),
        tokens_per_step=job.plan.global_batch_size * job.model.seq_len,
        devices=job.plan.world_size,
        model_flops_per_token=flops_per_token(job.model, job.recipe),
        peak_flops_per_device=job.cluster.device.peak_flops.get(job.code.framework.dtype),
        peak_memory_bytes=(round(true.peak_bytes),),
        profile=None if pruned else _profile(true, run_s),
        # Another seed is another cluster, which measurements must tell apart as they do real software.
        software={"hidden cluster": str(options.seed)},
        knobs=job.plan.knobs,
        hardware=(HardwareKind(device=device.name[:MAX_TEXT], memory_bytes=device.memory_bytes, driver="simulated"),),
    )
    if pruned:
        outcome = Outcome(verdict=Verdict.PRUNED, partial=measurement, reason=SIMULATED)
    else:
        outcome = Outcome(verdict=Verdict.OK, measurement=measurement, reason=SIMULATED)
    return Ending(state=JobState.SUCCEEDED, exit_code=0, outcome=outcome)


def _profile(true: Truth, run_s: float) -> Profile:
    """Of the slowest rank, as the only one."""
    parts = dict.fromkeys(map(str, Part), 0.0)
    for part, value in true.time.items():
        parts[str(_PART[part])] += value * run_s / true.step_s
    own = parts[str(Part.COMPUTE)] + parts[str(Part.OPTIMIZER)]
    return Profile(step_time_s=run_s, parts_s=(parts,), waiting_s=({},), own_times_s=((own,),), stages=(0,))


def _contention(times: Mapping[TimePart, float], plan: Plan, devices_per_node: int, seed: int) -> dict[TimePart, float]:
    """How much longer transfers between nodes take. Ranks are laid out with tp fastest, then cp, dp and pp."""
    extent = {
        TimePart.TP: plan.tp,
        TimePart.CP: plan.tp * plan.cp,
        TimePart.EP: plan.tp * plan.cp * plan.ep,
        TimePart.DP: plan.tp * plan.cp * plan.dp,
        TimePart.SEND_RECEIVE: plan.world_size,
    }
    crossing = [part for part, ranks in extent.items() if ranks > devices_per_node]
    share = sum(times[part] for part in crossing) / sum(times.values())
    strength = CONTENTION * exp(CONTENTION_LOG_SD * _normal(seed, "contention"))
    return dict.fromkeys(crossing, 1.0 + strength * share)


def _residual(plan: Plan, seed: int, what: str, log_sd: float) -> float:
    """A smooth random function of the plan, of this standard deviation over seeds."""
    rng = _rng(seed, "residual", what)
    directions = rng.normal(0.0, WAVE, (FEATURES, 3))
    phases = rng.uniform(0.0, 2.0 * np.pi, FEATURES)
    at = np.log2([plan.tp, plan.pp, plan.micro_batch_size])
    return log_sd * float(np.sqrt(2.0 / FEATURES) * np.cos(directions @ at + phases).sum())


def _normal(seed: int, *what: str) -> float:
    """A standard normal number of this cluster, cut at MOST_SDS."""
    return float(np.clip(_rng(seed, *what).standard_normal(), -MOST_SDS, MOST_SDS))


def _rng(seed: int, *what: str) -> np.random.Generator:
    """Random numbers for one purpose: what is drawn for another never shifts them."""
    digest = hashlib.sha256(repr((seed, *what)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))
