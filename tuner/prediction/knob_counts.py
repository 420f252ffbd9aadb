"""What each knob adds to a space: the layouts in which it is active, and the plans with it and without it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knobs import KnobSet
from meshtune.search_spaces.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobCount:
    """One knob of a space. layouts: those in which it may be active, of all legal ones. without: the legal plans of the
    space without it, and without the knobs whose conditions name it (`gone`)."""

    knob: Knob
    layouts: int
    without: int
    gone: tuple[str, ...]


def count_with_knobs(space: Space) -> list[KnobCount]:
    """Of each knob but the one that sizes the job. Raises SpaceTooLarge."""
    total, per_node = space.plans, space.context.cluster.devices_per_node
    found = []
    for knob in space.knobs.searched:
        rest = space.knobs.without(knob.name)
        others = KnobSet([one for one in space.knobs if one.name in rest.names or one.name == knob.name])
        less = rest.assignments(space.columns, per_node)
        layouts = others.assignments(space.columns, per_node) > less if len(knob.values) > 1 else np.zeros(0, np.bool_)
        without = sum(map(int, less.tolist())) if rest.searched else len(space)
        gone = tuple(name for name in space.knobs.names if name not in rest.names and name != knob.name)
        found.append(KnobCount(knob=knob, layouts=int(np.sum(layouts)), without=min(without, total), gone=gone))
    return found
