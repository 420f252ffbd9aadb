"""CampaignSpec: a user's request as values that check themselves, with the workload and the space that it stands for.

Sections are independent values; rules between them (a legal space, a legal baseline, a peak for MFU) are checked in
`tuner.specs.read`, with the path of each problem.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, WithJsonSchema

from meshtune.runners.base import JobSpec
from meshtune.runners.documents import plain
from meshtune.runners.programs.workloads.base import JobRequest, Workload
from meshtune.runners.programs.workloads.knobs import options
from meshtune.runners.registry import create_workload
from meshtune.search_spaces.checks import Checks, Closed, Limit, Name, Natural, Positive, Project, Share, Some, Text
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import SpaceContext
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knobs import NO_KNOBS, KnobSet, sized, sizes_of
from meshtune.search_spaces.model import UNKNOWN, ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.recipe import PLAIN, Recipe
from meshtune.search_spaces.space import MAX_COMBINATIONS, Bounds, Space
from meshtune.tuner.campaign.objective import Objective

# The word for a global batch that is searched.
FREE = "free"
MAX_TAGS, MAX_NOTES = 20, 10_000
TAG = re.compile(r"^[a-z0-9][a-z0-9._-]{0,39}$")


def fit_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    """The same. Raises InvalidValue."""
    checks = Checks()
    for place, tag in enumerate(tags):
        problem = f"must be 1 to 40 of a-z, 0-9, '.', '_' and '-', the first a letter or digit, not {tag[:60]!r}"
        checks.require(TAG.fullmatch(tag) is not None, str(place), problem)
    checks.require(len(set(tags)) == len(tags), "", "must name each tag once")
    checks.require(len(tags) <= MAX_TAGS, "", f"must be at most {MAX_TAGS}, not {len(tags)}")
    checks.done()
    return tags


_TAGS = {"type": "array", "items": {"type": "string", "pattern": TAG.pattern}, "maxItems": MAX_TAGS}
# Each once, in their order.
Tags = Annotated[tuple[str, ...], AfterValidator(fit_tags), WithJsonSchema(_TAGS)]
Notes = Annotated[str, Text("", f"have at most {MAX_NOTES} characters", most=MAX_NOTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One implementation by name, with its own options; the implementation checks those."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(Closed):
    """What the campaign may use at the most; at least one limit."""

    # The baseline included, second runs not.
    trials: Some | None = None
    # Seconds in which the campaign is worked on; pauses, and times without a service, do not count.
    wall_time_s: Positive | None = None
    # Devices times the hours that jobs held them. Left out: what the quote says, with a margin; null: no limit.
    device_hours: Positive | None = None
    # Whether those follow the quote: other trials or time limits later change them alike, and they ask for no quota.
    device_hours_follow: bool = False

    def _check(self, checks: Checks) -> None:
        problem = "set at least one limit of trials, wall_time_s, device_hours"
        checks.require({self.trials, self.wall_time_s, self.device_hours} != {None}, "", problem)


# 31 years: sums over all trials of a campaign stay finite.
MAX_TIME_LIMIT_S = 10**9
TimeLimit = Annotated[float, Limit(above=0, high=MAX_TIME_LIMIT_S)]
# Where a spec states no limit and nothing is predicted; the least that a prediction gives.
DEFAULT_TIME_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLimits(Closed):
    """Limits of one trial."""

    # Of each attempt. Left out: time for the predicted steps and the start, with a margin, and 300 at least; without a
    # prediction 300, and twice `start_s` where that is stated.
    time_limit_s: TimeLimit | None = None
    # Whether it was left out: a spec made of this one gets its own.
    time_limit_follow: bool = False
    # The most that such a prediction may give: a queue, say, takes no longer jobs.
    time_limit_cap_s: TimeLimit | None = None
    # What a trial takes before its first step, for predictions; by default 5 on CPUs, else 120.
    start_s: TimeLimit | None = None
    # Where the infrastructure loses the job (`lost`), or runs it on other hardware than the baseline. Preemptions do
    # not count, up to 20 attempts in all.
    attempts: Some = 3
    # A trial that is surely slower than the best so far ends early as `pruned`, without a measurement.
    racing: bool = False
    # A job that has waited, or was refused, for so many seconds is withdrawn, and the campaign pauses with the
    # scheduler's reason; `meshtune resume` sends it again. None: it may wait for ever.
    queue_limit_s: TimeLimit | None = None

    @property
    def limit_s(self) -> float:
        return self.time_limit_s or DEFAULT_TIME_LIMIT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule(Closed):
    """When the search has found enough."""

    # Gain that is worth further trials, as a share of the best speed.
    tolerance: Share = 0.02
    # The search ends when an untried plan beats the best by `tolerance` with a lower probability; 0: only the budget
    # ends it.
    chance: Share = 0.05


class Acceptance(StrEnum):
    """numerics: a plan whose knobs change what is computed (`Knob.numerics`) may be recommended."""

    NUMERICS = "numerics"


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSpec(Closed):
    """One campaign, fully resolved: presets are expanded, defaults filled in, the baseline's derived fields too.

    global_batch_size None: freed, so accumulation is searched as a dimension of its own. parallel: trials in flight
    at the same time, each on all devices of the cluster description. pareto: memory left over counts beside the
    objective, and the best is a set. confirm: how many of the best plans are measured again, in turns with the
    baseline by fresh jobs, before one is recommended; each at most confirm_rounds times. knobs: those of the
    spec and of its catalogs. accept: what a recommendation may do that it else may not. warm_start: the search may
    learn from earlier campaigns in the store, where it can. project: whose tokens share the campaign; empty for none,
    and nothing to the search. tags, notes: by people, for people; the store keeps them beside the spec.
    """

    name: Name = "campaign"
    model: ModelSpec
    training: Recipe = PLAIN
    cluster: ClusterSpec
    workload: Backend
    global_batch_size: Some | None
    space: Bounds
    knobs: tuple[Knob, ...] = ()
    accept: tuple[Acceptance, ...] = ()
    baseline: Plan | None
    objective: Objective = Objective.TOKENS_PER_S_PER_DEVICE
    search: Backend
    runner: Backend
    budget: Budget
    trial: TrialLimits
    stop: StopRule = StopRule()
    parallel: Some = 1
    seed: Natural = 0
    pareto: bool = False
    confirm: Natural = 3
    confirm_rounds: Some = 14
    warm_start: bool = True
    project: Project = ""
    tags: Tags = ()
    notes: Notes = ""

    @property
    def accepts_numerics(self) -> bool:
        return Acceptance.NUMERICS in self.accept


# The plain values at the top of a spec, and its tags, with the limits of their annotations.
SCALARS: Mapping[str, Any] = {
    name: hint
    for name, hint in get_type_hints(CampaignSpec, include_extras=True).items()
    if hint is Tags or getattr(hint, "__origin__", hint) in (str, int, bool, Objective)
}


def document_of(spec: CampaignSpec) -> dict[str, Any]:
    """The spec as a document that `read_spec` reads back to an equal one, so that a campaign can be posted again."""
    document: dict[str, Any] = plain(spec)
    for name in ("workload", "search", "runner"):
        backend = document[name]
        document[name] = {"kind": backend["kind"], **backend["options"]}
    if spec.global_batch_size is None:
        document["global_batch_size"] = FREE
    if not spec.model.known:
        document["model"] = UNKNOWN
    if spec.baseline is None:
        del document["baseline"]
    return document


def workload_of(spec: CampaignSpec, plan: Plan | None = None) -> Workload:
    """The spec's training code; of a plan, with the options that its knobs set. Raises InvalidValue where options
    exclude each other."""
    told = {} if plan is None else options(spec.knobs, plan)
    return create_workload(spec.workload.kind, {**spec.workload.options, **told})


def job_of(
    spec: CampaignSpec,
    plan: Plan,
    name: str,
    directory: Path,
    workload: Workload | None = None,
    incumbent_step_time_s: float | None = None,
    real: bool = False,
) -> JobSpec:
    """The job that measures a plan in this folder, as pure text; with an incumbent, one that is given up when it is
    slower. workload: the spec's, where it was created before. real: see `JobRequest`."""
    request = JobRequest(
        name,
        spec.model,
        plan,
        sized(spec.cluster, plan),
        directory,
        knobs=spec.knobs,
        seed=spec.seed,
        time_limit_s=spec.trial.limit_s,
        incumbent_step_time_s=incumbent_step_time_s,
        real=real,
        recipe=spec.training,
    )
    return (workload or workload_of(spec)).materialize(request)


def space_of(spec: CampaignSpec) -> Space:
    """The spec's space. Raises SpaceTooLarge."""
    knobs = KnobSet(spec.knobs)
    return build_space(spec.space, spec.model, spec.cluster, spec.global_batch_size, workload_of(spec), knobs=knobs)


def build_space(
    bounds: Bounds,
    model: ModelSpec,
    cluster: ClusterSpec,
    global_batch_size: int | None,
    workload: Workload,
    max_combinations: int = MAX_COMBINATIONS,
    knobs: KnobSet = NO_KNOBS,
) -> Space:
    """The plans that are legal for a model on a cluster with a workload. Raises SpaceTooLarge, and InvalidValue for
    sizes that the cluster does not have."""
    context = SpaceContext(
        model=model,
        cluster=cluster,
        global_batch_size=global_batch_size,
        capabilities=workload.capabilities,
        tp_across_nodes=bounds.tp_across_nodes,
        sizes=sizes_of(knobs, cluster),
    )
    return Space(bounds, context, max_combinations, knobs)
