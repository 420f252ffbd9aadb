"""The choice of plans in a space with knobs: candidates are gathered around the best, and weighed like any others.

Layouts are enumerated, and each is weighed with its knobs at their defaults and as the best measured plans have them.
On the most promising layouts values of knobs are searched: one changed, several at random, and from the plans of the
largest worth on, neighbour by neighbour, as long as that finds better ones. So no product of all knobs is ever made.

Layouts and knobs are searched together from the first measurement on. Layouts first and their knobs then took no fewer
trials (docs/decisions/search.md#d0062).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from math import log

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import BoolColumn, FloatColumn, IntColumn
from meshtune.search_spaces.knob import SIZES
from meshtune.search_spaces.knobs import Codes
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.trial import Choice, Proposal
from meshtune.tuner.search.base import Observation, Task
from meshtune.tuner.search.physics import feasibility, speed
from meshtune.tuner.search.physics.catalogue import Catalogue
from meshtune.tuner.search.physics.gaussian import condition
from meshtune.tuner.search.physics.history import Trials
from meshtune.tuner.search.physics.knob_effects import PEAK_RELEVANCES, KnobEffects, Scales, relevances_of
from meshtune.tuner.search.physics.speed import NOISE, expected, points_of
from meshtune.tuner.search.physics.weighing import Batch, Belief, Hypotheses, PhysicsOptions, Weighing, moments, weigh

# The noise of single runs, as shares of the usual one: knobs tell most where runs scatter little.
NOISE_SHARES = (1.0, 0.6, 0.35)
# Every so many-th trial is of a plan that can never be recommended, where a space has such plans.
OTHERS = 5
# The latest trials that relevances and noise are fitted to.
MAX_FITTED = 100
# The best measured plans whose knobs are taken over to other layouts.
ASSIGNMENTS = 3
# The best measured plans whose layouts are among those on which knobs are searched.
BEST_LAYOUTS = 2
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
class KnobGround:
    """What candidates are drawn from. taken: the keys of plans that were chosen before. ran_out: plans that ran out of
    memory, with the codes of each."""

    space: Space
    taken: AbstractSet[bytes]
    ran_out: Sequence[tuple[Plan, Codes]]

    def fresh(self, candidates: Candidates, known: set[bytes]) -> Candidates:
        """Those that are neither taken nor known nor sure to run out of memory, each once; now known."""
        canonical = Candidates(candidates.layouts, self.space.canonical(candidates.layouts, candidates.codes))
        kept = []
        for at, key in enumerate(canonical.keys()):
            if key not in known and key not in self.taken:
                known.add(key)
                kept.append(at)
        fresh = canonical.take(np.array(kept, dtype=np.int64))
        return fresh.take(
            ~feasibility.surely_out_with_knobs(self.space.columns, fresh.layouts, fresh.codes, self.ran_out)
        )

    def listed(self) -> Candidates | None:
        """All plans that are left; None where there are too many."""
        listing = self.space.listing(MAX_LISTED)
        return None if listing is None else self.fresh(Candidates(*listing), set())

    def around(self, candidates: Candidates, known: set[bytes]) -> Candidates:
        """Every plan that differs from one of these in one knob's value."""
        parts = []
        for at, knob in enumerate(self.space.knobs):
            if knob.name in SIZES:
                continue
            for code in range(1, len(knob.values) + 1):
                # An inactive one stays so.
                moved = candidates.take((candidates.codes[:, at] != code) & (candidates.codes[:, at] > 0))
                codes = moved.codes.copy()
                codes[:, at] = code
                parts.append(Candidates(moved.layouts, codes))
        return self.fresh(joined(parts), known) if parts else candidates.take(np.zeros(0, dtype=np.int64))

    def at_random(
        self,
        layouts: IntColumn,
        assignments: Sequence[Codes],
        random: np.random.Generator,
        known: set[bytes],
        many: int,
    ) -> Candidates:
        """RANDOM plans of each layout: an assignment, a share of whose values was drawn anew. many: draws in all."""
        index = np.repeat(layouts, RANDOM)
        start = np.stack(assignments)[random.integers(0, len(assignments), many)]
        sizes = np.array([len(knob.values) for knob in self.space.knobs])
        drawn = random.integers(1, sizes + 1, size=start.shape)
        share = random.choice([0.15, 0.4, 0.8], size=(len(start), 1))
        codes = np.where(random.random(start.shape) < share, drawn, start)
        return self.fresh(Candidates(index, np.resize(codes, (len(index), codes.shape[1]))), known)


