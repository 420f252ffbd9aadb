"""What is shown of measured plans and of knobs: by the REST API, by `--json`, and in exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import Any, Literal, TypeVar, cast

from meshtune.runners.outcome import Verdict
from meshtune.runners.step_breakdown import Straggler
from meshtune.search_spaces.changes import Moves
from meshtune.search_spaces.knob import Direction, Knob, KnobKind, Numerics
from meshtune.search_spaces.knob_values import KnobValue
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.objective import Objective, yardstick_of
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Origin, PartTime, Trial, time_by_part
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.results.handover import MeasuredWith, measured_with
from meshtune.tuner.results.ranking import Ranked
from meshtune.tuner.results.recommendation import front_of
from meshtune.tuner.results.sizes import SizePoint, scaling_curve
from meshtune.tuner.results.winners import winners_of

_ABSENT = object()
View = TypeVar("View")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """unreadable: of rows that are left out, since this version does not read them, a sentence each."""

    next_page_token: str | None
    unreadable: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveView:
    """A measured objective in its unit, with the ends of its 95 % interval. Where the view that holds it says that no
    interval is known, the ends say nothing."""

    name: Objective
    value: float
    low: float
    high: float
    unit: str
    smaller_is_better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAgainView:
    """The second runs of a plan, by fresh jobs. trial: the one nearest to their mean, or that failed. runs: how many
    were measured. first: the objective's value as the first trial measured it. change: the mean speed of the second
    runs over the first minus 1; null where one failed or none was measured."""

    trial: int
    runs: int
    verdict: Verdict
    first: float
    change: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedView:
    """One measured setting. objective: by its second runs where there are any, else by its first. runs: the second
    ones that were measured. first_run: by its first alone. changes: of the spec's baseline, but for what follows from
    the rest. gain_over_baseline: a ratio of speeds minus 1 (0.25: 25 % faster), with at least 90 %. gain_rounds: the
    rounds of second runs beside the baseline's that it is of; 0: of the first runs, not confirmed. interval_known:
    always true.

    peak_memory_bytes: of tensors, on the most loaded rank. headroom_bytes: what the fullest rank left of its device;
    null where the job told no memory. mfu: a share of the device's peak. time_by_part: where the time of a profiled
    step went, means over the ranks; empty where it was not profiled. trains_as_baseline: true, or how the first losses
    differ from the baseline's; null where there is nothing to compare. changed_numerics: the knobs by which it
    computes something else than the baseline; then it is recommended only where the spec accepts that. other_hardware:
    how the hardware that it was measured on differs from the baseline's; empty where it does not. measured_again: what
    all the numbers come from where it measured something; null where nobody tried. measured_with: the program that the
    numbers are of.
    """

    rank: int
    trial: int
    origin: Origin
    plan: Plan
    plan_key: str
    changes: Moves
    runs: int
    objective: ObjectiveView
    first_run: ObjectiveView
    interval_known: bool
    tokens_per_s: Estimate
    step_time_s: float
    timed_steps: int
    peak_memory_bytes: int | None
    headroom_bytes: float | None
    tflops_per_device: float | None
    mfu: float | None
    time_by_part: list[PartTime]
    straggler: Straggler | None
    first_losses: tuple[float, ...]
    gain_over_baseline: Estimate | None
    gain_rounds: int
    trains_as_baseline: Literal[True] | str | None
    changed_numerics: tuple[str, ...]
    other_hardware: str
    measured_again: MeasuredAgainView | None
    measured_with: MeasuredWith


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationView:
    """The plan to use, None before anything was measured."""

    reason: str
    better_than_baseline: bool
    setting: RankedView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BestView:
    """The same as `meshtune best --json`. simulated: no device measured the numbers.

    fastest_once: the plan with the best first run, with the numbers of that run alone. fastest_confirmed: the best
    of those that were measured again, by their second runs; null where none was. best: the ranking, confirmed plans
    first. front: the plans of which none is both slower and fuller than another one, the fastest first, as many as
    there are. scaling: the best of each size, where a knob sizes the jobs.
    """

    campaign: str
    simulated: bool
    fastest_once: RankedView | None
    fastest_confirmed: RankedView | None
    recommendation: RecommendationView
    best: list[RankedView]
    front: list[RankedView]
    scaling: tuple[SizePoint, ...]


def view_of(kind: type[View], /, *sources: object, **others: Any) -> View:
    """The view whose fields are the attributes with the same names, each of the first source that has it, but for
    `others`."""
    names = [each.name for each in fields(cast(Any, kind)) if each.name not in others]
    return kind(**{name: _first(sources, name) for name in names}, **others)


def _first(sources: Sequence[object], name: str) -> Any:
    for one in sources[:-1]:
        if (value := getattr(one, name, _ABSENT)) is not _ABSENT:
            return value
    return getattr(sources[-1], name)


def objective_view(spec: CampaignSpec, reached: Estimate) -> ObjectiveView:
    return view_of(
        ObjectiveView,
        reached,
        name=spec.objective,
        unit=yardstick_of(spec).unit,
        smaller_is_better=spec.objective.smaller_is_better,
    )


def best_view(
    campaign: Campaign,
    ranking: Sequence[Ranked],
    top: int,
    whole: Callable[[set[int]], Mapping[int, Trial]] | None = None,
) -> BestView:
    """whole: the complete trials of these numbers, where the ranking is of listed ones."""
    winners, best, front = winners_of(campaign.spec, ranking), ranking[:top], front_of(ranking)
    once, confirmed, recommended = winners.fastest_once, winners.fastest_confirmed, winners.recommended
    named = [entry for entry in (once, confirmed, recommended) if entry is not None]
    views = iter(ranked_views(campaign, [*named, *best, *front], whole))
    whole_once = None
    if once is not None:
        same = next(entry for entry in ranking if entry.rank == once.rank)
        whole_once = replace(next(views), measured_again=_again_view(same))
    return BestView(
        campaign=campaign.id,
        simulated=campaign.simulated,
        fastest_once=whole_once,
        fastest_confirmed=None if confirmed is None else next(views),
        recommendation=RecommendationView(
            reason=winners.recommendation.reason,
            better_than_baseline=winners.recommendation.better,
            setting=None if recommended is None else next(views),
        ),
        best=list(islice(views, len(best))),
        front=list(views),
        scaling=scaling_curve(campaign, ranking),
    )


def ranked_views(
    campaign: Campaign, entries: Sequence[Ranked], whole: Callable[[set[int]], Mapping[int, Trial]] | None = None
) -> list[RankedView]:
    """whole: as of `best_view`."""
    trials = {} if whole is None else whole({entry.measured_by.number for entry in entries})
    return [_ranked_view(campaign.spec, entry, trials.get(entry.measured_by.number)) for entry in entries]


def _ranked_view(spec: CampaignSpec, entry: Ranked, whole: Trial | None) -> RankedView:
    measured = (None if whole is None else whole.measurement) or entry.measurement
    profile = measured.profile
    return view_of(
        RankedView,
        entry,
        entry.trial,
        measured,
        trial=entry.trial.number,
        objective=objective_view(spec, entry.objective),
        first_run=objective_view(spec, entry.first_run),
        runs=len(entry.runs) - 1,
        timed_steps=len(measured.step_times_s),
        time_by_part=list(time_by_part(profile)),
        straggler=None if profile is None else profile.straggler,
        gain_over_baseline=entry.gain,
        measured_again=_again_view(entry),
        measured_with=measured_with(spec, measured),
    )


def _again_view(entry: Ranked) -> MeasuredAgainView | None:
    again = entry.confirmation
    if again is None:
        return None
    trial = again.trial
    return view_of(MeasuredAgainView, again, trial=trial.number, verdict=trial.verdict, first=entry.first_run.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobView:
    """A knob. default: the value that holds where nobody sets it. when: the condition under which it is active, empty
    for always. way: how the job is told, one of argument, env, config, option, placeholder and size; told: the words,
    the variable, the key, the option or the name. omit: the value with which the job is told nothing. memory, compute,
    communication: the declared effect of values above the default (numeric, ordered), or of every value but it."""

    name: str
    values: tuple[KnobValue, ...]
    kind: KnobKind
    default: KnobValue
    when: str
    way: str
    told: str
    omit: KnobValue | None
    numerics: Numerics
    memory: Direction | None
    compute: Direction | None
    communication: Direction | None
    meaning: str
    source: str
    versions: str
    risk: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogView:
    """A catalog of knobs, by which a spec may name all of them."""

    name: str
    knobs: list[KnobView]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogsView:
    catalogs: list[CatalogView]
    next_page_token: str | None = None


def catalogs_view(catalogs: Mapping[str, Sequence[Knob]]) -> CatalogsView:
    return CatalogsView(
        catalogs=[CatalogView(name=name, knobs=list(map(knob_view, knobs))) for name, knobs in catalogs.items()]
    )


def knob_view(knob: Knob) -> KnobView:
    return view_of(KnobView, knob, told=getattr(knob, knob.way, None) or knob.name)
