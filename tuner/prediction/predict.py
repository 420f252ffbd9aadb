"""Predictions of memory and speed for plans, before or after a cluster was measured; quotes and projections use them.

Intervals cover 95 % of the spread around the prediction: of a step's time log-normal, of a peak with the heavy tails
that P(fits) has. They hold the doubt about the constants and what the formulas get wrong from plan to plan; what other
jobs do to a shared cluster is not in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field, InstanceOf, computed_field

from meshtune.runners.measuring import COUNTED_STEPS
from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.checks import InvalidValue, Problem
from meshtune.search_spaces.columns import Columns, FloatColumn, IntColumn, columns_of
from meshtune.search_spaces.physics.calibration import UNCALIBRATED, Calibration, Measured
from meshtune.search_spaces.physics.estimate import estimate, estimate_memory, estimate_time
from meshtune.search_spaces.physics.estimates import (
    Estimates,
    MemoryEstimate,
    MemoryPart,
    TimeEstimate,
    TimePart,
    Training,
    usable_bytes,
)
from meshtune.search_spaces.physics.fitting import calibrate
from meshtune.search_spaces.physics.unknown_speeds import missing
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.spec import CampaignSpec, workload_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import Estimate

# 95 % lie within +- this: of the standard normal distribution, and of Student's t with 3 degrees of freedom.
WIDTH = 1.96
HEAVY_WIDTH = 3.182


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """Where the calibration of predictions comes from. calibrated: it contains a measurement or an out-of-memory
    verdict. campaign: its trials were learnt from; null for the defaults of the constants. learnt_from: the numbers of
    step times, memory peaks and out-of-memory verdicts."""

    __pydantic_config__ = ConfigDict(json_schema_serialization_defaults_required=True)

    calibration: Annotated[InstanceOf[Calibration], Field(exclude=True)] = UNCALIBRATED
    campaign: str | None = None
    # Seconds that the campaign's jobs took beside their steps.
    startup_s: Annotated[float | None, Field(exclude=True)] = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def calibrated(self) -> bool:
        return any(self.learnt_from.values())

    @computed_field  # type: ignore[prop-decorator]
    @property
    def learnt_from(self) -> dict[str, int]:
        return {name: getattr(self.calibration, name) for name in ("times", "memories", "ooms")}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def words(self) -> str:
        known = self.calibration
        if self.calibrated:
            times = f"{known.times} step times, {known.memories} memory peaks and {known.ooms} out-of-memory verdicts"
            return f"calibrated by {times} of {self.campaign}"
        defaults = "the constants are the defaults of docs/explanation/physics.md"
        prior = f"uncalibrated: {defaults}; nothing of this cluster was measured"
        return prior if self.campaign is None else f"{self.campaign} has no measurement to learn from, so {prior}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The predicted speed of a plan, with 95 % intervals. tokens_per_s: of the whole cluster. mfu: a share of the
    device's peak."""

    step_s: Estimate
    tokens_per_s: Estimate
    tflops_per_device: float
    mfu: float
    parts_s: Mapping[TimePart, float]

    @property
    def shares(self) -> dict[TimePart, float]:
        """Each part's share of the step."""
        return {part: seconds / self.step_s.value for part, seconds in self.parts_s.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One plan as predicted. p_fits: the probability that its peak is at most the device's memory. speed: null where
    facts about the cluster are missing."""

    plan: Plan
    plan_key: str
    p_fits: float
    peak_bytes: Estimate
    device_bytes: Annotated[int, Field(exclude=True)]
    memory_parts_bytes: Mapping[MemoryPart, float]
    speed: Speed | None

    @property
    def score(self) -> float:
        """Tokens per second times the probability to fit, as in `Predictions`; 0 without a speed."""
        return 0.0 if self.speed is None else self.speed.tokens_per_s.value * self.p_fits


@dataclass(frozen=True, slots=True)
class Predictions:
    """The predictions for many plans, row by row.

    time: None where facts about the cluster are missing. fits: the probability that each plan fits. score: the number
    that plans are ranked by: tokens per second times `fits`, which is the worth of a try; without times, one over the
    memory.
    """

    training: Training
    columns: Columns
    memory: MemoryEstimate
    time: TimeEstimate | None
    fits: FloatColumn
    score: FloatColumn

    def __len__(self) -> int:
        return len(self.columns["tp"])

    def best(self, count: int) -> IntColumn:
        """The rows of the best plans, the best first."""
        return np.argsort(-self.score, kind="stable")[:count]

    def of(self, row: int, plan: Plan) -> Prediction:
        """The prediction of the plan in this row."""
        peak, sd = float(self.memory.peak_bytes[row]), float(self.memory.log_sd[row])
        return Prediction(
            plan=plan,
            plan_key=plan.key,
            p_fits=float(self.fits[row]),
            peak_bytes=Estimate.around(peak, exp(HEAVY_WIDTH * sd)),
            device_bytes=self.training.cluster.device.memory_bytes,
            memory_parts_bytes={part: float(sizes[row]) for part, sizes in self.memory.parts.items()},
            speed=None if self.time is None else self._speed(self.time, row),
        )

    def _speed(self, time: TimeEstimate, row: int) -> Speed:
        training, factor = self.training, exp(WIDTH * float(time.log_sd[row]))
        estimates = Estimates(training, self.columns, self.memory, time)
        flops = float(estimates.model_flops_per_device[row])
        return Speed(
            step_s=Estimate.around(float(time.step_s[row]), factor),
            tokens_per_s=Estimate.around(float(estimates.tokens_per_s[row]), factor),
            tflops_per_device=flops / 1e12,
            mfu=flops / training.cluster.device.peak_flops[training.framework.dtype],
            parts_s={part: float(seconds[row]) for part, seconds in time.parts.items()},
        )


def training_of(spec: CampaignSpec) -> Training:
    """The model, cluster and training code of a spec."""
    return Training(spec.model, spec.cluster, workload_of(spec).framework)


def foresee(training: Training, columns: Columns, calibration: Calibration) -> Predictions:
    """The predictions for the plans of some columns; times only where all that they need is known."""
    memory = estimate_memory(training, columns, calibration)
    time = None if missing(training) else estimate_time(training, columns, calibration)
    fits = memory.fits(usable_bytes(training.cluster))
    if time is None:
        return Predictions(training, columns, memory, time, fits, 1.0 / memory.peak_bytes)
    tokens_per_s = Estimates(training, columns, memory, time).tokens_per_s
    return Predictions(training, columns, memory, time, fits, tokens_per_s * fits)


def learn(name: str, spec: CampaignSpec, trials: Sequence[Trial]) -> Basis:
    """The basis for predictions that a campaign's trials give. name: of the campaign, for people.

    Raises InvalidValue where a fact is missing that times depend on: there is nothing to compare them with.
    """
    training = training_of(spec)
    if problems := missing(training):
        raise InvalidValue([Problem(one.path, f"{one.message} (so {name} teaches nothing)") for one in problems])
    taught = [trial for trial in trials if trial.measurement is not None or trial.verdict is Verdict.OOM]
    if not taught:
        return Basis(campaign=name)
    estimates = estimate(training, columns_of([trial.plan for trial in taught]))
    return Basis(
        calibration=calibrate([(estimates, measured_rows(taught))]), campaign=name, startup_s=_startup_s(taught)
    )


def check_same(basis: CampaignSpec, spec: CampaignSpec) -> None:
    """Raises InvalidValue when the basis of one campaign does not hold for another spec (other device or code)."""
    learnt, wanted = training_of(basis), training_of(spec)
    devices = (learnt.cluster.device.name, wanted.cluster.device.name)
    frameworks = (learnt.framework.name, wanted.framework.name)
    problems = []
    if devices[0] != devices[1]:
        problems.append(Problem("cluster.device", f"was measured for {devices[0]}, but the spec has {devices[1]}"))
    if frameworks[0] != frameworks[1]:
        problems.append(Problem("workload", f"was measured for {frameworks[0]}, but the spec has {frameworks[1]}"))
    if problems:
        raise InvalidValue(problems)


def measured_rows(trials: Sequence[Trial]) -> Measured:
    """The outcomes of trials that were measured or ran out of memory, for `calibrate`."""
    found = [trial.measurement for trial in trials]
    peaks = [m and m.fullest_rank_bytes for m in found]
    return Measured(
        step_time_s=np.array([np.nan if m is None else m.step_time_s for m in found]),
        peak_memory_bytes=np.array([peak or np.nan for peak in peaks], dtype=np.float64),
        oom=np.array([m is None for m in found], dtype=np.bool_),
    )


def _startup_s(trials: Sequence[Trial]) -> float | None:
    """The median of what a measured job took beside its steps."""
    beside = []
    for trial in trials:
        measured, ran_s = trial.measurement, trial.last.running_s
        if measured is not None and ran_s > 0:
            profiled = 0 if measured.profile is None else len(measured.profile.own_times_s[0])
            steps_s = sum(measured.step_times_s) + sum(measured.warmup_times_s)
            steps_s += (COUNTED_STEPS + profiled) * measured.step_time_s
            beside.append(max(0.0, ran_s - steps_s))
    return float(np.median(beside)) if beside else None