def fitted(trials: Trials, knobs: KnobEffects, hypotheses: Hypotheses) -> tuple[Trials, Scales]:
    """The trials with each knob's features scaled by its relevance, and with weights by the noise that they show; and
    the factors of the features. All by the evidence under the hypothesis that foretells the trials best."""
    relevances, share = _of_speeds(trials, knobs, hypotheses.speeds)
    scales = knobs.scales(relevances, _of_memory(trials, knobs, hypotheses.memory))
    return replace(trials.scaled(scales), weights=trials.weights / share**2), scales


def _of_speeds(
    trials: Trials, knobs: KnobEffects, hypotheses: Sequence[speed.SpeedHypothesis]
) -> tuple[FloatColumn, float]:
    """Relevances for the time by knob, and the noise as a share of the usual one."""
    last = slice(max(0, len(trials.measured) - MAX_FITTED), None)
    rows, log_times, noise = trials.measured.take(last), trials.log_times[last], NOISE**2 / trials.weights[last]
    usual = np.ones(len(knobs.effects))
    if not np.any(rows.changed):
        return usual, 1.0

    def evidence(relevances: FloatColumn, one: speed.SpeedHypothesis, share: float) -> float:
        points = points_of(knobs.scales(relevances, usual).of(rows), one)
        residuals = log_times - expected(one, rows)
        return condition(one.field, points, residuals, noise * share**2).log_evidence

    best = max(hypotheses, key=lambda one: log(one.weight) + evidence(usual, one, 1.0))
    share = max(NOISE_SHARES, key=lambda share: evidence(usual, best, share))
    relevances = relevances_of(knobs, lambda tried: evidence(tried, best, share), rows.changed)
    return relevances, max(NOISE_SHARES, key=lambda share: evidence(relevances, best, share))


def _of_memory(trials: Trials, knobs: KnobEffects, hypotheses: Sequence[feasibility.MemoryHypothesis]) -> FloatColumn:
    """Relevances for the peak by knob."""
    tried, usual = trials.tried.latest(MAX_FITTED), np.ones(len(knobs.effects))
    if not np.any(tried.rows.changed):
        return usual

    def evidence(relevances: FloatColumn) -> float:
        rows = knobs.scales(usual, relevances).of(tried.rows)
        return feasibility.log_evidence(hypotheses[0], replace(tried, rows=rows))

    return relevances_of(knobs, evidence, tried.rows.changed, PEAK_RELEVANCES)


