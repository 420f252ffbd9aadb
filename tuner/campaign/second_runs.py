"""Second runs: the best plans and the baseline are measured again in turns, until it is clear what is faster.

Round 1 runs the best plan, the baseline and the others, each as a fresh job; round 2 the same ones in the opposite
order, and so on, so that a drift of the cluster meets all alike. First runs choose the plans and count in no gain.
docs/explanation/measuring.md says which plans leave, when the rounds end and begin again, and how sure a gain is;
`benchmarks/second_runs.py` has the rates of error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from statistics import NormalDist, fmean
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.eligibility import eligible
from meshtune.tuner.campaign.node_kinds import is_elsewhere
from meshtune.tuner.campaign.objective import Objective, Yardstick
from meshtune.tuner.campaign.scatter import Scatter, bounds, reach
from meshtune.tuner.campaign.spec import CampaignSpec, space_of
from meshtune.tuner.campaign.trial import Origin, Trial, first_runs
from meshtune.tuner.campaign.units import Estimate, percent

# The chance that a series of rounds over equal plans recommends one.
ERROR = 0.03
# Of each side of an interval that is shown.
SHOWN_TAIL = 0.05
# A plan with a lower chance to be found better in the rounds that are left runs no more.
CHANCE = 0.02
# So many rounds tell which plan is faster where there is no baseline, and nothing is decided.
ROUNDS_ALONE = 2
_NORMAL = NormalDist()
T = TypeVar("T")

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
class PairedGain(Estimate):
    """Over another plan, of runs side by side in so many rounds. sure: the low end by which is decided."""

    sure: float
    rounds: int


@dataclass(frozen=True, slots=True)
class RunVariance:
    """How far runs of one plan lie apart.

    runs: single ones, at any time. paired: of one round, against each other. changes: of each plan that ran again, the
    speed of its second runs over the first minus 1. rounds: the most that a plan was measured in. compared: plans with
    the baseline. looks: how often they are.
    """

    runs: Scatter
    paired: Scatter
    changes: tuple[float, ...]
    rounds: int
    compared: int
    looks: int

    def around(self, estimate: Estimate, *, runs: float) -> Estimate:
        """A positive quantity with an interval that covers its own and 90 % of what other runs would have measured.

        runs: the sum of 1 / n over the speeds in the quantity, each a mean of n runs: 1 for the speed of one run, 2
        for the ratio of two such.
        """
        wide = Estimate.around(estimate.value, exp(reach(self.runs, SHOWN_TAIL) * sqrt(runs)))
        return Estimate(estimate.value, min(estimate.low, wide.low), max(estimate.high, wide.high))

    def around_paired(self, ratio: float, rounds: int, tail: float = SHOWN_TAIL) -> Estimate:
        """A ratio of speeds that were measured side by side in so many rounds."""
        return Estimate.around(ratio, exp(reach(self._scatter(rounds), tail) * sqrt(2 / rounds)))

    def sure(self, ratio: float, rounds: int) -> float:
        """The low end of such a ratio by which is decided."""
        return self.around_paired(ratio, rounds, _NORMAL.cdf(-self._bound(rounds))).low

    def chance(self, gain: PairedGain, tolerance: float, last: int) -> float:
        """The probability that the plan is worth it by the round `last`."""
        scatter = self._scatter(gain.rounds)
        return scatter.chance(log(1 + gain.value), log(1 + tolerance), self._bound(), gain.rounds, last)

    def rounds_to_tell(self, gain: PairedGain) -> float:
        """How many rounds in all it takes to show that a plan is faster, should the later ones measure the same."""
        typical = self._scatter(gain.rounds).typical
        return 2 * (self._bound() * typical / log(1 + gain.value)) ** 2 if gain.value > 0 else inf

    def _scatter(self, rounds: int) -> Scatter:
        """Of runs side by side. In one round a gain like that of the first runs may be chance, so both plans must have
        measured the same; whatever other plans were measured in since."""
        return self.runs if rounds == 1 else self.paired

    def _bound(self, rounds: int = 0) -> float:
        """In standard deviations, after so many rounds; 0: after the last."""
        return bounds(ERROR / self.compared, self.looks)[min(rounds, self.looks) - 1]

    def __str__(self) -> str:
        plans = "1 plan" if len(self.changes) == 1 else f"{len(self.changes)} plans"
        times = "" if self.rounds == 1 else f" in up to {self.rounds} rounds"
        span = " to ".join(f"{100 * one:+.1f}" for one in sorted({min(self.changes), max(self.changes)}))
        scatter = f"single runs scatter by {percent(self.runs.typical)}"
        return f"second runs of {plans}{times}: {span} % against the first run; {scatter}"


def run_variance(
    first: Mapping[Plan, float], cells: Cells, baseline: Plan | None, spec: CampaignSpec
) -> RunVariance | None:
    """None where nothing was measured twice. first: log of the speed of first runs."""
    by_plan: dict[Plan, list[float]] = defaultdict(list)
    for (plan, _), speed in cells.items():
        by_plan[plan].append(speed)
    again = [plan for plan in by_plan if plan in first]
    if not again:
        return None
    changes = tuple(exp(fmean(by_plan[plan]) - first[plan]) - 1 for plan in again)
    rounds = max(map(len, by_plan.values()))
    compared = max(1, sum(plan != baseline for plan in by_plan))
    # First runs tell how far runs scatter, as round 0: one was chosen for being fast, which only widens that.
    known = {**cells, **{(plan, 0): first[plan] for plan in again}}
    kind = spec.cluster.device.kind
    runs = Scatter(kind, *_residuals(known, rounds=False))
    paired = Scatter(kind, *_residuals(known, rounds=True))
    return RunVariance(runs, paired, changes, rounds, compared, spec.confirm_rounds)


def _residuals(cells: Cells, *, rounds: bool) -> tuple[int, float]:
    """What is left of the cells when plans, and rounds, are taken out, by least squares: its degrees of freedom and the
    sum of its squares. A plan that ran in a round of its own tells nothing of pairs: it takes a degree, and leaves
    nothing."""
    _, design = _design(cells, rounds=rounds)
    speeds = np.array(list(cells.values()))
    effects, _, rank, _ = np.linalg.lstsq(design, speeds)
    return len(cells) - int(rank), float(np.sum((speeds - design @ effects) ** 2))


def _design(cells: Cells, *, rounds: bool = True) -> tuple[list[Plan], npt.NDArray[np.float64]]:
    """The plans, and a row for each cell: a column for each plan, and for each round, of zeros where those are none."""
    plans, numbers = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    rows = [[*(one == plan for one in plans), *(rounds and one == turn for one in numbers)] for plan, turn in cells]
    return plans, np.array(rows, dtype=float)


def plan_effects(first: Mapping[Plan, float], cells: Cells) -> dict[Plan, float]:
    """The logarithms of the speeds of plans that ran again, with the rounds taken out, up to a number that is the same
    for all. first: as of `run_variance`; they tell apart what no round links, and next to nothing else."""
    linked = {**cells, **{(plan, 0): first[plan] for plan, _ in cells if plan in first}}
    plans, design = _design(linked)
    weights = np.array([1.0 if turn else 1e-3 for _, turn in linked])
    effects = np.linalg.lstsq(design * weights[:, None], np.array(list(linked.values())) * weights)[0]
    return {plan: round(float(effect), 9) for plan, effect in zip(plans, effects, strict=False)}


def paired_gain(plan: Plan, baseline: Plan, cells: Cells, variance: RunVariance) -> PairedGain | None:
    """The plan's speed over the baseline's minus 1; None where they have no rounds in common."""
    rounds = [number for one, number in cells if one == plan and (baseline, number) in cells]
    if not rounds:
        return None
    ratio = exp(fmean([cells[plan, number] - cells[baseline, number] for number in rounds]))
    shown = variance.around_paired(ratio, len(rounds)).as_gain()
    sure = variance.sure(ratio, len(rounds)) - 1
    return PairedGain(shown.value, shown.low, shown.high, sure, len(rounds))


def is_worth_it(gain: Estimate, tolerance: float) -> bool:
    """True where a plan that ran beside the other is surely faster, and by as much as anybody changes a plan for."""
    return isinstance(gain, PairedGain) and gain.sure > 0 and gain.value >= tolerance


def planned_runs(spec: CampaignSpec, legal: int) -> tuple[int, tuple[int, int]]:
    """First runs: the budget's, or all legal plans and a baseline outside of their space. Then the least and the most
    second runs; least: where the baseline is among the best."""
    chosen, baseline = spec.budget.trials or legal + 1, spec.baseline
    if chosen > legal:
        chosen = legal + (baseline is not None and bool(space_of(spec).explain(baseline)))
    best = min(spec.confirm, chosen)
    if baseline is None:
        rounds = min(ROUNDS_ALONE, spec.confirm_rounds)
        return chosen, (best * rounds, best * rounds)
    return chosen, (best if best > 1 else 0, (best + (best > 0)) * spec.confirm_rounds)


def cells_of(objective: Objective, trials: Sequence[Trial]) -> dict[tuple[Plan, int], float]:
    """The speeds of all second runs that were measured. trials: as `comparable` has them."""
    again = [trial for trial in trials if trial.origin is Origin.CONFIRMATION]
    return {(trial.plan, trial.round): speed for trial, speed in _log_speeds(objective, again)}


def first_speeds(objective: Objective, trials: Sequence[Trial]) -> dict[Plan, float]:
    """The same of first runs."""
    return {trial.plan: speed for trial, speed in _log_speeds(objective, first_runs(trials))}


def _log_speeds(objective: Objective, trials: Sequence[Trial]) -> Iterator[tuple[Trial, float]]:
    for trial in trials:
        if (run := trial.measurement) is not None:
            yield trial, log(objective.speed(run, run.step_time_s))


def next_turn(spec: CampaignSpec, trials: Sequence[Trial]) -> Turn | None:
    """The round that is not complete; None where no more second runs are needed. It follows from the trials alone, of
    which the search's have all ended."""
    again = {(trial.plan, trial.round): trial for trial in trials if trial.origin is Origin.CONFIRMATION}
    fit, newest = eligible(spec, trials), max((trial.number for trial in first_runs(trials)), default=-1)
    contenders = finalists(spec, trials, fit)
    # The rounds that were begun before the newest of the contenders had been tried: it was in none of them.
    last_new = max((trial.number for trial in first_runs(trials) if trial.plan in contenders), default=-1)
    before = number = max((trial.round for trial in trials if trial.number < last_new), default=0)
    contenders = _stable(contenders, trials, fit, before)
    while contenders and number < (last := before + spec.confirm_rounds):
        number += 1
        order = contenders if (number - before) % 2 else contenders[::-1]
        missing = tuple(plan for plan in order if (plan, number) not in again)
        if missing and any(run.round == number and run.number < newest for run in again.values()):
            before = number  # what is missing would run at another time, so this round stays as it is
        elif missing or not all(again[plan, number].state.final for plan in order):
            return Turn(number, last, missing)
        else:
            contenders = _contenders(spec, trials, fit, contenders, number, before)
    return None


