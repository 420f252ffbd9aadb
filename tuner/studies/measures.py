"""The measures of a study by name: what a row can ask of campaigns, as a prediction or of their trials.

A measure is a value that is read from the row, with a function for each way in which it can be answered; one that has
no such way says so when the study is read. An answer has a number for each seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, ClassVar, Literal

from meshtune.runners.documents import read_value
from meshtune.runners.outcome import FAILED
from meshtune.search_spaces.checks import Checks, Closed, InvalidValue, Problem, did_you_mean
from meshtune.tuner.campaign.spec import CampaignSpec, space_of
from meshtune.tuner.results.analysis.shapley import explain_knobs
from meshtune.tuner.studies.evidence import (
    Evidence,
    PlanOf,
    Run,
    Step,
    StepQuantity,
    Unanswered,
    measured_speeds,
    measured_step,
    plan_in,
    predicted_step,
    speed_of,
    with_failures,
)

PREDICTED, MEASURED = "predicted", "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureQuestion(Closed):
    """A measure of a campaign, with its parameters. fits: the units that it may be in. predictable: it can be answered
    as a prediction too."""

    campaign: str
    fits: ClassVar[Sequence[str]] = ()
    predictable: ClassVar[bool] = False

    @property
    def campaigns(self) -> Sequence[tuple[str, str]]:
        """The campaigns that it names, each after the path where it does."""
        return [("campaign", self.campaign)]

    def units(self) -> Sequence[str]:
        return self.fits

    def problems(self, way: str, unit: str) -> list[Problem]:
        """Why it cannot be answered this way, or not in this unit."""
        alone = [] if way == MEASURED or self.predictable else ["is of trials alone: there is no prediction of it"]
        units = " or ".join(map(repr, self.units()))
        other = [] if unit in self.units() else [f"is in {units}, and the row's unit is {unit!r}"]
        return [Problem("measure", problem) for problem in (*alone, *other)]

    def problems_with(self, specs: Mapping[str, CampaignSpec]) -> list[Problem]:
        """What it asks that these campaigns have not."""
        return []

    def number(self, run: Run, way: str, unit: str, evidence: Evidence) -> float:
        """Of one run, in the unit; math.inf for what never happened. Raises Unanswered."""
        raise NotImplementedError

    def answer(self, way: str, unit: str, evidence: Evidence) -> list[float]:
        """Of each run that has a number; a prediction is of the spec, which seeds leave as it is. Raises Unanswered
        where no run has one."""
        numbers, reasons, runs = list[float](), list[str](), evidence[self.campaign]
        for run in runs[:1] if way == PREDICTED else runs:
            try:
                numbers.append(self.number(run, way, unit, evidence))
            except Unanswered as reason:
                reasons.append(str(reason))
        if not numbers:
            raise Unanswered("; ".join(dict.fromkeys(reasons)) or "no campaign ran")
        return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject(MeasureQuestion):
    plan: PlanOf = "baseline"
    predictable: ClassVar[bool] = True

    def step(self, way: str, run: Run) -> Step:
        return predicted_step(run, self.plan) if way == PREDICTED else measured_step(run, self.plan)

    def problems_with(self, specs: Mapping[str, CampaignSpec]) -> list[Problem]:
        if self.plan == "best":
            return []
        try:
            plan_in(specs[self.campaign], space_of(specs[self.campaign]), self.plan)
        except InvalidValue as error:
            return list(error.problems)
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Value(Subject):
    """A quantity of a plan: of the baseline, of the best that a campaign finds, or of one that is named."""

    quantity: StepQuantity

    def units(self) -> Sequence[str]:
        return [self.quantity.unit]

    def number(self, run: Run, way: str, unit: str, evidence: Evidence) -> float:
        return self.quantity.of(self.step(way, run))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio(Subject):
    """A quantity of one plan over that of another: `x` and `%` (100 is as much), such as the efficiency of scaling.
    With `gain`, by how much it is more: `%`."""

    quantity: StepQuantity
    over: Subject
    gain: bool = False

    @property
    def campaigns(self) -> Sequence[tuple[str, str]]:
        return [("campaign", self.campaign), ("over.campaign", self.over.campaign)]

    def units(self) -> Sequence[str]:
        return ["%"] if self.gain else ["x", "%"]

    def problems_with(self, specs: Mapping[str, CampaignSpec]) -> list[Problem]:
        own = Subject.problems_with(self, specs)  # a class with slots has no super()
        return [*own, *(problem.under("over") for problem in self.over.problems_with(specs))]

    def number(self, run: Run, way: str, unit: str, evidence: Evidence) -> float:
        others = {other.seed: other for other in evidence[self.over.campaign]}
        other = others.get(run.seed, next(iter(others.values())))
        ratio = self.quantity.of(self.step(way, run)) / self.quantity.of(self.over.step(way, other))
        return (100 if unit == "%" else 1) * (ratio - self.gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(MeasureQuestion):
    """The share of a campaign's trials that failed, in its first or last third or in all of it."""

    part: Literal["first_third", "last_third", "all"] = "all"
    fits: ClassVar[Sequence[str]] = ("%",)

    def number(self, run: Run, way: str, unit: str, evidence: Evidence) -> float:
        ended = [trial.verdict in FAILED for trial in run.ended]
        third = ceil(len(ended) / 3)
        counted = {"first_third": ended[:third], "last_third": ended[-third:], "all": ended}[self.part]
        if not counted:
            raise Unanswered("no trial has ended")
        return 100 * sum(counted) / len(counted)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialsTo(MeasureQuestion):
    """The trials that a campaign took to come within a share of the best that any of these campaigns found with the
    same seed."""

    among: tuple[str, ...] = ()
    within: float = 0.05
    fits: ClassVar[Sequence[str]] = ("trials",)

    def _check(self, checks: Checks) -> None:
        checks.require(0 < self.within < 1, "within", f"must lie between 0 and 1, not {self.within}")

    @property
    def campaigns(self) -> Sequence[tuple[str, str]]:
        return [("campaign", self.campaign), *((f"among.{at}", name) for at, name in enumerate(self.among))]

    def number(self, run: Run, way: str, unit: str, evidence: Evidence) -> float:
        rivals = [one for name in {self.campaign, *self.among} for one in evidence[name] if one.seed == run.seed]
        runs = ((one, trial.measurement) for one in rivals for trial in one.trials)
        speeds = [speed_of(one, measured) for one, measured in runs if measured is not None]
        if not speeds:
            raise Unanswered("nothing was measured")
        near = (1 - self.within) * max(speeds)
        measured = ((at, trial.measurement) for at, trial in enumerate(run.in_order, 1))
        return next((at for at, one in measured if one is not None and speed_of(run, one) >= near), inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobRank(MeasureQuestion):
    """The place of a knob among all that were searched, by the mean of its absolute Shapley values; 1 matters most.
    failures: left out, or counted as the slowest run, as a search is told that knows no more of them."""

    knob: str
    failures: Literal["left_out", "as_worst"] = "left_out"
    fits: ClassVar[Sequence[str]] = ("",)

    def number(self, run: Run, way: str, unit: str, evidence: Evidence) -> float:
        speeds = measured_speeds(run) if self.failures == "left_out" else with_failures(run)
        explained = explain_knobs(run.space, speeds)
        names = list(explained.knobs)
        if self.knob not in names:
            raise Unanswered(explained.nothing or f"{self.knob} had one value in all measured plans")
        return names.index(self.knob) + 1


MEASURES: Mapping[str, type[Any]] = {
    "value": Value,
    "ratio": Ratio,
    "failed": Failed,
    "trials_to": TrialsTo,
    "rank": KnobRank,
}


def read_question(asked: Mapping[str, Any]) -> MeasureQuestion:
    """What a row asks. Raises InvalidValue, from the row's `predicted` or `measured` on."""
    kind = asked.get("measure")
    if not isinstance(kind, str) or kind not in MEASURES:
        hint = did_you_mean(str(kind), MEASURES)
        problem = "is missing" if kind is None else f"no measure is called {kind!r}"
        raise InvalidValue([Problem("measure", f"{problem}; {hint}")])
    question: MeasureQuestion = read_value(
        MEASURES[kind], {key: value for key, value in asked.items() if key != "measure"}
    )
    return question
