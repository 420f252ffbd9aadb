"""Predictions of memory and speed for plans, before or after a cluster was measured; quotes and projections use them.

Intervals cover 95 % of the spread around the prediction: of a step's time log-normal, of a peak with the heavy tails
that P(fits) has. They hold the doubt about the constants and what the formulas get wrong from plan to plan; what other
jobs do to a shared cluster is not in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import exp
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field, InstanceOf, computed_field

from meshtune.runners.measuring import COUNTED_STEPS
from meshtune.runners.outcome import Verdict
from meshtune.runners.trainer_answers import ExactPeak
from meshtune.runners.trainer_client import exact_peaks
from meshtune.search_spaces.checks import Checks, InvalidValue
from meshtune.search_spaces.columns import Columns, FloatColumn, IntColumn, columns_of, rows
from meshtune.search_spaces.knobs import sized
from meshtune.search_spaces.physics import estimate as formulas
from meshtune.search_spaces.physics.constants import UNCALIBRATED, Calibration
from meshtune.search_spaces.physics.fitting import Measured, calibrate
from meshtune.search_spaces.physics.memory import MemoryPart, loaded_bytes, offloaded_bytes
from meshtune.search_spaces.physics.recipes import with_recipe
from meshtune.search_spaces.physics.timing import TimePart
from meshtune.search_spaces.physics.training import MODEL_UNKNOWN, Training, missing, usable_bytes
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.calibration import StoredCalibration
from meshtune.tuner.campaign.spec import CampaignSpec, job_of, workload_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import Estimate

# 95 % lie within +- this: of the standard normal distribution, and of Student's t with 3 degrees of freedom.
WIDTH = 1.96
HEAVY_WIDTH = 3.182


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The stored calibration that predictions start from. campaign: whose trials it was fitted to. version: of the
    framework then; empty where unknown. model, devices: measured with. believed: the share of it that holds for the
    release that is asked about."""

    campaign: str
    created_at: datetime
    trials: int
    version: str
    model: str
    devices: int
    believed: float

    def __str__(self) -> str:
        words = (
            f"{self.trials} trials of {self.model} on {self.devices} devices{f', {self.version}' * bool(self.version)}"
        )
        widened = "" if self.believed == 1 else f"; another release, so {self.believed:.0%} of it is believed"
        return f"{self.campaign} ({self.created_at:%Y-%m-%d %H:%M} UTC, {words}{widened})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """Where the calibration of predictions comes from. calibrated: it contains a measurement or an out-of-memory
    verdict. anchor: the stored calibration that it starts from; null for the defaults of the constants. campaign: its
    trials were learnt from besides; null for none. learnt_from: the numbers of step times, memory peaks and
    out-of-memory verdicts. subject: the device and the training code. error_factor: 95 % of the times are expected to
    be off by less than this factor, as judged for the best plan; null where no times are predicted."""

    __pydantic_config__ = ConfigDict(json_schema_serialization_defaults_required=True)

    calibration: Annotated[InstanceOf[Calibration], Field(exclude=True)] = UNCALIBRATED
    anchor: Anchor | None = None
    campaign: str | None = None
    # Seconds that the campaign's jobs took beside their steps.
    startup_s: Annotated[float | None, Field(exclude=True)] = None
    subject: str = ""
    error_factor: float | None = None
    learnt_from: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A basis that was read back from JSON has no calibration, and knows what it was learnt from all the same.
        counts = {name: getattr(self.calibration, name) for name in ("times", "memories", "ooms")}
        if any(counts.values()) or not self.learnt_from:
            object.__setattr__(self, "learnt_from", counts)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def calibrated(self) -> bool:
        return any(self.learnt_from.values())

    @computed_field  # type: ignore[prop-decorator]
    @property
    def words(self) -> str:
        scatter = ""
        if self.error_factor is not None:
            off = "95 % of times are within" if self.calibrated else "times may be off by"
            scatter = f"{off} a factor of {self.error_factor:.2f}"
        if self.calibrated:
            times = "{times} step times, {memories} memory peaks and {ooms} out-of-memory verdicts".format(
                **self.learnt_from
            )
            sources = [f"by {times}", *([f"of {self.campaign}"] if self.campaign else [])]
            sources += [] if self.anchor is None else [f"{'on top of' if self.campaign else 'of'} {self.anchor}"]
            return "; ".join(["calibrated " + " ".join(sources), *([scatter] if scatter else [])])
        scatter = scatter or "the constants are the defaults of docs/explanation/physics.md"
        nothing = f"nothing was measured of {self.subject or 'this cluster'}"
        prior = f"uncalibrated: {nothing}: {scatter} (run `meshtune calibrate`)"
        return prior if self.campaign is None else f"{self.campaign} has no measurement to learn from, so {prior}"

    def judged(self, training: Training, speeds: Iterable[Speed | None]) -> Basis:
        """With its subject and its error factor: the widest interval of these predictions."""
        factors = [speed.step_s.high / speed.step_s.value for speed in speeds if speed is not None]
        subject = f"{training.cluster.device.name} and {training.framework.name}"
        return replace(self, subject=subject, error_factor=max(factors, default=None))


def basis_of(stored: StoredCalibration | None, training: Training, version: str = "") -> Basis:
    """The basis for predictions that a stored calibration gives; None: the constants' defaults. version: the
    framework's, see `StoredCalibration.believed`."""
    if stored is None:
        return Basis()
    anchor = Anchor(
        campaign=stored.campaign,
        created_at=datetime.fromtimestamp(stored.created_at, UTC),
        trials=stored.trials,
        version=stored.version,
        model=stored.model,
        devices=stored.devices,
        believed=stored.believed(version),
    )
    return Basis(calibration=stored.holding_for(training, version), anchor=anchor)


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
        return {part: seconds / self.step_s.value for part, seconds in self.parts_s.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One plan as predicted. p_fits: the probability that its peak is at most the device's memory. host_*_bytes: of a
    node, for an optimizer that is offloaded, and where each rank reads a whole checkpoint. speed: null where facts
    about the cluster are missing."""

    plan: Plan
    plan_key: str
    p_fits: float
    peak_bytes: Estimate
    device_bytes: int
    memory_parts_bytes: Mapping[MemoryPart, float]
    host_optimizer_bytes: float
    host_loading_bytes: float
    speed: Speed | None

    @property
    def score(self) -> float:
        """Tokens per second times the probability to fit, as in `Predictions`; 0 without a speed."""
        return 0.0 if self.speed is None else self.speed.tokens_per_s.value * self.p_fits


@dataclass(frozen=True, slots=True)
class Predictions:
    """The predictions for many plans, row by row.

    time: None where facts about the cluster are missing. fits: the probability that each plan fits. score: the number
    that plans are ranked by: tokens per second, of the job or of one device, times `fits`, which is the worth of a try;
    without times, one over the memory.
    """

    training: Training
    columns: Columns
    memory: formulas.MemoryEstimate
    time: formulas.TimeEstimate | None
    fits: FloatColumn
    score: FloatColumn

    def best(self, count: int) -> IntColumn:
        return np.argsort(-self.score, kind="stable")[:count]

    def of(self, row: int, plan: Plan) -> Prediction:
        peak, sd = float(self.memory.peak_bytes[row]), float(self.memory.log_sd[row])
        return Prediction(
            plan=plan,
            plan_key=plan.key,
            p_fits=float(self.fits[row]),
            peak_bytes=Estimate.around(peak, exp(HEAVY_WIDTH * sd)),
            device_bytes=self.training.cluster.device.memory_bytes,
            memory_parts_bytes={part: float(sizes[row]) for part, sizes in self.memory.parts.items()},
            host_optimizer_bytes=float(offloaded_bytes(self.training, rows(self.columns, slice(row, row + 1)))[0]),
            host_loading_bytes=loaded_bytes(self.training),
            speed=None if self.time is None else self._speed(self.time, row),
        )

    def _speed(self, time: formulas.TimeEstimate, row: int) -> Speed:
        training, factor = self.training, exp(WIDTH * float(time.log_sd[row]))
        estimates = formulas.Estimates(training, self.columns, self.memory, time)
        flops = float(estimates.model_flops_per_device[row])
        return Speed(
            step_s=Estimate.around(float(time.step_s[row]), factor),
            tokens_per_s=Estimate.around(float(estimates.tokens_per_s[row]), factor),
            tflops_per_device=flops / 1e12,
            mfu=flops / training.cluster.device.peak_flops[training.framework.dtype],
            parts_s={part: float(seconds[row]) for part, seconds in time.parts.items()},
        )


def training_of(spec: CampaignSpec, plan: Plan | None = None) -> Training:
    """plan: as in `workload_of`."""
    framework = with_recipe(workload_of(spec, plan).framework, spec.training)
    return Training(spec.model, spec.cluster, framework, spec.training)


def foresee(training: Training, columns: Columns, calibration: Calibration, *, per_device: bool = False) -> Predictions:
    """The predictions for the plans of some columns; times only where all that they need is known. per_device: plans of
    different sizes are ranked by what one device does, not by the whole job. Raises InvalidValue without a model."""
    if not training.model.known:
        raise InvalidValue(missing(training))
    memory = formulas.estimate_memory(training, columns, calibration)
    time = None if missing(training) else formulas.estimate_time(training, columns, calibration)
    fits = memory.fits(usable_bytes(training))
    if time is None:
        return Predictions(training, columns, memory, time, fits, 1.0 / memory.peak_bytes)
    tokens_per_s = formulas.Estimates(training, columns, memory, time).tokens_per_s
    devices = columns["tp"] * columns["pp"] * columns["cp"] * columns["dp"] if per_device else 1
    return Predictions(training, columns, memory, time, fits, tokens_per_s * fits / devices)


def foresee_plan(spec: CampaignSpec, plan: Plan, basis: Basis) -> tuple[Predictions | None, str]:
    """The outlook of one plan; or None and the reason, where its shapes are unknown or make no sense."""
    if not spec.model.known:
        return None, f"the model {MODEL_UNKNOWN}"
    if plan.world_size != sized(spec.cluster, plan).devices:
        return None, f"it is for {plan.world_size} devices, and the cluster has {spec.cluster.devices}"
    with np.errstate(all="ignore"):
        columns = columns_of([plan])
        own = foresee(training_of(spec, plan), columns, basis.calibration, per_device=spec.objective.per_device)
    numbers = [own.memory.peak_bytes, own.memory.log_sd, own.score]
    numbers += [] if own.time is None else [own.time.step_s, own.time.log_sd]
    if not all(np.isfinite(column[0]) for column in numbers):
        return None, "the formulas do not hold for its shapes"
    return own, ""


def learn(name: str, spec: CampaignSpec, trials: Sequence[Trial], start: Basis = Basis()) -> Basis:
    """The basis for predictions that a campaign's trials give. name: of the campaign, for people. start: the prior, a
    stored calibration by other trials than these.

    Raises InvalidValue where a fact is missing that times depend on: there is nothing to compare them with.
    """
    training = training_of(spec)
    if problems := missing(training):
        follows = f" (so the trials of {name} calibrate no prediction)"
        raise InvalidValue([*problems[:-1], replace(problems[-1], message=problems[-1].message + follows)])
    taught = [trial for trial in trials if trial.measurement is not None or trial.verdict is Verdict.OOM]
    if not taught:
        return replace(start, campaign=name)
    by_code: dict[str, list[Trial]] = {}
    for trial in taught:
        by_code.setdefault(training_of(spec, trial.plan).framework.name, []).append(trial)
    rows = []
    for alike in by_code.values():
        plans = [trial.plan for trial in alike]
        rows.append((formulas.estimate(training_of(spec, plans[0]), columns_of(plans)), measured_rows(alike)))
    learnt = calibrate(rows, start.calibration)
    return replace(start, calibration=learnt, campaign=name, startup_s=_startup_s(taught))


def check_same(basis: CampaignSpec, spec: CampaignSpec) -> None:
    """Raises InvalidValue when the basis of one campaign does not hold for another spec (other device or code)."""
    learnt, wanted = training_of(basis), training_of(spec)
    checks = Checks()
    for path, old, new in (
        ("cluster.device", learnt.cluster.device.name, wanted.cluster.device.name),
        ("workload", learnt.framework.name, wanted.framework.name),
    ):
        checks.require(old == new, path, f"was measured for {old}, but the spec has {new}")
    checks.done()


def measured_rows(trials: Sequence[Trial]) -> Measured:
    """The outcomes of trials that were measured or ran out of memory, for `calibrate`."""
    measured = [trial.measurement for trial in trials]
    peaks = [m and m.fullest_rank_bytes for m in measured]
    return Measured(
        step_time_s=np.array([np.nan if m is None else m.step_time_s for m in measured]),
        peak_memory_bytes=np.array([peak or np.nan for peak in peaks], dtype=np.float64),
        oom=np.array([m is None for m in measured], dtype=np.bool_),
    )


def _startup_s(trials: Sequence[Trial]) -> float | None:
    """The median of what a measured job took beside its steps, compiling included: a trial costs it."""
    beside = []
    for trial in trials:
        measured, ran_s = trial.measurement, trial.last.running_s
        if measured is not None and ran_s > 0:
            profiled = 0 if measured.profile is None else len(measured.profile.own_times_s[0])
            steps_s = sum(measured.step_times_s) + sum(measured.warmup_times_s)
            steps_s += (COUNTED_STEPS + profiled) * measured.step_time_s
            beside.append(max(0.0, ran_s - steps_s))
    return float(np.median(beside)) if beside else None


@dataclass(frozen=True, slots=True)
class ExactMemory:
    """The peaks of some ranks under a plan, exact to the tensor for the built-in trainer (see `runners.trainer.exact`,
    which also says what is not counted). memory_bytes: of one device."""

    plan: Plan
    memory_bytes: int
    peaks: tuple[ExactPeak, ...]


def estimate_exactly(
    spec: CampaignSpec, plan: Plan, ranks: Sequence[int], progress: Callable[[float, float], None]
) -> ExactMemory:
    """The exact peaks of `ranks`, by default of one rank per kind of stage.

    progress: as in `exact_peaks`. Raises InvalidValue for a plan or a workload without exact peaks.
    """
    # Nothing is written or run there: the text of the job is the input of the estimate.
    job = job_of(spec, plan, "estimate", Path(), workload_of(spec, plan))
    return ExactMemory(plan, spec.cluster.device.memory_bytes, tuple(exact_peaks(job, ranks, progress=progress)))
