"""A quote of a campaign before it runs: the legal plans, their fit, the fastest of them and the cost of all trials.

And why one plan is not the best: the rules it breaks, its memory, and the parts of its step that take longer. For any
plan that can be written down, legal or not. Predicted, never measured; `basis` says what the predictions rest on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from meshtune.runners.measuring import StepCounts
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.columns import Columns, FloatColumn, IntColumn, Violation
from meshtune.search_spaces.physics.timing import TimePart
from meshtune.search_spaces.physics.training import missing
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Counts, Space
from meshtune.tuner.campaign.second_runs import planned_runs
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.prediction.limits import (
    HOURS_MARGIN,
    Limits,
    counts_of,
    patience_of,
    require_room,
    rounded_up,
    start_of,
    time_limit,
)
from meshtune.tuner.prediction.memory_needs import SURE, memory_needs
from meshtune.tuner.prediction.predict import Basis, Prediction, Predictions, foresee, foresee_plan, training_of

TOP = 10
# Campaigns that a cost is drawn from; of more plans than MOST_ROWS every so many-th stands for its neighbours.
DRAWS, MOST_ROWS = 1000, 500
# Standard deviation of the logarithm of a start that nobody measured or stated.
START_LOG_SD = 0.3
# The chance that a round of second runs makes the choice clear, and so is the last: of simulated campaigns on GPUs nine
# in ten end with the first.
CLEAR: Mapping[DeviceKind, float] = {DeviceKind.CPU: 0.25, DeviceKind.CUDA: 0.9, DeviceKind.XPU: 0.9}
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
    TimePart.GENERATION: "generation",
    TimePart.LOG_PROBS: "log-probabilities",
    TimePart.REFIT: "refit of the engine",
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
    """The 10th, 50th and 90th percentile of what is predicted; where it cannot be, the two ends alone."""

    low: float
    p50: float | None
    high: float

    @classmethod
    def of(cls, drawn: FloatColumn) -> Range:
        low, middle, high = map(float, np.percentile(drawn, (10, 50, 90)))
        return cls(low=low, p50=middle, high=high)

    @classmethod
    def between(cls, ends: FloatColumn) -> Range:
        return cls(low=float(ends[0]), p50=None, high=float(ends[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignCost:
    """The cost of all trials of a campaign, if the search does not end it sooner. first_runs: allowed by the spec and
    present in the space. second_runs: the fewest, the likely number and the most. trials: the first runs and the fewest
    second ones. steps: the fewest and the most of one trial; null where its job does not limit them or times cannot be
    predicted. startup_s: of each trial beside its steps. trial_s: the mean of a campaign. ends_before: budget limits
    that may end the campaign before its last trial.

    Campaigns are drawn that try the plans predicted best: the error that all predictions have in common is most of
    their spread, that of single plans is averaged. Plans that do not fit cost their start alone. Not included: waiting
    in a queue, lost attempts, trials that end early.
    """

    trials: int
    first_runs: int
    second_runs: tuple[int, int, int]
    steps: tuple[int, int] | None
    startup_s: float
    trial_s: Range
    device_hours: Range
    wall_s: Range
    ends_before: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFact:
    """A fact about the cluster or the model that times depend on, by its path in the spec."""

    path: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """Predictions for a campaign before it runs. space: combinations of layouts spanned, legal layouts, and how many
    combinations each rule rejects (they overlap). plans: legal layouts times what their knobs can be, of whose effects
    nothing is predicted. memory_needs: why recomputation was opened, and where no plan fits with 90 % what would help,
    the smallest change first, each tried. best: the layouts predicted best by tokens per second times the probability
    to fit. baseline: the spec's own setting, null without one. memory_bytes: of a device. missing: where not empty, no
    times can be predicted. Without a model fit and baseline are null, and best empty."""

    name: str
    model: str
    cluster: str
    devices: int
    device: str
    framework: str
    space: Counts
    plans: int
    fit: FitCounts | None
    memory_needs: tuple[str, ...]
    best: tuple[Prediction, ...]
    baseline: Prediction | None
    memory_bytes: int
    cost: CampaignCost
    limits: Limits
    missing: tuple[MissingFact, ...]
    basis: Basis


def make_quote(spec: CampaignSpec, space: Space, basis: Basis, *, lifted: bool = False) -> Quote:
    """lifted: where the spec has no limit of device-hours, it is to have none. Raises InvalidValue where its time limit
    cannot hold the baseline."""
    outlook, cost, limits = _priced(spec, space, basis, lifted)
    training, cluster = training_of(spec), spec.cluster
    best = () if outlook is None else tuple(outlook.of(int(row), space[int(row)]) for row in outlook.best(TOP))
    own = None if outlook is None or spec.baseline is None else foresee_plan(spec, spec.baseline, basis)[0]
    return Quote(
        name=spec.name,
        model=spec.model.name,
        cluster=cluster.name,
        devices=cluster.devices,
        device=cluster.device.name,
        framework=training.framework.name,
        space=space.counts,
        plans=space.plans,
        fit=None if outlook is None else count_fits(outlook.fits),
        memory_needs=memory_needs(space, training, basis.calibration),
        best=best,
        baseline=None if own is None or spec.baseline is None else own.of(0, spec.baseline),
        memory_bytes=cluster.device.memory_bytes,
        cost=cost,
        limits=limits,
        missing=tuple(MissingFact(path=one.path, message=one.message) for one in missing(training)),
        basis=basis.judged(training, [one.speed for one in best[:1]]),
    )


def make_limits(spec: CampaignSpec, space: Space, basis: Basis, *, lifted: bool = False) -> Limits:
    """Those of the quote alone. Raises as `make_quote`."""
    return _priced(spec, space, basis, lifted)[2]


def _priced(
    spec: CampaignSpec, space: Space, basis: Basis, lifted: bool
) -> tuple[Predictions | None, CampaignCost, Limits]:
    if spec.trial.time_limit_follow:
        spec = replace(spec, trial=replace(spec.trial, time_limit_s=None))
    require_room(spec, basis)
    outlook = _outlook(spec, space, basis)
    counts = counts_of(spec, space[0])
    timed = None if outlook is None or outlook.time is None else outlook
    limit_s, limit_words = time_limit(spec, timed, counts, basis)
    cost = predict_cost(spec, space, timed, counts, basis, limit_s)
    device_hours, hours_words = _device_hours(spec, cost, lifted)
    limits = Limits(
        time_limit_s=limit_s,
        device_hours=device_hours,
        follow=device_hours is not None and not _states_hours(spec),
        words=(limit_words, hours_words),
    )
    return outlook, cost, limits


def _outlook(spec: CampaignSpec, space: Space, basis: Basis) -> Predictions | None:
    """None without a model."""
    if not spec.model.known:
        return None
    return foresee(training_of(spec), space.columns, basis.calibration, per_device=spec.objective.per_device)


def count_fits(fits: FloatColumn) -> FitCounts:
    hopeless, unlikely, likely, sure = map(int, np.histogram(fits, (0.0, 0.1, 0.5, SURE, 2.0))[0])
    expected = float(np.sum(fits))
    return FitCounts(expected=expected, sure=sure, likely=likely, unlikely=unlikely, hopeless=hopeless)


def predict_cost(
    spec: CampaignSpec, space: Space, timed: Predictions | None, counts: StepCounts | None, basis: Basis, limit_s: float
) -> CampaignCost:
    """The cost of the spec's trials; from a mere start to the time limit each where steps or times are unknown."""
    chosen, (least, most) = planned_runs(spec, space.plans)
    startup_s = start_of(spec, basis)
    # Of each of many campaigns.
    rounds = np.random.default_rng(1).geometric(CLEAR[spec.cluster.device.kind], DRAWS)
    second: FloatColumn = np.clip(rounds * most / spec.confirm_rounds, least, most).astype(np.float64)
    if timed is None or counts is None:
        devices, runs = _devices(space.columns), np.array([chosen + least, chosen + most])
        each_s = np.array([startup_s, max(startup_s, limit_s)])
        # The last trials do not fill `parallel` places.
        all_s = each_s * np.ceil(runs / spec.parallel)
        hours = each_s * runs * [np.min(devices), np.max(devices)] / 3600
        steps, (trial_s, device_hours, wall_s) = None, map(Range.between, (each_s, hours, all_s))
    else:
        steps, trial_s, device_hours, wall_s = _drawn(spec, timed, counts, basis, limit_s, chosen, second)
    return CampaignCost(
        trials=chosen + least,
        first_runs=chosen,
        second_runs=(least, int(np.median(second)), most),
        steps=steps,
        startup_s=startup_s,
        trial_s=trial_s,
        device_hours=device_hours,
        wall_s=wall_s,
        ends_before=tuple(_ends_before(spec, chosen + least, device_hours, wall_s)),
    )


