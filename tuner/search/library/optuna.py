"""Optuna's samplers, brought onto the legal plans: an in-memory study is rebuilt from the history at every ask.

TPE draws from densities, so it names illegal plans and repeats itself (optuna 5.0: 48 repeats of 60 asks in a space of
12). A draw that is no legal unseen plan is left RUNNING, and the next one drawn: the constant liar then keeps away from
it, yet it does not count as an observation. The Gaussian process is handed the list of legal unseen plans instead.

TPE is the default: which of the two needs fewer trials changes from table to table (benchmarks/log.md), and on 2,562
plans an ask of the Gaussian process costs some 20 times as much (0.35 s at 20 observations).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from meshtune.search_spaces.listing import Listing
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.trial import Proposal
from meshtune.tuner.search.base import Observation, Task
from meshtune.tuner.search.library.encoding import Encoding, Features, FloatArray, History, IntArray
from meshtune.tuner.search.library.memory_guard import MemoryGuard
from meshtune.tuner.search.library.surrogate import Offer, SurrogateOptions, propose
from meshtune.tuner.search.registry import require_library

if TYPE_CHECKING:
    import optuna
    from optuna._gp.acqf import BaseAcquisitionFunc
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

# Draws of TPE per proposal before the candidate nearest to the first of them is taken instead.
TRIES = 10
# The Gaussian process weighs so many candidates; more are thinned out at random.
MAX_CANDIDATES = 20_000
# What a failure lacks at least, in doublings of the usable memory; all of it where the failure is not memory's.
LEAST_LACKING = 0.05

Params = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptunaOptions(SurrogateOptions):
    """sampler: tree-structured Parzen estimators ("tpe") or a Gaussian process ("gp", which needs torch)."""

    n_initial: Annotated[int, Field(ge=1)] | None = 4
    sampler: Literal["tpe", "gp"] = "tpe"


@dataclass(frozen=True, slots=True)
class OptunaSearch:
    """One of Optuna's samplers, over ranks and categories."""

    seed: int
    options: OptunaOptions = OptunaOptions()
    guard: MemoryGuard = field(default_factory=MemoryGuard, compare=False)

    def __post_init__(self) -> None:
        if self.options.sampler == "gp":
            require_library("optuna with sampler gp", "torch")

    def ask(self, task: Task, seen: Sequence[Observation], n: int) -> Proposal:
        choose = best_by_gp if self.options.sampler == "gp" else drawn_by_tpe
        return propose(task, seen, n, self.seed, self.options, self.guard, choose)


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Its verbosity is global, so it is put back. Raises ImportError without the library."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)


def best_by_gp(history: History, under_way: Sequence[Features], offer: Offer, n: int, seed: int) -> list[Plan]:
    """`n` of the plans offered: each the best by the acquisition, with those before it under way. A Pareto task becomes
    one of a single number: Optuna measures its hypervolume from the worst success, so that whatever takes more memory
    than that is worth nothing to it, and its front stays among the small ones (benchmarks/log.md)."""
    encoding = history.encoding
    worths = history.traded_off(seed) if history.pareto else history.scores
    free, chosen = offer.positions[:MAX_CANDIDATES], list[int]()
    with quiet_optuna():
        while len(chosen) < n and len(free):
            # Sample as RUNNING, each would cost a second: Optuna then integrates over what may become of it. A poor
            # success keeps the next choice away just as well.
            away = (*under_way, *map(encoding.features, chosen))
            study = _study(history, _listed_gp(seed, _grid_points(encoding, free)), worths, away)
            index = encoding.index_of(_features(encoding, study.ask(_distributions(encoding)).params))
            assert index is not None, "the sampler went beyond the plans that it was offered"
            chosen.append(index)
            free = free[free != index]
    return [history.plans[index] for index in chosen]


def _listed_gp(seed: int, points: FloatArray) -> BaseSampler:
    """Optuna's Gaussian process, with its acquisition on every one of `points` instead of a search over the grid."""
    from optuna.samplers import GPSampler

    class ListedGPSampler(GPSampler):
        # Optuna says: "Advanced users can override this method to change the optimization algorithm", without a
        # promise to keep it; pyproject.toml holds Optuna below 6.
        def _optimize_acqf(self, acqf: BaseAcquisitionFunc, best_params: FloatArray | None) -> FloatArray:
            best: FloatArray = points[int(np.argmax(acqf.eval_acqf_no_grad(points)))]
            return best

    return ListedGPSampler(seed=seed, n_startup_trials=1)


def _grid_points(encoding: Encoding, indexes: IntArray) -> FloatArray:
    """Plans as Optuna's Gaussian process sees them: parameters by name, numbers as the middle of their rank's share of
    0 to 1, categories as their rank."""
    columns = {
        name: ranks if name in encoding.categories else (ranks + 0.5) / len(encoding.choices[name])
        for name, ranks in zip(encoding.choices, encoding.ranks[indexes].T, strict=True)
    }
    return np.stack([columns[name] for name in sorted(columns)], axis=1).astype(np.float64)