def finalists(spec: CampaignSpec, trials: Sequence[Trial], fit: Sequence[Trial]) -> list[Plan]:
    """The plans of the first round in its order: the best by their first runs, at most `spec.confirm`, and the
    baseline, if it was measured, second; none where only the baseline would run. With `spec.pareto` the front comes
    first. fit: the trials that are eligible; what is never recommended is left out."""
    # The device's peak and its price scale an objective for all plans alike: any will do for their order.
    yardstick = Yardstick(objective=spec.objective, model=spec.model, peak_flops=1.0)
    scored = [(yardstick.score(run), trial) for trial in first_runs(fit) if (run := trial.measurement) is not None]
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
    spec: CampaignSpec,
    trials: Sequence[Trial],
    fit: Sequence[Trial],
    contenders: Sequence[Plan],
    rounds: int,
    before: int,
) -> list[Plan]:
    """The plans of the next round, without those that are never recommended by their second runs; none where the choice
    is clear. fit: the trials that are eligible. before: the last round of an earlier series."""
    cells = {cell: speed for cell, speed in cells_of(spec.objective, fit).items() if cell[1] <= rounds}
    baseline = _baseline(trials)
    stable = _stable(contenders, trials, fit, rounds)
    if baseline is None:
        return stable if rounds - before < ROUNDS_ALONE else []
    variance = run_variance(first_speeds(spec.objective, fit), cells, baseline, spec)
    if variance is None:
        return stable
    tolerance, left = spec.stop.tolerance, list[Plan]()
    for plan in stable:
        gain = paired_gain(plan, baseline, cells, variance)
        if plan == baseline or gain is None:
            left.append(plan)
            continue
        if is_worth_it(gain, tolerance):
            return []
        last = gain.rounds + before + spec.confirm_rounds - rounds
        undecided = gain.sure <= 0 and last > gain.rounds and variance.chance(gain, tolerance, last) >= CHANCE
        others = (paired_gain(other, plan, cells, variance) for other in stable if other not in (plan, baseline))
        if undecided and not any(other is not None and other.sure > 0 for other in others):
            left.append(plan)
    return left if len(left) > 1 else []


