"""Which knobs cause out-of-memory: the share of plans that ran out by each value, and pairs that differ in one knob
alone of which one fitted and the other did not.

Shares count every plan once, with what else it had; only the pairs say that the knob itself did it. A crash or a time
limit may hide a plan that does not fit, so such trials are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.changes import Change, Value, value_in
from meshtune.search_spaces.knob_values import word
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.results.analysis.knob_effects import alike_but, moves_between, place_of, searched

_TELLING = (Verdict.OK, Verdict.PRUNED, Verdict.OOM)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueShare:
    """The plans with one value of a knob. oom: how many of them ran out of memory."""

    value: Value
    plans: int
    oom: int

    @property
    def share(self) -> float:
        return self.oom / self.plans


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A change that made plans run out of memory. pairs: of plans that differ in it alone, of which the second one ran
    out and the first fitted; against: of which it was the other way round."""

    change: Change
    pairs: int
    against: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobMemory:
    """explained: how much of what ran out and what fitted the knob's value alone tells, from 0 to 1 (eta squared)."""

    knob: str
    explained: float
    values: tuple[ValueShare, ...]
    culprits: tuple[Culprit, ...]


def memory_failures(space: Space, trials: Sequence[Trial]) -> tuple[KnobMemory, ...]:
    """The knobs with several tried values, the most telling first; none where nothing ran out, or everything."""
    ran_out = {
        trial.plan: trial.verdict is Verdict.OOM
        for trial in trials
        if trial.verdict in _TELLING and trial.origin is not Origin.CONFIRMATION
    }
    if len(set(ran_out.values())) < 2:
        return ()
    knobs = [_of_knob(space, knob, ran_out) for knob in searched(space)]
    telling = [one for one in knobs if len(one.values) > 1]
    return tuple(sorted(telling, key=lambda one: (-one.explained, -sum(each.pairs for each in one.culprits))))


def _of_knob(space: Space, knob: str, ran_out: Mapping[Plan, bool]) -> KnobMemory:
    by_value: dict[str, list[Plan]] = {}
    for plan in sorted(ran_out, key=lambda plan: place_of(space, knob, plan)):
        by_value.setdefault(word(value_in(plan, knob)), []).append(plan)
    values = tuple(
        ValueShare(value=value_in(plans[0], knob), plans=len(plans), oom=sum(ran_out[plan] for plan in plans))
        for plans in by_value.values()
    )
    mean = sum(ran_out.values()) / len(ran_out)
    between = sum(one.plans * (one.share - mean) ** 2 for one in values)
    return KnobMemory(
        knob=knob,
        explained=between / (len(ran_out) * mean * (1 - mean)),
        values=values,
        culprits=_culprits(space, knob, ran_out),
    )


def _culprits(space: Space, knob: str, ran_out: Mapping[Plan, bool]) -> tuple[Culprit, ...]:
    pairs: Counter[Change] = Counter()
    for alike in alike_but(space, ran_out, knob):
        for first, second in combinations(alike, 2):
            if ran_out[first] != ran_out[second]:
                fitted, full = (second, first) if ran_out[first] else (first, second)
                moves = moves_between(knob, fitted, full)
                pairs.update(moves[:1] if len(moves) == 1 else ())
    culprits = [
        Culprit(change=change, pairs=count, against=pairs[Change(knob, change.after, change.before)])
        for change, count in pairs.most_common()
    ]
    return tuple(one for one in culprits if one.pairs > one.against)
