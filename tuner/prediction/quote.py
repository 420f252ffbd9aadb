"""A quote of a campaign before it runs: the legal plans, their fit, the fastest of them and the cost of all trials.

And why one plan is not the best: the rules it breaks, its memory, and the parts of its step that take longer. For any
plan that can be written down, legal or not. Predicted, never measured; `basis` says what the predictions rest on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshtune.runners.measuring import StepCounts, step_counts
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.columns import FloatColumn, IntColumn, Violation, columns_of
from meshtune.search_spaces.knobs import sized
from meshtune.search_spaces.physics.timing import TimePart
from meshtune.search_spaces.physics.training import missing
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Counts, Space
from meshtune.tuner.campaign.second_runs import second_run_counts
from meshtune.tuner.campaign.spec import CampaignSpec, job_of
from meshtune.tuner.prediction.memory_needs import SURE, memory_needs
from meshtune.tuner.prediction.predict import Basis, Prediction, Predictions, foresee, training_of

TOP = 10
# Seconds that a job takes beside its steps (processes, imports, groups, weights) where no campaign was measured.
# CPU: what is left of `make demo`'s 6.5 s per trial (benchmarks/log.md) without its steps. Others: a round guess.
STARTUP_S: Mapping[DeviceKind, float] = {DeviceKind.CPU: 5.0, DeviceKind.CUDA: 30.0, DeviceKind.XPU: 30.0}
# The edges of the classes that plans are counted in by their probability to fit.
LIKELY, UNLIKELY = 0.5, 0.1
PART_WORDS: dict[TimePart, str] = {
    TimePart.COMPUTE: "computation",
    TimePart.RECOMPUTE: "recomputation",
    TimePart.TP: "tensor-parallel communication",
    TimePart.CP: "context-parallel communication",
    TimePart.EP: "expert-parallel communication",
    TimePart.SEND_RECEIVE: "sending between stages",
    TimePart.BUBBLE: "pipeline bubble",
    TimePart.DP: "data-parallel communication",
    TimePart.OPTIMIZER: "optimizer",
}
# Differences below this share of the compared step are left out.
MIN_SHARE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCounts:
    """Legal plans by their probability to fit the device's memory. expected: the sum of the probabilities; sure: plans
    with at least 0.9; likely: 0.5 to 0.9; unlikely: 0.1 to 0.5; hopeless: below 0.1."""

    expected: float
    sure: int
    likely: int
    unlikely: int
    hopeless: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Two ends without a value between them."""

    low: float
    high: float

    def times(self, factor: float) -> Range:
        return Range(low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignCost:
    """The cost of all trials of a campaign, if the search does not end it sooner. trials: allowed by the spec and
    present in the space, second runs of the best included. steps: the fewest and the most of one trial; null where its
    job does not limit them or times cannot be predicted. startup_s: of each trial beside its steps. ends_before: budget
    limits that may end the campaign before its last trial.

    low: every trial takes the fewest steps; high: the most. Each is for the cheaper (or dearer) of two campaigns: one
    tries the plans predicted best, one draws plans evenly from the space. Plans that do not fit cost their start alone.
    Not included: waiting in a queue, lost attempts, trials that end early.
    """

    trials: int
    steps: tuple[int, int] | None
    startup_s: float
    trial_s: Range
    device_hours: Range
    wall_s: Range
    ends_before: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFact:
    """A fact about the cluster that times depend on, by its path in the spec."""

    path: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """Predictions for a campaign before it runs. space: combinations of layouts spanned, legal layouts, and how many
    combinations each rule rejects (they overlap). plans: legal layouts times what their knobs can be, of whose effects
    nothing is predicted. memory_needs: why recomputation was opened, and where no plan fits with 90 % what would help,
    the smallest change first, each tried. best: the layouts predicted best by tokens per second times the probability
    to fit. missing: where not empty, no times can be predicted."""

    name: str
    model: str
    cluster: str
    devices: int
    device: str
    framework: str
    space: Counts
    plans: int
    fit: FitCounts
    memory_needs: tuple[str, ...]
    best: tuple[Prediction, ...]
    cost: CampaignCost
    missing: tuple[MissingFact, ...]
    basis: Basis


def make_quote(spec: CampaignSpec, space: Space, basis: Basis) -> Quote:
    training = training_of(spec)
    outlook = foresee(training, space.columns, basis.calibration, per_device=spec.objective.per_device)
    cluster = spec.cluster
    best = tuple(outlook.of(int(row), space[int(row)]) for row in outlook.best(TOP))
    return Quote(
        name=spec.name,
        model=spec.model.name,
        cluster=cluster.name,
        devices=cluster.devices,
        device=cluster.device.name,
        framework=training.framework.name,
        space=space.counts,
        plans=space.plans,
        fit=count_fits(outlook.fits),
        memory_needs=memory_needs(space, training, basis.calibration),
        best=best,
        cost=predict_cost(spec, space, outlook, basis),
        missing=tuple(MissingFact(path=one.path, message=one.message) for one in missing(training)),
        basis=basis.judged(training, [best[0].speed]),
    )


def count_fits(fits: FloatColumn) -> FitCounts:
    return FitCounts(
        expected=float(np.sum(fits)),
        sure=int(np.sum(fits >= SURE)),
        likely=int(np.sum((fits >= LIKELY) & (fits < SURE))),
        unlikely=int(np.sum((fits >= UNLIKELY) & (fits < LIKELY))),
        hopeless=int(np.sum(fits < UNLIKELY)),
    )


def predict_cost(spec: CampaignSpec, space: Space, outlook: Predictions, basis: Basis) -> CampaignCost:
    """The cost of the spec's trials; from a mere start to the time limit each where steps or times are unknown."""
    there = space.plans + (spec.baseline is not None and spec.baseline not in space)
    chosen = min(spec.budget.trials or there, there)
    trials, most = (chosen + again for again in second_run_counts(spec, chosen))
    startup_s = STARTUP_S[spec.cluster.device.kind] if basis.startup_s is None else basis.startup_s
    # Nothing is written or run there: the text of the job says how long it measures.
    counts = step_counts(job_of(spec, space[0], "quote", Path()))
    devices = np.prod([space.columns[name] for name in ("tp", "pp", "cp", "dp")], axis=0)
    if outlook.time is None or counts is None:
        steps, trial_s = None, Range(low=startup_s, high=max(startup_s, spec.trial.time_limit_s))
        device_s = Range(low=trial_s.low * int(np.min(devices)), high=trial_s.high * int(np.max(devices)))
    else:
        steps, trial_s, device_s = _with_steps(spec, outlook, outlook.time.step_s, counts, trials, startup_s, devices)
    # The last trials do not fill `parallel` places.
    wall_s = Range(low=trial_s.low * -(-trials // spec.parallel), high=trial_s.high * -(-most // spec.parallel))
    device_hours = Range(low=device_s.low * trials / 3600, high=device_s.high * most / 3600)
    return CampaignCost(
        trials=trials,
        steps=steps,
        startup_s=startup_s,
        trial_s=trial_s,
        device_hours=device_hours,
        wall_s=wall_s,
        ends_before=tuple(_ends_before(spec, trials, device_hours, wall_s)),
    )


def _with_steps(
    spec: CampaignSpec,
    outlook: Predictions,
    step_s: FloatColumn,
    counts: StepCounts,
    trials: int,
    startup_s: float,
    devices: IntColumn,
) -> tuple[tuple[int, int], Range, Range]:
    """The fewest and the most steps of a trial, its mean seconds, and the seconds times its devices."""
    limit_s = spec.trial.time_limit_s
    least, most = (np.array([steps(seconds) for seconds in step_s.tolist()]) for steps in (counts.least, counts.most))
    chosen = outlook.best(trials)
    ends: list[list[float]] = []
    device_ends: list[list[float]] = []
    for steps in (least, most):
        # A plan that does not fit fails in its first steps.
        seconds = np.minimum(limit_s, startup_s + outlook.fits * steps * step_s)
        ends.append([float(np.mean(seconds[chosen])), float(np.mean(seconds))])
        device_ends.append([float(np.mean((seconds * devices)[chosen])), float(np.mean(seconds * devices))])
    trial_s, device_s = (Range(low=min(each[0]), high=max(each[1])) for each in (ends, device_ends))
    return (int(np.min(least)), int(np.max(most))), trial_s, device_s


def _ends_before(spec: CampaignSpec, trials: int, device_hours: Range, wall_s: Range) -> Sequence[str]:
    """Sentences for the limits that the campaign may meet before its last trial."""
    budget = spec.budget
    limits = (
        (budget.device_hours, device_hours, "device-hours"),
        (None if budget.wall_time_s is None else budget.wall_time_s / 3600, wall_s.times(1 / 3600), "hours of work"),
    )
    ends = []
    for limit, needed, unit in limits:
        if limit is not None and limit < needed.high:
            fewest, most = (min(trials, max(1, int(trials * limit / end))) for end in (needed.high, needed.low))
            count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            ends.append(f"the budget of {limit:g} {unit} ends it after about {count} of {trials} trials")
    return ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One plan against the plan predicted best. violations: the rules that it breaks. trial: the campaign's trial of
    this plan. prediction: null where the formulas do not hold, for the reason in `unpredicted`. rank: its place by
    prediction among `of` legal plans, or the place that it would have. differences_s: seconds per step that a part
    takes more than with `best`, scaled to its batch, the largest difference first; empty where times are unknown."""

    plan: Plan
    plan_key: str
    legal: bool
    violations: tuple[Violation, ...]
    trial: int | None
    prediction: Prediction | None
    unpredicted: str
    rank: int | None
    of: int
    best: Prediction
    differences_s: Mapping[TimePart, float]
    basis: Basis


def explain(spec: CampaignSpec, space: Space, plan: Plan, basis: Basis, trial: int | None = None) -> Explanation:
    """The explanation of `plan`, the best one included. trial: its number in the campaign."""
    outlook = foresee(training_of(spec), space.columns, basis.calibration, per_device=spec.objective.per_device)
    first = int(outlook.best(1)[0])
    best = outlook.of(first, space[first])
    own, unpredicted = _foresee_one(spec, plan, basis)
    prediction = None if own is None else own.of(0, plan)
    violations = tuple(space.explain(plan))
    return Explanation(
        plan=plan,
        plan_key=plan.key,
        legal=not violations,
        violations=violations,
        trial=trial,
        prediction=prediction,
        unpredicted=unpredicted,
        rank=None if own is None else 1 + int(np.sum(outlook.score > own.score[0] * (1 + 1e-9))),
        of=len(space),
        best=best,
        differences_s={} if prediction is None else _differences_s(prediction, best),
        basis=basis.judged(training_of(spec), [best.speed]),
    )


def _foresee_one(spec: CampaignSpec, plan: Plan, basis: Basis) -> tuple[Predictions | None, str]:
    """The outlook of one plan; or None and the reason, where its shapes make no sense."""
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


def _differences_s(own: Prediction, best: Prediction) -> dict[TimePart, float]:
    if own.speed is None or best.speed is None:
        return {}
    # With a freed batch the steps of two plans are of different sizes.
    scale = best.plan.global_batch_size / own.plan.global_batch_size
    more_s = {part: time_s * scale - best.speed.parts_s[part] for part, time_s in own.speed.parts_s.items()}
    ordered = sorted(more_s.items(), key=lambda item: -abs(item[1]))
    return {part: more for part, more in ordered if abs(more) >= MIN_SHARE * best.speed.step_s.value}