def _drawn(
    spec: CampaignSpec,
    outlook: Predictions,
    counts: StepCounts,
    basis: Basis,
    limit_s: float,
    chosen: int,
    second: FloatColumn,
) -> tuple[tuple[int, int], Range, Range, Range]:
    """The fewest and the most steps of a trial, and of many campaigns the mean seconds of a trial, device-hours and
    seconds."""
    own = None if spec.baseline is None else foresee_plan(spec, spec.baseline, basis)[0]
    searched = max(1, chosen - (own is not None))
    rows = outlook.best(searched)[:: max(1, searched // MOST_ROWS)]
    parts = [(outlook, rows), *([] if own is None else [(own, np.array([0]))])]
    costs = [
        np.stack([one.time.step_s, one.time.log_sd, one.fits, _devices(one.columns)])[:, some]
        for one, some in parts
        if one.time is not None
    ]
    step_s, log_sd, fitting, devices = np.concatenate(costs, axis=1)
    stands_for = np.array([searched / len(rows)] * len(rows) + [1.0] * (own is not None))
    # Baseline and best plans, which run again.
    again = [*range(min(spec.confirm, len(rows))), *([] if own is None else [-1])]
    least, most = (np.array([steps(seconds) for seconds in step_s.tolist()]) for steps in (counts.least, counts.most))
    rng = np.random.default_rng(0)
    start_sd = 0.0 if basis.startup_s or spec.trial.start_s else START_LOG_SD
    plan_sd = np.minimum(log_sd, basis.calibration.time_log_sd)
    shared = rng.standard_normal((2, DRAWS, 1))
    start_s = np.minimum(limit_s, start_of(spec, basis) * np.exp(start_sd * shared[0]))
    off = np.sqrt(log_sd**2 - plan_sd**2) * shared[1] + plan_sd * rng.standard_normal((DRAWS, len(step_s)))
    steps = least + (most - least) * rng.random((DRAWS, 1))
    ran_s = np.minimum(limit_s, start_s + steps * step_s * np.exp(off))
    # A plan that does not fit fails in its first steps.
    fits = rng.random(ran_s.shape) < fitting
    first_s = np.where(fits, ran_s, start_s) * stands_for
    runs = second * fits.any(axis=1)
    again_s = ran_s[:, again] * (runs / max(1, len(again)))[:, None]
    all_s = first_s.sum(axis=1) + again_s.sum(axis=1)
    device_s = (first_s * devices).sum(axis=1) + (again_s * devices[again]).sum(axis=1)
    trials = chosen + runs
    # The last trials do not fill `parallel` places.
    wall_s = all_s * np.ceil(trials / spec.parallel) / trials
    ends = (int(np.min(least)), int(np.max(most)))
    return ends, Range.of(all_s / trials), Range.of(device_s / 3600), Range.of(wall_s)


def _devices(columns: Columns) -> IntColumn:
    devices: IntColumn = np.prod([columns[name] for name in ("tp", "pp", "cp", "dp")], axis=0)
    return devices


def _ends_before(spec: CampaignSpec, trials: int, device_hours: Range, wall_s: Range) -> Iterator[str]:
    """Sentences for the limits that the campaign may meet before its last trial."""
    budget = spec.budget
    for limit, needed, unit, words in (
        (budget.device_hours, device_hours, 1, "device-hours"),
        (budget.wall_time_s, wall_s, 3600, "hours of work"),
    ):
        if limit is not None and limit < needed.high:
            fewest, most = (min(trials, max(1, int(trials * limit / end))) for end in (needed.high, needed.low))
            count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            yield f"the budget of {limit / unit:g} {words} ends it after about {count} of {trials} trials"


def _states_hours(spec: CampaignSpec) -> bool:
    return spec.budget.device_hours is not None and not spec.budget.device_hours_follow


def _device_hours(spec: CampaignSpec, cost: CampaignCost, lifted: bool) -> tuple[float | None, str]:
    """The limit of device-hours, and where it is from: room for what is predicted, and for starts that take longer."""
    if _states_hours(spec) and (stated := spec.budget.device_hours) is not None:
        return stated, f"budget.device_hours {stated:g}, as the spec states"
    if lifted or cost.steps is None:
        why = "as the spec states" if lifted else "since none can be predicted"
        return None, f"no limit of device-hours, {why}"
    starts_s = (cost.first_runs + cost.second_runs[-1]) * (patience_of(cost.startup_s) - cost.startup_s)
    hours = rounded_up(HOURS_MARGIN * cost.device_hours.high + starts_s * spec.cluster.devices / 3600)
    return hours, f"budget.device_hours {hours:g}: the quote's 90th percentile, with a margin; null is no limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One plan against the plan predicted best. violations: the rules that it breaks. trial: the campaign's trial of
    this plan. prediction: null where the formulas do not hold, for the reason in `unpredicted`. rank: its place by
    prediction among `of` legal plans, or the place that it would have. differences_s: seconds per step that a part
    takes more than with `best` (null without a model), scaled to its batch, the largest first; empty without times."""

    plan: Plan
    plan_key: str
    legal: bool
    violations: tuple[Violation, ...]
    trial: int | None
    prediction: Prediction | None
    unpredicted: str
    rank: int | None
    of: int
    best: Prediction | None
    differences_s: Mapping[TimePart, float]
    basis: Basis


def explain(spec: CampaignSpec, space: Space, plan: Plan, basis: Basis, trial: int | None = None) -> Explanation:
    """The explanation of `plan`, the best one included. trial: its number in the campaign."""
    outlook = _outlook(spec, space, basis)
    best = None if outlook is None else outlook.of(first := int(outlook.best(1)[0]), space[first])
    own, unpredicted = foresee_plan(spec, plan, basis)
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
        rank=None if own is None or outlook is None else 1 + int(np.sum(outlook.score > own.score[0] * (1 + 1e-9))),
        of=len(space),
        best=best,
        differences_s={} if prediction is None or best is None else _differences_s(prediction, best),
        basis=basis.judged(training_of(spec), [] if best is None else [best.speed]),
    )


def _differences_s(own: Prediction, best: Prediction) -> dict[TimePart, float]:
    if own.speed is None or best.speed is None:
        return {}
    # With a freed batch the steps of two plans are of different sizes.
    scale = best.plan.global_batch_size / own.plan.global_batch_size
    more_s = {part: time_s * scale - best.speed.parts_s[part] for part, time_s in own.speed.parts_s.items()}
    ordered = sorted(more_s.items(), key=lambda item: -abs(item[1]))
    return {part: more for part, more in ordered if abs(more) >= MIN_SHARE * best.speed.step_s.value}
