"""CampaignSpec: a user's request as values that check themselves, with the workload and the space that it stands for.

Sections are independent values; rules between them (a legal space, a legal baseline, a peak for MFU) are checked in
`tuner.specs.read`, with the path of each problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from meshtune.runners.base import JobSpec
from meshtune.runners.documents import plain
from meshtune.runners.programs.workloads.base import Workload
from meshtune.runners.registry import create_workload
from meshtune.search_spaces.checks import CLOSED, Checks, InvalidValue, Problem, unfit_name
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.columns import SpaceContext
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knobs import NO_KNOBS, KnobSet, sized, sizes_of
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import MAX_COMBINATIONS, Bounds, Space
from meshtune.tuner.campaign.objective import Objective

# The word for a global batch that is searched.
FREE = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One implementation by name, with its own options; the implementation checks those."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the campaign may use at the most; at least one limit. wall_time_s counts while the campaign is worked on
    (not while it is paused or no service runs); device_hours counts devices times the time that jobs held them."""

    __pydantic_config__: ClassVar[Any] = CLOSED

    trials: int | None = None
    wall_time_s: float | None = None
    device_hours: float | None = None

    def __post_init__(self) -> None:
        checks = Checks()
        limits = {"trials": self.trials, "wall_time_s": self.wall_time_s, "device_hours": self.device_hours}
        some = any(limit is not None for limit in limits.values())
        checks.require(some, "", f"set at least one limit of {', '.join(limits)}")
        for name, limit in limits.items():
            checks.require(limit is None or limit > 0, name, f"must be positive, not {limit}")
        checks.done()


# 31 years: sums over all trials of a campaign stay finite.
MAX_TIME_LIMIT_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLimits:
    """Limits of one trial: time_limit_s for each attempt, attempts where the infrastructure loses jobs; preemptions do
    not count. racing: give a trial up as PRUNED once it is surely slower than the best one so far (see
    `tuner.campaign.decide`). queue_limit_s: a job that has not started so long after it was sent is withdrawn, and the
    campaign pauses; None: it may wait for ever."""

    __pydantic_config__: ClassVar[Any] = CLOSED

    time_limit_s: float = 300.0
    attempts: int = 3
    racing: bool = False
    queue_limit_s: float | None = None

    def __post_init__(self) -> None:
        checks = Checks()
        if (queue_s := self.queue_limit_s) is not None and not 0 < queue_s <= MAX_TIME_LIMIT_S:
            told = f"must be positive and at most {MAX_TIME_LIMIT_S:.0e} s, not {queue_s}"
            checks.require(False, "queue_limit_s", told)
        told = f"must be positive and at most {MAX_TIME_LIMIT_S:.0e} s, not {self.time_limit_s}"
        checks.require(0 < self.time_limit_s <= MAX_TIME_LIMIT_S, "time_limit_s", told)
        checks.at_least(1, attempts=self.attempts)
        checks.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """When the search has found enough: no more plans are chosen once the probability that an untried one is better
    than the best by more than `tolerance` (a share of its speed) is below `chance`. chance 0: only the budget ends it.
    """

    __pydantic_config__: ClassVar[Any] = CLOSED

    tolerance: float = 0.02
    chance: float = 0.05

    def __post_init__(self) -> None:
        checks = Checks()
        checks.require(0 <= self.tolerance < 1, "tolerance", f"must be at least 0 and below 1, not {self.tolerance}")
        checks.require(0 <= self.chance < 1, "chance", f"must be at least 0 and below 1, not {self.chance}")
        checks.done()


class Acceptance(StrEnum):
    """numerics: a plan whose knobs change what is computed (`Knob.numerics`) may be recommended."""

    NUMERICS = "numerics"


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSpec:
    """One campaign, fully resolved: presets are expanded, defaults filled in, the baseline's derived fields too.

    global_batch_size None: freed, so accumulation is searched as a dimension of its own. parallel: trials in flight
    at the same time, each on all devices of the cluster description. pareto: memory left over counts beside the
    objective, and the best is a set. confirm: how many of the best plans are measured again, in turns with the
    baseline by fresh jobs, before one is recommended; each at most confirm_rounds times. knobs: those of the
    spec and of its catalogs. accept: what a recommendation may do that it else may not. warm_start: the search may
    learn from earlier campaigns in the store, where it can. project: whose tokens share the campaign; empty for none,
    and nothing to the search.
    """

    __pydantic_config__: ClassVar[Any] = CLOSED

    name: str = "campaign"
    model: ModelSpec
    cluster: ClusterSpec
    workload: Backend
    global_batch_size: int | None
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
    parallel: int = 1
    seed: int = 0
    pareto: bool = False
    confirm: int = 3
    confirm_rounds: int = 6
    warm_start: bool = True
    project: str = ""

    def __post_init__(self) -> None:
        problems = scalar_problems({name: getattr(self, name) for name in (*SCALARS, "global_batch_size")})
        if problems:
            raise InvalidValue(problems)

    @property
    def accepts_numerics(self) -> bool:
        return Acceptance.NUMERICS in self.accept


# The plain values at the top of a spec.
SCALARS: Mapping[str, type] = {
    name: kind for name, kind in get_type_hints(CampaignSpec).items() if kind in (str, int, bool, Objective)
}


def scalar_problems(values: Mapping[str, Any]) -> list[Problem]:
    """The broken rules of a spec's plain values, as far as they are given, whatever its sections say."""
    found: list[Problem] = []
    name = values.get("name", "campaign")
    if not name.strip() or len(name) > 100:
        found.append(Problem("name", f"must have 1 to 100 characters, not {len(name)}"))
    project = values.get("project", "")
    if project and (unfit := unfit_name(project)):
        found.append(Problem("project", unfit))
    for key, minimum in {"parallel": 1, "seed": 0, "confirm": 0, "confirm_rounds": 1, "global_batch_size": 1}.items():
        if (value := values.get(key)) is not None and value < minimum:
            found.append(Problem(key, f"must be at least {minimum}, not {value}"))
    return found


def document_of(spec: CampaignSpec) -> dict[str, Any]:
    """The spec as a document that `read_spec` reads back to an equal one, so that a campaign can be posted again."""
    document: dict[str, Any] = plain(spec)
    for name in ("workload", "search", "runner"):
        backend = document[name]
        document[name] = {"kind": backend["kind"], **backend["options"]}
    if spec.global_batch_size is None:
        document["global_batch_size"] = FREE
    if spec.baseline is None:
        del document["baseline"]
    return document


def workload_of(spec: CampaignSpec) -> Workload:
    """The spec's training code."""
    return create_workload(spec.workload.kind, spec.workload.options)


def job_of(
    spec: CampaignSpec,
    plan: Plan,
    name: str,
    directory: Path,
    workload: Workload | None = None,
    incumbent_step_time_s: float | None = None,
) -> JobSpec:
    """The job that measures a plan in this folder, as pure text; with an incumbent, one that is given up when it is
    slower. workload: the spec's, where it was created before."""
    return (workload or workload_of(spec)).materialize(
        name,
        spec.model,
        plan,
        sized(spec.cluster, plan),
        directory,
        knobs=spec.knobs,
        seed=spec.seed,
        time_limit_s=spec.trial.time_limit_s,
        incumbent_step_time_s=incumbent_step_time_s,
    )


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