def drawn_by_tpe(history: History, under_way: Sequence[Features], offer: Offer, n: int, seed: int) -> list[Plan]:
    """`n` plans: the first draw that is offered, or of those offered the one nearest to the first draw.

    With knobs, a draw stands for the nearest legal layout with the values drawn of those that are active there.
    """
    import optuna

    encoding, plans = history.encoding, history.plans
    points, free, chosen = encoding.points(), offer.positions, list[Plan]()
    among = frozenset(free.tolist())
    layouts = _Layouts.of(plans.space, encoding) if isinstance(plans, Listing) else None

    def plan_of(drawn: Features) -> Plan | None:
        if layouts is None:
            index = encoding.index_of(drawn)
            return None if index not in among else plans[index]
        plan = layouts.plan(drawn)
        free = plans.find(plan) in among if offer.accepts is None else plan not in chosen and offer.accepts(plan)
        return plan if free else None

    with quiet_optuna():
        study = _study(history, optuna.samplers.TPESampler(seed=seed, n_startup_trials=1, multivariate=True))
        for features in under_way:
            study.add_trial(_running(encoding, features))
        while len(chosen) < n:
            plan, first = _draw(study, encoding, plan_of)
            if plan is None:
                index = int(free[np.argmin(np.sum((points[free] - encoding.point(first)) ** 2, axis=1))])
                study.add_trial(_running(encoding, encoding.features(index)))
                plan = plans[index]
            chosen.append(plan)
            free = free[free != plans.find(plan)]
            among = frozenset(free.tolist())
    return chosen


@dataclass(frozen=True, slots=True, eq=False)
class _Layouts:
    """The legal layouts by their features, for what is drawn with no regard to which are legal."""

    space: Space
    encoding: Encoding
    layouts: Encoding
    points: FloatArray

    @classmethod
    def of(cls, space: Space, encoding: Encoding) -> _Layouts:
        # Every layout once, with its knobs at their defaults.
        every = Listing(space, np.arange(len(space)), space.default_codes)
        layouts = Encoding.of(every, [name for name in encoding.choices if name in space.dimensions])
        return cls(space, encoding, layouts, layouts.points())

    def plan(self, drawn: Features) -> Plan:
        """On the layout that is nearest to the one drawn."""
        away = np.sum((self.points - self.layouts.point(drawn)) ** 2, axis=1)
        nearest, codes = int(np.argmin(away)), self.space.knobs.defaults.copy()
        for name, code in self.encoding.codes_of(drawn).items():
            codes[self.space.knobs.names.index(name)] = code
        return self.space.plan(nearest, self.space.canonical(np.array([nearest]), codes[None, :])[0].tolist())


def _draw(
    study: optuna.Study, encoding: Encoding, plan_of: Callable[[Features], Plan | None]
) -> tuple[Plan | None, Features]:
    """The plan of the first of `TRIES` draws that has one, and the first draw. What is drawn is under way to the
    study."""
    distributions = _distributions(encoding)
    drawn: list[Features] = []
    for _ in range(TRIES):
        drawn.append(_features(encoding, study.ask(distributions).params))
        plan = plan_of(drawn[-1])
        if plan is not None:
            return plan, drawn[0]
    return None, drawn[0]


def _study(
    history: History, sampler: BaseSampler, worths: Sequence[float] | None = None, away: Sequence[Features] = ()
) -> optuna.Study:
    """A study that knows the history. worths: of the successes, the one objective; None: the score is to be large and,
    in a Pareto task, the peak memory small. away: plans to keep away from, as if each were the worst success.

    Failures are infeasible by the memory that they lack, successes feasible by what is left of it: TPE orders failures
    by that and looks at nothing else of them, a Gaussian process fits it, and believes the graded scores too. Told as
    FAIL they would teach nothing, and TPE runs into more of them (52 % of trials instead of 39 %).
    """
    from optuna import create_study
    from optuna.trial import create_trial

    encoding, distributions = history.encoding, _distributions(history.encoding)
    pareto = history.pareto and worths is None
    study = create_study(directions=["maximize", "minimize"] if pareto else ["maximize"], sampler=sampler)

    def add(features: Features, values: list[float], lacks: float) -> None:
        params, constraints = _params(encoding, features), {"memory": lacks}
        study.add_trial(
            create_trial(params=params, distributions=distributions, values=values, constraints=constraints)
        )

    wanted = history.scores if worths is None else worths
    for one, score in zip(history.samples, history.graded(wanted), strict=True):
        lacks = max(one.excess, LEAST_LACKING) if one.score is None else min(one.excess, 0.0)
        add(one.features, [score, one.peak_bytes] if pareto else [score], lacks)
    for features in away:
        add(features, [min(wanted, default=0.0)], 0.0)
    return study


def _running(encoding: Encoding, features: Features) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    return create_trial(
        state=TrialState.RUNNING, params=_params(encoding, features), distributions=_distributions(encoding)
    )


def _distributions(encoding: Encoding) -> dict[str, BaseDistribution]:
    """Numbers as their rank: Optuna has no ordinal distribution with uneven steps."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    return {
        name: CategoricalDistribution(features)
        if name in encoding.categories
        else IntDistribution(0, len(features) - 1)
        for name, features in encoding.choices.items()
    }


def _params(encoding: Encoding, features: Features) -> Params:
    return {
        name: value if name in encoding.categories else encoding.choices[name].index(value)
        for name, value in features.items()
    }


def _features(encoding: Encoding, params: Mapping[str, Any]) -> Features:
    return {
        name: value if name in encoding.categories else encoding.choices[name][value] for name, value in params.items()
    }
