"""The plans that a search weighs where there are knobs: all of them where they are few, else those around the best.

Layouts are enumerated, and each is weighed with its knobs at their defaults and as the best measured plans have them.
On the most promising layouts values of knobs are searched: one changed, several at random, and from the plans of the
largest worth on, neighbour by neighbour, as long as that finds better ones. So no product of all knobs is ever made.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import BoolColumn, IntColumn
from meshtune.search_spaces.knob import SIZES
from meshtune.search_spaces.knobs import Codes
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.search.physics.feasibility import surely_out_of_memory

# A space of so many plans is weighed whole.
MAX_LISTED = 4_000
# The layouts on which knobs are searched; random values on each.
LAYOUTS, RANDOM = 10, 40
# How many of the best plans' neighbours are looked at, how often at the most.
CLIMBERS, CLIMBS = 6, 4
# All layouts with the knobs of the best plans: at most so many are weighed, though each layout once.
MAX_FIRST = 6_000


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Plans by the positions of their layouts in a space, and by the codes of their knobs."""

    layouts: IntColumn
    codes: Codes

    def __len__(self) -> int:
        return len(self.layouts)

    def take(self, index: npt.NDArray[np.integer] | BoolColumn) -> Candidates:
        return Candidates(self.layouts[index], self.codes[index])

    def keys(self) -> list[bytes]:
        """What tells two of them apart."""
        both = np.concatenate([self.layouts[:, None], self.codes], axis=1).astype(np.int64)
        return [row.tobytes() for row in np.ascontiguousarray(both)]


def joined(parts: Sequence[Candidates]) -> Candidates:
    return Candidates(*(np.concatenate([getattr(part, name) for part in parts]) for name in Candidates.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """What candidates are drawn from. taken: the keys of plans that were chosen before. ran_out: plans that ran out of
    memory, with the codes of each."""

    space: Space
    taken: AbstractSet[bytes]
    ran_out: Sequence[tuple[Plan, Codes]]

    def fresh(self, found: Candidates, known: set[bytes]) -> Candidates:
        """Those of `found` that are neither taken nor known nor sure to run out of memory, each once; now known."""
        canonical = Candidates(found.layouts, self.space.canonical(found.layouts, found.codes))
        kept = []
        for at, key in enumerate(canonical.keys()):
            if key not in known and key not in self.taken:
                known.add(key)
                kept.append(at)
        fresh = canonical.take(np.array(kept, dtype=np.int64))
        return fresh.take(~self._doomed(fresh))

    def _doomed(self, found: Candidates) -> BoolColumn:
        doomed = np.zeros(len(found), dtype=np.bool_)
        for plan, codes in self.ran_out:
            layouts = surely_out_of_memory(self.space.columns, [plan])
            doomed |= layouts[found.layouts] & np.all(found.codes == codes, axis=1)
        return doomed

    def listed(self) -> Candidates | None:
        """All plans that are left; None where there are too many."""
        listing = self.space.listing(MAX_LISTED)
        return None if listing is None else self.fresh(Candidates(*listing), set())

    def with_assignments(self, layouts: IntColumn, assignments: Sequence[Codes], known: set[bytes]) -> Candidates:
        """These layouts with each of the assignments."""
        tiled = [Candidates(layouts, np.tile(one, (len(layouts), 1))) for one in assignments]
        return self.fresh(joined(tiled), known)

    def around(self, found: Candidates, known: set[bytes]) -> Candidates:
        """Every plan that differs from one of these in one knob's value."""
        parts = []
        for at, knob in enumerate(self.space.knobs):
            if knob.name in SIZES:
                continue
            for code in range(1, len(knob.values) + 1):
                # An inactive one stays so.
                moved = found.take((found.codes[:, at] != code) & (found.codes[:, at] > 0))
                codes = moved.codes.copy()
                codes[:, at] = code
                parts.append(Candidates(moved.layouts, codes))
        return self.fresh(joined(parts), known) if parts else found.take(np.zeros(0, dtype=np.int64))

    def at_random(
        self, layouts: IntColumn, assignments: Sequence[Codes], random: np.random.Generator, known: set[bytes]
    ) -> Candidates:
        """RANDOM plans of each layout: an assignment, of which a share of the values was drawn anew."""
        index = np.repeat(layouts, RANDOM)
        start = np.stack(assignments)[random.integers(0, len(assignments), len(index))]
        sizes = np.array([len(knob.values) for knob in self.space.knobs])
        drawn = random.integers(1, sizes + 1, size=start.shape)
        share = random.choice([0.15, 0.4, 0.8], size=(len(index), 1))
        codes = np.where(random.random(start.shape) < share, drawn, start)
        return self.fresh(Candidates(index, codes), known)
