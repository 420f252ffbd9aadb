"""The searches by name, each imported on first use: a missing library breaks only its own search.

And the two that learn nothing: random, which any other must beat, and grid, which leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import islice
from typing import Any, TypeVar, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from meshtune.runners.extras import MissingExtra, require_extra
from meshtune.runners.packages import Packaged, unloadable, with_packages
from meshtune.runners.registry import load
from meshtune.search_spaces.checks import did_you_mean, raising
from meshtune.search_spaces.listing import in_order, in_random_order, whole
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.trial import Proposal, proposal_of
from meshtune.tuner.search.base import Observation, Search, SearchMisconfigured, Task, UnknownSearch

T = TypeVar("T")

# Of entry points "NAME = module:attribute", whose attribute is a SearchKind.
GROUP = "meshtune.searches"
_MEMORY = "learns what fits into memory, and no speeds,"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchKind(Packaged):
    """A search that a spec may name. made_by: "module:class", which takes a seed and options, a dataclass. learns: what
    it learns from earlier campaigns, in words for people; empty: nothing. extra: of meshtune, that it needs."""

    made_by: str = ""
    learns: str = ""
    extra: str = ""


SEARCHES: Mapping[str, SearchKind] = {
    "physics": SearchKind(
        made_by="meshtune.tuner.search.physics.search:PhysicsSearch",
        learns="learns",
        harmless=frozenset({"prior", "fits", "residual"}),
    ),
    "deephyper": SearchKind(
        made_by="meshtune.tuner.search.library.deephyper:DeepHyperSearch",
        learns=_MEMORY,
        extra="deephyper",
        harmless=frozenset({"n_initial", "guard", "filter_failures"}),
    ),
    "optuna": SearchKind(
        made_by="meshtune.tuner.search.library.optuna:OptunaSearch",
        learns=_MEMORY,
        extra="optuna",
        harmless=frozenset({"n_initial", "guard", "sampler"}),
    ),
    "calibration": SearchKind(made_by="meshtune.tuner.search.calibration:CalibrationSearch"),
    "random": SearchKind(made_by="meshtune.tuner.search.registry:RandomSearch", harmless=frozenset()),
    "grid": SearchKind(made_by="meshtune.tuner.search.registry:GridSearch", harmless=frozenset()),
}

# A space with knobs is put in a random order whole up to so many plans; of a larger one so many are drawn at most.
LISTED, MAX_DRAWS = 50_000, 1_000_000


@cache
def _with_packages() -> Mapping[str, SearchKind]:
    return with_packages(GROUP, "search", SearchKind, SEARCHES)


def searches() -> Mapping[str, SearchKind]:
    """The built-in searches, and those of installed packages (`with_packages`)."""
    return {**_with_packages(), **SEARCHES}


def create_search(kind: str, *, seed: int, options: Mapping[str, Any]) -> Search:
    """The search of that name. Raises UnknownSearch, and SearchMisconfigured for an option or a missing library."""
    known = searches()
    if kind not in known:
        raise UnknownSearch(f"no search {kind!r}: {did_you_mean(kind, known)} (known: {', '.join(sorted(known))})")
    if known[kind].trouble:
        raise UnknownSearch(known[kind].trouble)
    if seed < 0:
        raise SearchMisconfigured(f"search {kind}: the seed must be at least 0, not {seed}")
    made_by, options_kind = _loaded(kind, known[kind])
    chosen = parse_options(kind, options_kind, options)
    if extra := known[kind].extra:
        require_library(kind, extra)
    search: Search = made_by(seed=seed, options=chosen)
    return search


def _loaded(name: str, kind: SearchKind) -> tuple[Any, Any]:
    """What makes the search, and the class of its options."""
    try:
        made_by = load(kind.made_by)
        return made_by, get_type_hints(made_by)["options"]
    except Exception as error:
        if not kind.package:
            raise
        raise UnknownSearch(unloadable("search", name, kind.package, error)) from error


def parse_options(search: str, kind: type[T], given: Mapping[str, Any]) -> T:
    """`given` as a `kind`, a frozen dataclass, nothing converted. Raises SearchMisconfigured."""
    types = get_type_hints(kind, include_extras=True)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # every kind of options is a dataclass
    for name, value in given.items():
        if name not in known:
            near = f"{did_you_mean(str(name), known)} (known options: {', '.join(known)})"
            hint = near if known else "it takes no options"
            raise SearchMisconfigured(f"search {search}: unknown option {name!r} ({value!r}); {hint}")
        try:
            TypeAdapter(types[name]).validate_python(value, strict=True)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise SearchMisconfigured(
                f"search {search}: option {name!r} is {value!r}: {message}; known options: {', '.join(known)}"
            ) from None
    return kind(**given)


def require_library(search: str, extra: str) -> None:
    with raising(SearchMisconfigured, "", MissingExtra):
        require_extra(extra, f"the search {search}")


@dataclass(frozen=True, slots=True)
class NoOptions:
    """These searches have none."""


@dataclass(frozen=True, slots=True)
class RandomSearch:
    """The space in one random order, fixed by the seed: exact sampling without replacement."""

    seed: int
    options: NoOptions = NoOptions()

    def ask(self, task: Task, seen: Sequence[Observation], n: int) -> Proposal:
        if task.space.knobs and len(task.space):
            return _unseen(self._with_knobs(task.space), seen, n)
        order = np.random.default_rng(self.seed).permutation(len(task.space))
        return _unseen((task.space[int(index)] for index in order), seen, n)

    def _with_knobs(self, space: Space) -> Iterator[Plan]:
        every = whole(space, LISTED)
        if every is None:
            return islice(in_random_order(space, self.seed), MAX_DRAWS)
        return (every[int(index)] for index in np.random.default_rng(self.seed).permutation(len(every)))


@dataclass(frozen=True, slots=True)
class GridSearch:
    """The space in its own order: dimension by dimension, the last one fastest, those of the layout first."""

    seed: int = 0
    options: NoOptions = NoOptions()

    def ask(self, task: Task, seen: Sequence[Observation], n: int) -> Proposal:
        return _unseen(in_order(task.space) if task.space.knobs else task.space, seen, n)


def _unseen(plans: Iterable[Plan], seen: Sequence[Observation], n: int) -> Proposal:
    taken, fresh = {one.plan for one in seen}, list[Plan]()
    for plan in plans if n > 0 else ():
        if plan not in taken:
            taken.add(plan)
            fresh.append(plan)
            if len(fresh) == n:
                break
    return proposal_of(fresh)
