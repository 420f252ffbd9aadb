"""Second runs: the best plans and the baseline are measured again in turns, until it is clear what is faster.

Round 1 runs the best plan, the baseline and the others, each as a fresh job; round 2 the same ones in the opposite
order, and so on, so that a drift of the cluster meets all alike. After each round from MIN_ROUNDS on a plan leaves that
is surely not `stop.tolerance` faster than the baseline. The rounds end when a plan `is_worth_it`, when only the
baseline is left, or after `confirm_rounds`. First runs choose the plans and count no more.
A campaign that went on and found another of the best begins again, with rounds of higher numbers, so that the new plan
runs side by side with the others; what was measured in earlier rounds counts as well. So do runs that people ask for.

The logarithm of a speed is taken as the sum of the plan's, the round's and an error. The standard deviation of the
error is estimated from the least-squares fit over all cells that were measured, and Student's t gives the interval of a
gain. The chance that a series of rounds over equal plans names one as faster is at most ERROR: each plan that is
compared and each look after a round has an even part of it (Bonferroni; `benchmarks/second_runs.py` has the rates).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt

import numpy as np

from meshtune.runners.measuring import two_sided_quantile
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.eligibility import eligible
from meshtune.tuner.campaign.objective import Objective, Yardstick
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Origin, Trial, first_runs
from meshtune.tuner.campaign.units import Estimate

# No interval of use comes from one round.
MIN_ROUNDS = 2
ERROR = 0.05
# Of changes between first and second runs, where there is one round: the winner is the best of several second runs,
# chosen by luck once again, and narrower intervals would cover it too seldom (docs/decisions/choosing.md#d0014).
MAX_DEGREES = 3
# log of a speed by plan and round, as `Objective.speed` compares them.
Cells = Mapping[tuple[Plan, int], float]


@dataclass(frozen=True, slots=True)
class Turn:
    """What is still to be planned of a round: none while its jobs run. round: from 1 on. last: the highest that there
    may be."""

    round: int
    last: int
    missing: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class RunVariance:
    """How far runs of one plan lie apart. All standard deviations are of the logarithm of a speed.

    log_sd: of single runs, at any time, with `degrees` of freedom. paired_log_sd: of runs of one round against each
    other. changes: of each plan that ran again, the speed of its second runs over the first minus 1. rounds: the most
    that a plan was measured in. compared: plans with the baseline. looks: how often they are.
    """

    log_sd: float
    degrees: int
    paired_log_sd: float
    paired_degrees: int
    changes: tuple[float, ...]
    rounds: int = 1
    compared: int = 1
    looks: int = 1

    def around(self, estimate: Estimate, *, runs: float) -> Estimate:
        """A positive quantity with an interval that covers its own and 95 % of what other runs would have measured.

        runs: the sum of 1 / n over the speeds in the quantity, each a mean of n runs: 1 for the speed of one run, 2
        for the ratio of two such.
        """
        wide = Estimate.around(estimate.value, exp(two_sided_quantile(0.95, self.degrees) * self.log_sd * sqrt(runs)))
        return Estimate(estimate.value, min(estimate.low, wide.low), max(estimate.high, wide.high))

    def around_paired(self, ratio: float, rounds: int) -> Estimate:
        """A ratio of speeds that were measured side by side in so many rounds."""
        # Twice, since equal plans err on the one side alone.
        quantile = two_sided_quantile(1 - 2 * ERROR / (self.compared * self.looks), self.paired_degrees)
        return Estimate.around(ratio, exp(quantile * self.paired_log_sd * sqrt(2 / rounds)))

    def __str__(self) -> str:
        settings = "1 setting" if len(self.changes) == 1 else f"{len(self.changes)} settings"
        times = "" if self.rounds == 1 else f" in up to {self.rounds} rounds"
        least, most = min(self.changes), max(self.changes)
        span = f"{100 * least:+.1f} %" if least == most else f"{100 * least:+.1f} to {100 * most:+.1f} %"
        scatter = f"single runs scatter by {100 * self.log_sd:.1f} %"
        known = "the intervals cover such differences" if self.rounds == 1 else scatter
        return f"{settings} measured again{times}: {span} against the first run; {known}"


def run_variance(
    first: Mapping[Plan, float], cells: Cells, baseline: Plan | None, looks: int = 1
) -> RunVariance | None:
    """None where nothing was measured twice. first: log of the speed of first runs."""
    by_plan: dict[Plan, list[float]] = defaultdict(list)
    for (plan, _), speed in cells.items():
        by_plan[plan].append(speed)
    again = [plan for plan in by_plan if plan in first]
    if not again:
        return None
    changes = tuple(exp(_mean(by_plan[plan]) - first[plan]) - 1 for plan in again)
    rounds = max(map(len, by_plan.values()))
    compared = max(1, sum(plan != baseline for plan in by_plan))
    if rounds < MIN_ROUNDS:
        return variance_of_changes(changes)
    errors = [speed - _mean(speeds) for speeds in by_plan.values() for speed in speeds]
    degrees = len(cells) - len(by_plan)
    paired, paired_degrees = _paired_errors(cells)
    log_sd = sqrt(sum(error**2 for error in errors) / degrees)
    paired_log_sd = sqrt(sum(error**2 for error in paired) / paired_degrees) if paired_degrees else log_sd
    return RunVariance(log_sd, degrees, paired_log_sd, paired_degrees or degrees, changes, rounds, compared, looks)


def variance_of_changes(changes: Sequence[float]) -> RunVariance:
    """From one round. changes: as of RunVariance, at least one."""
    # A second speed over a first has twice the variance of one run. The pairs are not centred: a first run was chosen
    # for being fast, and a whole cluster may have slowed down.
    log_sd = sqrt(sum(log(1 + change) ** 2 for change in changes) / (2 * len(changes)))
    degrees = min(len(changes), MAX_DEGREES)
    return RunVariance(log_sd, degrees, log_sd, degrees, tuple(changes))


def _paired_errors(cells: Cells) -> tuple[list[float], int]:
    """What is left of the cells when plans and rounds are taken out, by least squares, and its degrees of freedom. A
    plan that ran in a round of its own tells nothing of pairs: it takes a degree, and leaves nothing."""
    rows = {plan: at for at, plan in enumerate(dict.fromkeys(plan for plan, _ in cells))}
    numbers = dict.fromkeys(number for _, number in cells)
    columns = {number: at for at, number in enumerate(numbers, start=len(rows))}
    design = np.zeros((len(cells), len(rows) + len(columns)))
    for at, (plan, number) in enumerate(cells):
        design[at, [rows[plan], columns[number]]] = 1.0
    speeds = np.array(list(cells.values()))
    effects, _, rank, _ = np.linalg.lstsq(design, speeds)
    return (speeds - design @ effects).tolist(), len(cells) - int(rank)


def plan_effects(first: Mapping[Plan, float], cells: Cells) -> dict[Plan, float]:
    """The logarithms of the speeds of plans that ran again, with the rounds taken out, up to a number that is the same
    for all. first: as of `run_variance`; they tell apart what no round links, and next to nothing else."""
    linked = {**cells, **{(plan, 0): first[plan] for plan, _ in cells if plan in first}}
    plans, rounds = (list(dict.fromkeys(names)) for names in zip(*linked, strict=True))
    design = np.array([[*(one == plan for one in plans), *(one == turn for one in rounds)] for plan, turn in linked])
    weights = np.array([1.0 if turn else 1e-3 for _, turn in linked])
    effects = np.linalg.lstsq(design * weights[:, None], np.array(list(linked.values())) * weights)[0]
    return {plan: round(float(effect), 9) for plan, effect in zip(plans, effects, strict=False)}


def paired_gain(plan: Plan, baseline: Plan, cells: Cells, variance: RunVariance) -> Estimate | None:
    """The plan's speed over the baseline's minus 1; None where they have fewer than MIN_ROUNDS rounds in common."""
    rounds = sorted({number for _, number in cells if {(plan, number), (baseline, number)} <= cells.keys()})
    if len(rounds) < MIN_ROUNDS:
        return None
    ratio = exp(_mean([cells[plan, number] - cells[baseline, number] for number in rounds]))
    return variance.around_paired(ratio, len(rounds)).as_gain()


def is_worth_it(gain: Estimate, tolerance: float) -> bool:
    """True where a plan is surely faster, and by as much as anybody changes a setting for."""
    return gain.low > 0 and gain.value >= tolerance


def looks_of(spec: CampaignSpec) -> int:
    """How often the plans of a series of rounds are compared."""
    return max(1, spec.confirm_rounds - MIN_ROUNDS + 1)


def second_run_counts(spec: CampaignSpec, chosen: int) -> tuple[int, int]:
    """The least and the most second runs of a campaign that measures so many plans. Least: where the baseline is among
    the best."""
    best = min(spec.confirm, chosen)
    most = best + (best > 0 and spec.baseline is not None)
    least = best if best > 1 or spec.baseline is None else 0
    return least * min(MIN_ROUNDS, spec.confirm_rounds), most * spec.confirm_rounds


def cells_of(objective: Objective, trials: Sequence[Trial]) -> dict[tuple[Plan, int], float]:
    """The speeds of all second runs that were measured. trials: as `comparable` has them."""
    return {
        (trial.plan, trial.round): log(objective.speed(measured, measured.step_time_s))
        for trial in trials
        if trial.origin is Origin.CONFIRMATION and (measured := trial.measurement) is not None
    }


def next_turn(spec: CampaignSpec, trials: Sequence[Trial]) -> Turn | None:
    """The round that is not complete; None where no more second runs are needed. It follows from the trials alone, of
    which the search's have all ended."""
    again = {(trial.plan, trial.round): trial for trial in trials if trial.origin is Origin.CONFIRMATION}
    contenders, fit = finalists(spec, trials), eligible(spec, trials)
    before = _rounds_before(trials, contenders)
    last = before + spec.confirm_rounds
    for number in range(before + 1, last + 1):
        if not contenders:
            return None
        order = contenders if (number - before) % 2 else contenders[::-1]
        missing = tuple(plan for plan in order if (plan, number) not in again)
        if missing or not all(again[plan, number].state.final for plan in order):
            return Turn(number, last, missing)
        contenders = _contenders(spec, fit, contenders, number, before)
    return None