@dataclass(slots=True, eq=False)
class KnobSearch:
    """One ask. scales: of the knobs' features, which the trials have already."""

    task: Task
    catalogue: Catalogue
    trials: Trials
    belief: Belief
    options: PhysicsOptions
    seed: int
    scales: Scales
    _random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def propose(self, layouts: IntColumn, seen: Sequence[Observation], n: int) -> Proposal:
        """Up to n plans. layouts: those that are looked at, by position."""
        ground = self._ground(seen)
        candidates = self._candidates(ground, layouts, seen)
        if not len(candidates):
            return Proposal(tuple(self._left_over(ground, n)), 0.0 if len(self.trials.best) else None)
        of_use = self._of_use(candidates)
        useful = self._weigh(candidates.take(of_use)) if np.any(of_use) else None
        chance = 0.0 if useful is None else useful.chance_left(self.task.tolerance)
        turn = self._turn(of_use, len(seen))
        allowed = turn & self._comparable(candidates)
        allowed = allowed if np.any(allowed) else turn
        chosen = candidates.take(allowed)
        same = useful is not None and np.array_equal(allowed, of_use)
        batch = Batch.of(self._weigh(chosen) if useful is None or not same else useful)
        choices = [Choice(self._plan(chosen, at), chosen_by.expectation(at)) for at, chosen_by in batch.choices(n)]
        if len(choices) < n:
            others = np.flatnonzero(~allowed)[: n - len(choices)]
            choices += [Choice(self._plan(candidates, at)) for at in others]
        return Proposal(tuple(choices), chance)

    def _plan(self, candidates: Candidates, at: int) -> Plan:
        return self.task.space.plan(int(candidates.layouts[at]), candidates.codes[at].tolist())

    def _ground(self, seen: Sequence[Observation]) -> KnobGround:
        space, taken = self.task.space, set[bytes]()
        placed = [(one.plan, at) for one in seen if (at := space.find(one.plan)) is not None]
        if placed:
            codes = space.knobs.known_codes([plan for plan, _ in placed])
            taken.update(Candidates(np.array([at for _, at in placed]), codes).keys())
        ran_out = self.trials.ran_out if self.options.fits else ()
        return KnobGround(space, taken, list(zip(ran_out, space.knobs.known_codes(ran_out), strict=True)))

    def _best(self, seen: Sequence[Observation]) -> list[Observation]:
        """The measured plans, those of use first, and of these the best."""
        measured = [one for one in seen if one.step_time_s is not None and one.score is not None]
        return sorted(measured, key=lambda one: (not self.task.is_of_use(one.plan), -(one.score or 0.0)))

    def _assignments(self, seen: Sequence[Observation]) -> list[Codes]:
        """The knobs of the best measured plans, then the defaults; rows of codes, each once."""
        best = self._best(seen)[:ASSIGNMENTS]
        defaults = self.task.space.knobs.defaults
        codes = self.task.space.knobs.known_codes([one.plan for one in best])
        completed = [np.where(row > 0, row, defaults) for row in codes]
        return list({row.tobytes(): row for row in [*completed, defaults]}.values())

    def _weigh(self, candidates: Candidates) -> Weighing:
        rows = self.scales.of(self.catalogue.at(candidates.layouts, candidates.codes))
        return weigh(self.trials, rows, self.belief, self.task, self.seed, residual=self.options.residual)

    def _candidates(self, ground: KnobGround, layouts: IntColumn, seen: Sequence[Observation]) -> Candidates:
        if (listed := ground.listed()) is not None:
            return listed
        assignments, known = self._assignments(seen), set[bytes]()
        most = max(1, MAX_FIRST // max(1, len(layouts)))
        tiled = [Candidates(layouts, np.tile(one, (len(layouts), 1))) for one in assignments[:most]]
        first = ground.fresh(joined(tiled), known)
        tops = self._best_layouts(first, seen)
        near = Candidates(np.repeat(tops, len(assignments)), np.tile(np.stack(assignments), (len(tops), 1)))
        # What the physics works out for a combination of values serves all layouts.
        many = RANDOM * (1 if self.task.others.knobs else len(tops))
        others = [ground.around(near, known), ground.at_random(tops, assignments, self._random, known, many)]
        candidates = joined([first, *others])
        worth = self._weigh(candidates).worth()
        for _ in range(CLIMBS):
            best = np.argsort(-worth, kind="stable")[:CLIMBERS]
            fresh = ground.around(candidates.take(best), known)
            if not len(fresh):
                break
            more, most_worth = self._weigh(fresh).worth(), worth[best[0]]
            candidates, worth = joined([candidates, fresh]), np.concatenate([worth, more])
            if more.max() <= most_worth:
                break
        return candidates

    def _best_layouts(self, first: Candidates, seen: Sequence[Observation]) -> IntColumn:
        """The layouts on which knobs are searched, the most promising first: of the best measured plans, then by what
        is believed of them with those plans' knobs."""
        measured = self._best(seen)[:BEST_LAYOUTS]
        own = [at for one in measured if (at := self.task.space.find_layout(one.plan)) is not None]
        ranked = list[int]()
        if len(first):
            weighing = self._weigh(first)
            time, _ = moments(weighing.components)
            ranked = first.layouts[np.argsort(time - np.log(np.maximum(weighing.memory.runs, 1e-9)))].tolist()
        return np.array(list(dict.fromkeys([*own, *ranked]))[:LAYOUTS], dtype=np.int64)

    def _comparable(self, candidates: Candidates) -> BoolColumn:
        """All of them once something was measured; before that those with every knob at its default,
        where there are any: a failure would not tell whether a knob is to blame."""
        defaults = np.all(candidates.codes == self.task.space.default_codes[candidates.layouts], axis=1)
        measured = np.any(self.trials.measured.campaign == 0)
        return defaults if not measured and np.any(defaults) else np.ones_like(defaults)

    def _of_use(self, candidates: Candidates) -> BoolColumn:
        """Those with the values that the task keeps."""
        of_use = np.ones(len(candidates), dtype=np.bool_)
        for at, knob in enumerate(self.task.space.knobs):
            if knob.name in self.task.kept:
                place = knob.position(self.task.kept[knob.name])
                own = candidates.codes[:, at]
                codes = np.where(own > 0, own, self.task.space.knobs.defaults[at])
                of_use &= codes == (-1 if place is None else place + 1)
        return of_use

    def _turn(self, of_use: BoolColumn, seen: int) -> BoolColumn:
        """The candidates of this ask: those of use, and every OTHERS-th time the others, to tell what they would
        bring."""
        others = ~of_use
        wanted = others if (seen + 1) % OTHERS == 0 else of_use
        return wanted if np.any(wanted) else ~wanted

    def _left_over(self, ground: KnobGround, n: int) -> list[Choice]:
        """Plans that surely run out of memory: when nothing else is left."""
        listing = self.task.space.listing(100_000)
        if listing is None:
            return []
        rest = KnobGround(ground.space, ground.taken, ()).fresh(Candidates(*listing), set())
        return [Choice(self._plan(rest, at)) for at in range(min(n, len(rest)))]
