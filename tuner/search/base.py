"""The interface of a search: the plans to try next, as a function of the campaign's history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from typing import Annotated, Protocol

import numpy as np

from meshtune.runners.documents import merged, plain, read_value
from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.checks import Checked, Checks, InvalidValue, Limit, Positive, UserError
from meshtune.search_spaces.knob_values import KnobValue, KnobValues, same_value
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.physics.constants import UNCALIBRATED, Calibration
from meshtune.search_spaces.physics.recipes import with_recipe
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.recipe import Recipe
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.eligibility import numerics_kept, value_in
from meshtune.tuner.campaign.objective import Objective, yardstick_of
from meshtune.tuner.campaign.spec import CampaignSpec, workload_of
from meshtune.tuner.campaign.trial import Choice, Proposal, Trial


class SearchError(UserError):
    """The search cannot propose; the same history gives the same error."""


class UnknownSearch(SearchError):
    """No search of that name is registered."""


class SearchMisconfigured(SearchError):
    """An option of the search is wrong, or its library is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation(Checked):
    """One plan that a campaign has chosen, in the order of choosing; one chosen twice stands there twice.

    verdict None: still pending. score: what to maximise, exactly when the verdict is OK; no failed, pruned or pending
    plan ever has one. step_time_s: seconds per optimizer step, of a measured plan. peak_bytes: at the fullest rank,
    None where unknown. held_s: how long the trial held its devices, None where unknown.
    """

    plan: Plan
    verdict: Verdict | None = None
    score: float | None = None
    step_time_s: Positive | None = None
    peak_bytes: Positive | None = None
    held_s: float | None = None

    def _check(self, checks: Checks) -> None:
        if (self.score is not None) != (self.verdict is Verdict.OK):
            raise ValueError(f"{self.plan.key}: a score ({self.score}) goes with verdict ok only, not {self.verdict}")