def _rounds_before(trials: Sequence[Trial], contenders: Sequence[Plan]) -> int:
    """The rounds that were begun before the newest of the contenders had been tried: it was in none of them."""
    newest = max((trial.number for trial in first_runs(trials) if trial.plan in contenders), default=-1)
    return max((trial.round for trial in trials if trial.number < newest), default=0)


def finalists(spec: CampaignSpec, trials: Sequence[Trial]) -> list[Plan]:
    """The plans of the first round in its order: the best by their first runs, at most `spec.confirm`, and the
    baseline, if it was measured, second; none where only the baseline would run. With `spec.pareto` the front comes
    first. What is never recommended is left out (`tuner.campaign.eligibility`)."""
    # The device's peak and its price scale an objective for all plans alike: any will do for their order.
    yardstick = Yardstick(objective=spec.objective, model=spec.model, peak_flops=1.0)
    scored = [
        (yardstick.score(trial.measurement), trial)
        for trial in eligible(spec, trials)
        if trial.measurement is not None and trial.origin is not Origin.CONFIRMATION
    ]
    scored.sort(key=lambda pair: (-pair[0], pair[1].number))
    measured = [trial for _, trial in scored]
    if spec.pareto:
        measured = _front_first(measured)
    baseline = _baseline(trials)
    best = [trial.plan for trial in measured[: spec.confirm] if trial.plan != baseline]
    return [*best[:1], *([baseline] if best and baseline is not None else []), *best[1:]]