def _stable(plans: Sequence[Plan], trials: Sequence[Trial], fit: Sequence[Trial], rounds: int) -> list[Plan]:
    """Those that no second run of these rounds shows to be never recommended; none without the baseline, where it was
    measured, or with that alone. A run that was lost or cancelled says nothing; one elsewhere would be there again."""
    well = {trial.number for trial in fit}
    left = {
        trial.plan
        for trial in trials
        if 0 < trial.round <= rounds and trial.number not in well and trial.verdict is not None
        if trial.verdict.informative or is_elsewhere(trial.last)
    }
    stable, baseline = [plan for plan in plans if plan not in left], _baseline(trials)
    return stable if baseline is None or (baseline in stable and len(stable) > 1) else []


def _front_first(measured: Sequence[Trial]) -> list[Trial]:
    """Trials from the fastest on: first those that need less memory than every faster one, then the others."""
    runs = ((trial, trial.measurement) for trial in measured)
    peaks = [(trial, peak) for trial, run in runs if run and (peak := run.fullest_rank_bytes) is not None]
    front = [trial for trial, _ in falling(peaks, lambda pair: pair[1])]
    return front + [trial for trial in measured if trial not in front]


def falling(values: Iterable[T], of: Callable[[T], float]) -> list[T]:
    """Those that are below all before them: of plans in the order of one quantity, the front of two."""
    kept, lowest = list[T](), inf
    for value in values:
        if of(value) < lowest:
            kept.append(value)
            lowest = of(value)
    return kept
