"""The limits that a spec leaves open, by what is predicted: the time of a trial, and the device-hours of a campaign.

A trial has time for the pessimistic end of its step, and for a start that takes twice as long as it should: the
baseline, and every plan that may be as fast as the one predicted best. What takes longer is too slow to be chosen. A
stated limit that ends the baseline even at the optimistic end of its step is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, exp, floor, inf, log10
from pathlib import Path

from meshtune.runners.measuring import StepCounts, step_counts
from meshtune.search_spaces.checks import Checks
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.spec import MAX_TIME_LIMIT_S, CampaignSpec, job_of, workload_of
from meshtune.tuner.campaign.units import Estimate, number, seconds
from meshtune.tuner.prediction.predict import WIDTH, Basis, Predictions, foresee_plan

# Seconds that a job takes beside its steps (processes, imports, groups, weights) where nobody says. CPU: what is left
# of `make demo`'s 6.5 s per trial (benchmarks/log.md) without its steps. Others: of a large program on a cluster.
STARTUP_S: Mapping[DeviceKind, float] = {DeviceKind.CPU: 5.0, DeviceKind.CUDA: 120.0, DeviceKind.XPU: 120.0}
# Of the steps' time, and of a campaign's device-hours at the 90th percentile.
STEPS_MARGIN, HOURS_MARGIN = 1.1, 1.5
# A start may take twice as long, and at least so many seconds on a machine with other work.
START_MARGIN, LEAST_START_S = 2.0, 60.0
# So many of the plans predicted best are looked at.
MOST_PLANS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a spec, those filled in that it left out. device_hours: null for none. follow: whether they are
    the quote's. words: where each is from, a sentence each."""

    time_limit_s: float
    device_hours: float | None
    follow: bool
    words: tuple[str, ...]

    def laid_over(self, spec: CampaignSpec) -> CampaignSpec:
        """The spec as if it had stated them."""
        left_out = spec.trial.time_limit_s is None or spec.trial.time_limit_follow
        return replace(
            spec,
            trial=replace(spec.trial, time_limit_s=self.time_limit_s, time_limit_follow=left_out),
            budget=replace(spec.budget, device_hours=self.device_hours, device_hours_follow=self.follow),
        )


def start_of(spec: CampaignSpec, basis: Basis) -> float:
    """As a campaign measured it, or as the spec states it, or as usual."""
    return basis.startup_s or spec.trial.start_s or STARTUP_S[spec.cluster.device.kind]


def patience_of(start_s: float) -> float:
    return max(LEAST_START_S, START_MARGIN * start_s)


def counts_of(spec: CampaignSpec, plan: Plan) -> StepCounts | None:
    """The steps of a trial; None for a job that does not limit them."""
    # Nothing is written or run there: the text of the job says how long it measures.
    said, steps = step_counts(job_of(spec, plan, "quote", Path())), workload_of(spec).steps
    if said is not None or steps is None:
        return said
    return StepCounts(before=0, warmup=0, timed=steps, most_timed=steps, min_seconds=0, max_seconds=0, after=0)


def require_room(spec: CampaignSpec, basis: Basis) -> None:
    """Raises InvalidValue where the time limit, stated or capped, ends the baseline for certain."""
    if spec.baseline is None or (found := _step_of(spec, spec.baseline, basis)) is None:
        return
    (step, counts), start_s = found, start_of(spec, basis)
    known_s = start_s if basis.startup_s or spec.trial.start_s else 0.0
    needed_s = known_s + counts.least(step.low) * step.low
    likely = rounded_up(start_s + counts.least(step.value) * step.value)
    needs = f"{_words(step, counts.least(step.value), start_s)}; at least {number(likely)}, better left out"
    checks = Checks()
    for name in ("time_limit_s", "time_limit_cap_s"):
        limit = getattr(spec.trial, name) or inf
        checks.require(limit >= needed_s, f"trial.{name}", f"{number(limit)} s cannot hold the baseline: {needs}")
    checks.done()


def time_limit(
    spec: CampaignSpec, timed: Predictions | None, counts: StepCounts | None, basis: Basis
) -> tuple[float, str]:
    """The time limit of a trial, in seconds, and where it is from. timed: None without times."""
    trial, start_s = spec.trial, start_of(spec, basis)
    limit, why = trial.limit_s, "as the spec states"
    if trial.time_limit_s is None and (timed is None or counts is None):
        unknown = "steps cannot be predicted" if timed is None else f"the steps of {spec.workload.kind} are open"
        limit, why = limit + (patience_of(trial.start_s) if trial.start_s else 0.0), f"the default, since {unknown}"
    elif trial.time_limit_s is None and timed is not None and counts is not None:
        needs = [(counts.most(step.high) * step.high, name, step) for name, step in _worth(spec, timed, basis)]
        longest_s, name, step = max(needs, key=lambda need: need[0])
        limit = rounded_up(max(limit, patience_of(start_s) + STEPS_MARGIN * longest_s))
        why = f"for {name}: {_words(step, counts.most(step.high), start_s)}, with a margin"
    if trial.time_limit_s is None and (cap := trial.time_limit_cap_s or MAX_TIME_LIMIT_S) < limit:
        limit, why = cap, f"{why}, cut off by trial.time_limit_cap_s"
    return limit, f"trial.time_limit_s {limit:.10g}: a trial may take {seconds(limit)}, {why}"


def _worth(spec: CampaignSpec, outlook: Predictions, basis: Basis) -> Iterator[tuple[str, Estimate]]:
    """The predicted steps that a trial is to have time for."""
    assert outlook.time is not None
    if spec.baseline is not None and (found := _step_of(spec, spec.baseline, basis)) is not None:
        yield "the baseline", found[0]
    rows = outlook.best(min(spec.budget.trials or MOST_PLANS, MOST_PLANS))
    for row in map(int, rows):
        step = Estimate.around(float(outlook.time.step_s[row]), exp(WIDTH * float(outlook.time.log_sd[row])))
        if outlook.score[row] * step.high >= outlook.score[rows[0]] * step.value:
            yield "the slowest plan that may be the best", step


def _step_of(spec: CampaignSpec, plan: Plan, basis: Basis) -> tuple[Estimate, StepCounts] | None:
    """The predicted step of one plan, and how many a trial takes."""
    own, counts = foresee_plan(spec, plan, basis)[0], counts_of(spec, plan)
    speed = None if own is None else own.of(0, plan).speed
    return None if speed is None or counts is None else (speed.step_s, counts)


def rounded_up(value: float) -> float:
    """To two digits."""
    unit = 10.0 ** (floor(log10(value)) - 1)
    return round(ceil(value / unit - 1e-9) * unit, 9)


def _words(step: Estimate, steps: int, start_s: float) -> str:
    ends = f"{number(step.low)} to {number(step.high)}"
    return f"{steps} steps of {number(step.value)} s ({ends}) and {number(start_s)} s of start"