def _baseline(trials: Sequence[Trial]) -> Plan | None:
    measured = (trial.plan for trial in trials if trial.origin is Origin.BASELINE and trial.measurement is not None)
    return next(measured, None)


def _contenders(
    spec: CampaignSpec, trials: Sequence[Trial], contenders: Sequence[Plan], rounds: int, before: int
) -> list[Plan]:
    """The plans of the next round, without those that are never recommended by their second runs; none where the choice
    is clear. trials: those that are eligible. before: see `_rounds_before`."""
    cells = {cell: speed for cell, speed in cells_of(spec.objective, trials).items() if cell[1] <= rounds}
    baseline = _baseline(trials)
    stable = [plan for plan in contenders if (plan, rounds) in cells]
    if rounds - before < MIN_ROUNDS:
        return stable
    if baseline is None or baseline not in stable:
        return []
    variance = run_variance({trial.plan: 0.0 for trial in trials}, cells, baseline, looks_of(spec))
    assert variance is not None  # there are two rounds
    left = list[Plan]()
    for plan in stable:
        gain = None if plan == baseline else paired_gain(plan, baseline, cells, variance)
        if gain is None:
            left.append(plan)
        elif is_worth_it(gain, spec.stop.tolerance):
            return []
        elif gain.high >= spec.stop.tolerance:
            left.append(plan)
    return left if len(left) > 1 else []


def _front_first(measured: Sequence[Trial]) -> list[Trial]:
    """Trials from the fastest on: first those that need less memory than every faster one, then the others."""
    front, lowest = list[Trial](), inf
    for trial in measured:
        peak = None if trial.measurement is None else trial.measurement.fullest_rank_bytes
        if peak is not None and peak < lowest:
            front.append(trial)
            lowest = peak
    return front + [trial for trial in measured if trial not in front]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
