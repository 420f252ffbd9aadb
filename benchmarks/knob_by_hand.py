"""One axis at a time, as people tune by hand: every other value of it, all else equal; the best stays, and the next
axis is tried, the layout's before the knobs; again from the first one, until a whole pass improves nothing."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from meshtune.search_spaces.knobs import Codes
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.search.base import Observation

# What is tried first, of the layout; then its other dimensions.
ORDER = ("tp", "pp", "ep", "cp", "micro_batch_size", "recompute", "zero_stage")
# They follow the pipeline's depth.
FOLLOWING = ("first_stage_less_layers", "last_stage_less_layers")


def by_hand(space: Space, baseline: Observation) -> Generator[Plan, Observation, None]:
    """Yields plans that were not tried yet, and is sent what each measured."""
    tried = {baseline.plan: baseline}
    layout = [name for name in ORDER if name in space.dimensions]
    layout += [name for name in space.dimensions if name not in (*ORDER, *FOLLOWING)]
    best, before = baseline, None
    while best is not before:
        before = best
        for name in (*layout, *space.knobs.names):
            for plan in _others(space, best.plan, name):
                if plan not in tried:
                    tried[plan] = yield plan
            here = [tried[plan] for plan in _others(space, best.plan, name)]
            best = max((best, *here), key=lambda one: one.score or 0.0)


def _others(space: Space, plan: Plan, name: str) -> list[Plan]:
    """The legal plans that differ in this axis alone, and in what follows from it."""
    index, codes = space.index_of(plan), space.knobs.codes_of([plan])
    if name in space.knobs.names:
        at = space.knobs.names.index(name)
        tried = [_with_code(codes, at, place + 1) for place in range(len(space.knobs[at].values)) if codes[0, at]]
        return _plans(space, [index] * len(tried), tried, plan)
    others = [each for each in space.dimensions if each not in (name, *FOLLOWING)]
    alike = np.logical_and.reduce([space.columns[each] == space.columns[each][index] for each in others])
    found = np.flatnonzero(alike)
    # What was not active has its default.
    return _plans(space, found.tolist(), [np.where(codes > 0, codes, space.knobs.defaults)] * len(found), plan)


def _with_code(codes: Codes, at: int, code: int) -> Codes:
    changed = codes.copy()
    changed[0, at] = code
    return changed


def _plans(space: Space, index: Sequence[int], codes: Sequence[Codes], but: Plan) -> list[Plan]:
    rows = [space.canonical(np.array([at]), own)[0].tolist() for at, own in zip(index, codes, strict=True)]
    return [plan for at, row in zip(index, rows, strict=True) if (plan := space.plan(at, row)) != but]
