"""Plans of a space with knobs as a list of rows: all of them where they are few, else some, as searches weigh them.

A row is the position of a layout and the codes of its knobs. What is drawn is drawn among distinct plans, all alike
probable: a layout of which more knobs are active has more plans. Nothing enumerates the product of knobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from typing import Any

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import FloatColumn, IntColumn, rows
from meshtune.search_spaces.knob import SIZES
from meshtune.search_spaces.knobs import Codes, KnobSet
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space, SpaceTooLarge

# Plans that are drawn at once: those that stand for several combinations of values are thinned out among them.
BATCH, MAX_BATCHES = 4096, 50
# Layouts beside each of the plans that a listing is made around: at most so many.
LAYOUTS_AROUND = 500


@dataclass(frozen=True, eq=False)
class Listing(Sequence[Plan]):
    """Distinct plans. layouts: the position of each one's layout. codes: of its knobs, canonical. complete: these are
    all plans of the space."""

    space: Space
    layouts: IntColumn
    codes: Codes
    complete: bool = False

    @classmethod
    def of(
        cls, space: Space, most: int, rng: np.random.Generator, around: Sequence[Plan] = (), among: Sequence[Plan] = ()
    ) -> Listing:
        """All plans of the space where they are at most so many. Else about as many: the legal ones of `among`; those
        of `around` with all plans that differ from one in one knob or in few dimensions of the layout; and others at
        random."""
        if (every := whole(space, most)) is not None:
            return every
        parts, centres = [cls._given(space, among)], cls._given(space, around)
        parts += [part for row in range(len(centres)) for part in (centres, *centres._beside(row))]
        known = sum(len(part) for part in parts)
        if known < most:
            parts.append(drawn(space, most - known, rng))
        index = np.concatenate([part.layouts for part in parts])
        codes = np.concatenate([part.codes for part in parts])
        # Each plan where it comes first.
        _, first = np.unique(np.column_stack([index, codes]), axis=0, return_index=True)
        kept = np.sort(first)[:most]
        return cls(space, index[kept], codes[kept])

    @classmethod
    def _given(cls, space: Space, plans: Sequence[Plan]) -> Listing:
        legal = [(at, plan) for plan in plans if (at := space.find(plan)) is not None]
        index = np.array([at for at, _ in legal], dtype=np.int64)
        return cls(space, index, space.knobs.codes_of([plan for _, plan in legal]))

    def _beside(self, row: int) -> Iterator[Listing]:
        """The plans that differ in one knob, and those on similar layouts with the same knobs."""
        layout, codes, knobs = self.layouts[row], self.codes[row], self.space.knobs
        for at in np.flatnonzero(codes):
            many = len(knobs[at].values)
            changed = np.tile(codes, (many, 1))
            changed[:, at] = np.arange(1, many + 1)
            yield self._canonical(np.full(many, layout), changed)
        columns = [self.space.columns[name] for name in self.space.dimensions]
        differing = np.sum([column != column[layout] for column in columns], axis=0)
        near = np.argsort(differing, kind="stable")[:LAYOUTS_AROUND]
        # What was not active here is at its default there.
        yield self._canonical(near, np.tile(np.where(codes > 0, codes, knobs.defaults), (len(near), 1)))

    def _canonical(self, index: IntColumn, codes: Codes) -> Listing:
        return Listing(self.space, index, self.space.canonical(index, codes))

    @property
    def knobs(self) -> KnobSet:
        return self.space.knobs

    @property
    def dimensions(self) -> Mapping[str, Sequence[Any]]:
        """The values of each dimension of the layouts, and of each knob."""
        layout = {name: values for name, values in self.space.dimensions.items() if name not in SIZES}
        return {**layout, **{knob.name: knob.values for knob in self.knobs}}

    @cached_property
    def columns(self) -> Mapping[str, IntColumn]:
        """As a space's, and the codes of each knob by its name."""
        layout = rows(
            {name: self.space.columns[name] for name in self.space.columns if name not in SIZES}, self.layouts
        )
        return {**layout, **dict(zip(self.knobs.names, self.codes.T, strict=True))}

    def __len__(self) -> int:
        return len(self.layouts)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[position] for position in range(*at.indices(len(self)))]
        return self.space.plan(int(self.layouts[at]), self.codes[at].tolist())

    @cached_property
    def _places(self) -> Mapping[bytes, int]:
        both = np.ascontiguousarray(np.column_stack([self.layouts, self.codes]))
        return {row.tobytes(): at for at, row in enumerate(both)}

    def find(self, plan: Plan) -> int | None:
        """The position of a plan in the list, None where it is not there."""
        layout = self.space.find(plan)
        if layout is None:
            return None
        return self._places.get(np.array([layout, *self.knobs.codes_of([plan])[0]], dtype=np.int64).tobytes())


def whole(space: Space, most: int) -> Listing | None:
    """All plans of the space, None where there are more than so many."""
    try:
        listing = space.listing(most)
    except SpaceTooLarge:
        return None
    return None if listing is None else Listing(space, *listing, complete=True)


def drawn(space: Space, count: int, rng: np.random.Generator) -> Listing:
    """So many random plans, some perhaps twice; fewer where hardly any combination of values is a plan of its own."""
    batches = [_batch(space, rng)]
    while sum(map(len, batches)) < count and len(batches) < MAX_BATCHES:
        batches.append(_batch(space, rng))
    index, codes = (np.concatenate([getattr(one, name) for one in batches])[:count] for name in ("layouts", "codes"))
    return Listing(space, index, codes)


def in_random_order(space: Space, seed: int) -> Iterator[Plan]:
    """Plans of the space without end, each of which may come again; the same for a seed."""
    number = 0
    while True:
        yield from _batch(space, np.random.default_rng((seed, number)))
        number += 1


def in_order(space: Space) -> Iterator[Plan]:
    """Every plan once: by layout, then knob by knob, the last one fastest."""
    defaults, sizes = space.default_codes, [len(knob.values) for knob in space.knobs]
    for layout in range(len(space)):
        # A knob whose condition names no knob is active or not whatever the others are.
        still = [
            knob.name in SIZES or (not code and not any(name in knob.when for name in space.knobs.names))
            for knob, code in zip(space.knobs, defaults[layout], strict=True)
        ]
        values = [[1] if fixed else range(1, size + 1) for fixed, size in zip(still, sizes, strict=True)]
        combinations = product(*values)
        while some := list(islice(combinations, BATCH)):
            given = np.array(some, dtype=np.int64).reshape(len(some), len(sizes))
            codes = space.canonical(np.full(len(given), layout), given)
            # Of the combinations that differ in what is inactive alone, the one with the first values.
            once = np.all((codes > 0) | (given == 1), axis=1)
            for row in codes[once]:
                yield space.plan(layout, row.tolist())


def _batch(space: Space, rng: np.random.Generator) -> Listing:
    """Random plans. A combination of values for every knob is drawn; a plan with inactive ones comes of as many as
    these have values, so it is kept with the lower probability, as seen beside the others of the batch."""
    index = rng.integers(len(space), size=BATCH)
    codes = space.knobs.draw(rows(space.columns, index), space.context.cluster.devices_per_node, rng)
    sizes = np.array([1.0 if knob.name in SIZES else float(len(knob.values)) for knob in space.knobs])
    inactive: FloatColumn = np.sum(np.where(codes > 0, 0.0, np.log(sizes)), axis=1)
    kept: npt.NDArray[np.bool_] = rng.random(BATCH) < np.exp(inactive.min() - inactive)
    return Listing(space, index[kept], codes[kept])