def derived_seed(seed: int, seen: Sequence[Observation]) -> int:
    """A seed for this ask: fixed by the campaign's seed and by how far it is, so that an ask may be repeated."""
    return int(np.random.SeedSequence((seed, len(seen))).generate_state(1)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCampaign(Checked):
    """The trials of an earlier campaign, perhaps of another size or model, on the same kind of device.

    weight: how much one of its observations counts, 1 for as much as one of the campaign's own, 0 for nothing.
    """

    training: Training
    seen: tuple[Observation, ...]
    weight: Annotated[float, Limit(above=0, high=1)] = 1.0


@dataclass(frozen=True, slots=True)
class OtherCodes:
    """The trainings of plans whose knobs make another code of the workload, such as a compiled one, or set fields of
    the recipe: by the codes of the values of the knobs at these positions."""

    knobs: tuple[int, ...] = ()
    trained: Callable[[tuple[int, ...]], Training] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The task of a search.

    tolerance: a plan is worth finding if it is better than the best by more than this share. pareto: memory left over
    counts beside the score, and the best is a set (the Pareto front of score and peak memory). past: what earlier
    campaigns tried. calibration: the physics' constants and their doubt, before the campaign's own trials. per_device:
    plans of different sizes compare by the work of a device, not by that of the whole job. kept: the values that plans
    have of some knobs, by name, to be of use; others may be tried to tell what they would bring.
    """

    space: Space
    training: Training
    others: OtherCodes = field(default_factory=OtherCodes)
    tolerance: float = 0.02
    pareto: bool = False
    past: tuple[PastCampaign, ...] = ()
    calibration: Calibration = UNCALIBRATED
    per_device: bool = False
    kept: Mapping[str, KnobValue] = field(default_factory=dict)

    def is_of_use(self, plan: Plan) -> bool:
        """Whether the plan has the values that are kept; an inactive knob has its default."""
        kept = (knob for knob in self.space.knobs if knob.name in self.kept)
        return all(same_value(value_in(plan, knob), self.kept[knob.name]) for knob in kept)


class Search(Protocol):
    """A search keeps nothing between calls but what it can work out again: the history is its only memory."""

    def ask(self, task: Task, seen: Sequence[Observation], n: int) -> Proposal:
        """Up to `n` distinct plans of the task's space, none of them in `seen`, best first.

        Fewer than n, or none: the space holds no more unseen plans. The same arguments give the same plans, so a
        call may be repeated after a crash. Raises SearchError.
        """


def task_of(spec: CampaignSpec, space: Space, training: Training) -> Task:
    """The task of a campaign's search, without a past and without a calibration."""
    whole_job = spec.objective is Objective.STEP_TIME or space.knobs.size is None
    return Task(
        space=space,
        training=training,
        others=other_codes(spec, space.knobs, training),
        tolerance=spec.stop.tolerance,
        pareto=spec.pareto,
        per_device=not whole_job,
        kept=numerics_kept(spec),
    )


def other_codes(spec: CampaignSpec, knobs: KnobSet, training: Training) -> OtherCodes:
    """Values that exclude each other, or that the recipe refuses, leave the training as it is."""
    own = plain(training.recipe)

    def trained(codes: Mapping[int, int]) -> Training:
        values = [(knobs[at], knobs[at].values[code - 1]) for at, code in codes.items() if code]
        options = KnobValues({knob.name: value for knob, value in values if knob.way == "option"})
        try:
            workload = workload_of(spec, Plan(knobs=options))
            recipe = read_value(Recipe, reduce(merged, (one.in_recipe(value) for one, value in values), own))
            return replace(training, framework=with_recipe(workload.framework, recipe), recipe=recipe)
        except InvalidValue:
            return training

    told = {at: range(len(knob.values) + 1) for at, knob in enumerate(knobs) if knob.sets or knob.way == "option"}
    choosing = [at for at, codes in told.items() if any(trained({at: code}) != training for code in codes)]
    return OtherCodes(tuple(choosing), cache(lambda codes: trained(dict(zip(choosing, codes, strict=True)))))


def history(spec: CampaignSpec, trials: Sequence[Trial]) -> list[Observation]:
    """The campaign as a search sees it, in the order of choosing; a confirmed plan stands there several times."""
    yardstick = yardstick_of(spec)
    timed = [(trial, run) for trial in trials if (run := trial.measurement) is not None]
    rows = {trial.number: run.tokens_per_step / trial.plan.global_batch_size for trial, run in timed}
    first = next(iter(rows.values()), 0.0)  # steps of unlike tokens are seen as of these
    return [
        Observation(
            plan=trial.plan,
            verdict=trial.verdict,
            score=None if (measured := trial.measurement) is None else yardstick.score(measured),
            step_time_s=None if measured is None else measured.step_time_s * (first / rows[trial.number]),
            peak_bytes=None if measured is None else measured.fullest_rank_bytes,
            held_s=trial.last.running_s or None,
        )
        for trial in trials
    ]


def propose(search: Search, task: Task, spec: CampaignSpec, trials: Sequence[Trial], n: int) -> Proposal:
    """Up to n new plans from the search. Raises SearchError for one that is illegal or not new, for a chance that is
    none, and for a crash."""
    seen = history(spec, trials)
    try:
        proposal = search.ask(task, seen, n)
    except SearchError:
        raise
    except Exception as error:  # a defect of a search library must not take the service down
        raise SearchError(f"{type(error).__name__}: {error}") from error
    known = {entry.plan for entry in seen}
    for plan in proposal.plans[:n]:
        broken = task.space.explain(plan)
        if broken:
            raise SearchError(f"it proposed the illegal plan {plan.key}: {broken[0]}")
        if plan in known:
            raise SearchError(f"it proposed the plan {plan.key} again")
        known.add(plan)
    if proposal.chance_left is not None and not 0 <= proposal.chance_left <= 1:
        raise SearchError(f"it gave the chance left as {proposal.chance_left}, which is no probability")
    # Without a model no prediction stands beside a trial, whatever the search made of earlier ones.
    keep = list if spec.model.known else lambda choices: [Choice(one.plan) for one in choices]
    return replace(proposal, choices=tuple(keep(proposal.choices[:n])))
