"""The effect of one knob, all else equal: "tp 8 -> 4: +11 %", from pairs of measured plans, or else predicted.

A pair differs in one knob alone, and in what follows from it. Where no pair was measured, the calibrated physics
predicts the effect of a change of the layout at the best measured plan; of the other knobs it knows nothing. The two
are never mixed: every effect says which one it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations, islice, product
from math import expm1, log
from statistics import median
from typing import Any

import numpy as np

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.changes import Change, Moves, Value, knob_changes, value_in
from meshtune.search_spaces.columns import code, columns_of, expert_tp, sharding_ranks
from meshtune.search_spaces.knob import SIZES, Numerics
from meshtune.search_spaces.knob_values import word
from meshtune.search_spaces.physics.constants import TIME_CONSTANTS, Calibration
from meshtune.search_spaces.physics.estimate import log_step, slopes
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.prediction.predict import WIDTH, foresee
from meshtune.tuner.results.views import view_of

# Axes that may have to change with another: an interleaving schedule needs several chunks, and the others take one; a
# split of layers over chunks follows from their number, and both ends of it go together; without ZeRO there are no
# groups, and a degree that is now the usual one is written as 0 (see `RATIOS`).
_ENDS = ("first_stage_less_layers", "last_stage_less_layers")
FOLLOWERS: Mapping[str, tuple[str, ...]] = {
    "tp": ("etp", "zero_group"),
    "pp": (*_ENDS, "zero_group"),
    "cp": ("zero_group",),
    "zero_stage": ("zero_group",),
    "sequence_parallel": ("etp",),
    "vpp": _ENDS,
    "schedule": ("vpp", *_ENDS),
    _ENDS[1]: _ENDS[:1],
}


class Evidence(StrEnum):
    """What a number rests on. SIMULATED: runs, of which no device did any."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    PREDICTED = "predicted"


def reverse(moves: Moves) -> Moves:
    return tuple(Change(one.knob, one.after, one.before) for one in moves)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A change for the better, all else equal. followers: the knobs that have to change with it. gain: a ratio of
    speeds minus 1 (0.11: 11 % faster); measured: the median of the pairs, from the smallest to the largest; predicted:
    at the best measured plan, with its 95 % interval. Of a predicted faster plan, p_fits is the probability that it
    fits, and `ended` its verdict where it was tried and failed. numerics: the change is one of what is computed."""

    knob: str
    before: Value
    after: Value
    followers: Moves
    gain: Estimate
    evidence: Evidence
    pairs: int
    p_fits: float | None
    ended: Verdict | None
    numerics: bool
    words: str

    @property
    def moves(self) -> Moves:
        return (Change(self.knob, self.before, self.after), *self.followers)


def signed(share: float) -> str:
    """A gain in percent, with a decimal where it tells something."""
    return f"{100 * share:+.0f} %" if abs(share) >= 0.0995 else f"{100 * share:+.1f} %"


def measured_effects(space: Space, measured: Mapping[Plan, float], runs: Evidence = Evidence.MEASURED) -> list[Effect]:
    """The effects in pairs of measured plans, the largest first. measured: the speed by plan."""
    ratios_of: dict[Moves, list[float]] = {}
    for knob in searched(space):
        for alike in alike_but(space, measured, knob):
            for first, second in combinations(sorted(alike, key=lambda plan: place_of(space, knob, plan)), 2):
                if moves := moves_between(knob, first, second):
                    ratios_of.setdefault(moves, []).append(log(measured[second] / measured[first]))
    return by_size([_measured_effect(space, moves, ratios, runs) for moves, ratios in ratios_of.items()])


def predicted_effects(
    space: Space, training: Training, calibration: Calibration, best: Plan, ended: Mapping[Plan, Verdict]
) -> list[Effect]:
    """The predicted effect of every change of one axis at the plan `best`, the largest first. Times must be predictable
    for the cluster. ended: the verdicts of the plans that failed."""
    axes = [name for name in searched(space) if name in PLAN_FIELDS]
    changes = [one for axis in axes for one in _changes_at(space, best, axis)]
    if not changes:
        return []
    plans = [best, *(plan for _, plan in changes)]
    columns = columns_of(plans)
    outlook = foresee(training, columns, calibration)
    assert outlook.time is not None
    sequences = np.array([plan.global_batch_size for plan in plans])
    logs = np.log(sequences / outlook.time.step_s)
    # To first order in the constants' logarithms: what is wrong with both plans alike cancels.
    slope = slopes(log_step, training, columns, calibration.constants, TIME_CONSTANTS)
    apart = slope[1:] - slope[0]
    widths = WIDTH * np.sqrt(np.sum(apart @ calibration.covariance * apart, axis=1) + 2 * calibration.time_log_sd**2)
    numbers = np.stack([logs[1:] - logs[0], widths, outlook.fits[1:]], axis=1).tolist()
    known = zip(changes, numbers, strict=True)
    return by_size(
        [_predicted_effect(moves, ratio, width, fits, ended.get(plan)) for (moves, plan), (ratio, width, fits) in known]
    )


def by_size(effects: Sequence[Effect]) -> list[Effect]:
    """The largest gain first; equal ones as they came."""
    return sorted(effects, key=lambda effect: -effect.gain.value)


def searched(space: Space) -> list[str]:
    """The axes and knobs of several values, the size of the job included."""
    axes = [name for name, values in space.dimensions.items() if len(values) > 1]
    return [*axes, *(knob.name for knob in space.knobs.searched if len(knob.values) > 1)]


def place_of(space: Space, knob: str, plan: Plan) -> int:
    """The place of a plan's value among the knob's, below all others where it is inactive."""
    if knob in PLAN_FIELDS:
        return code(knob, getattr(plan, knob))
    known = space.knobs.named(knob)
    place = None if known is None else known.position(plan.knobs.get(knob))
    return -1 if place is None else place


def alike_but(space: Space, plans: Mapping[Plan, float], knob: str) -> list[list[Plan]]:
    """Plans that differ from each other at most in the knob, its followers, knobs with a condition that is not met in
    all of them, and what is no dimension of the space."""
    conditional = [one.name for one in space.knobs.searched if one.when]
    names = [*space.dimensions, *(one.name for one in space.knobs.searched)]
    kept = [name for name in names if name not in (knob, *FOLLOWERS.get(knob, ()), *conditional)]
    groups = _grouped(plans, kept)
    for name in conditional:
        met = [name != knob and all(name in plan.knobs for plan in group) for group in groups]
        parted = [_grouped(group, [name] if yes else []) for group, yes in zip(groups, met, strict=True)]
        groups = [part for parts in parted for part in parts]
    return groups


def _grouped(plans: Iterable[Plan], names: Sequence[str]) -> list[list[Plan]]:
    """By what they have of these axes and knobs."""
    groups: dict[tuple[str, ...], list[Plan]] = {}
    for plan in plans:
        groups.setdefault(tuple(word(value_in(plan, name)) for name in names), []).append(plan)
    return list(groups.values())


def moves_between(knob: str, first: Plan, second: Plan) -> Moves:
    """From one plan to another; empty where they have one value, or a follower changes that need not. A knob that one
    of the plans has active and the other has not follows from the change, at whatever value."""
    names = (knob, *FOLLOWERS.get(knob, ()))
    moves = [Change(name, value_in(first, name), value_in(second, name)) for name in names]
    if not moves[0].differs or None in (moves[0].before, moves[0].after):
        return ()
    followers = [one for one in moves[1:] if one.differs]
    others = [one for one in knob_changes(first, second) if one.knob not in (knob, *SIZES)]
    if any(None not in (one.before, one.after) for one in others):
        return ()
    needless = any(_is_needless(knob, one.knob, first, second) for one in followers)
    return () if needless else (moves[0], *followers, *others)


def _is_needless(knob: str, follower: str, first: Plan, second: Plan) -> bool:
    """Chunks must change only between one and several, and how layers are split over them only with their number; a
    group or the experts' degree only where the knob's value goes with 0 alone, or where 0 is another word for it."""
    if follower == "vpp":
        return min(first.vpp, second.vpp) > 1
    if follower in _ENDS:
        return first.pp * first.vpp == second.pp * second.vpp and knob not in _ENDS
    if knob in ("zero_stage", "sequence_parallel"):
        return bool(min(getattr(first, knob), getattr(second, knob)))
    degree = sharding_ranks if follower == "zero_group" else expert_tp
    return len(set(degree(columns_of([first, second])))) > 1


def _changes_at(space: Space, best: Plan, knob: str) -> Iterator[tuple[Moves, Plan]]:
    """Every legal plan beside `best` with another value of the knob; followers change only where they must."""
    own = {name: getattr(best, name) for name in space.dimensions if name in PLAN_FIELDS}
    # The layouts of one size are looked at.
    size = {name: best.knobs[name] for name in SIZES if name in best.knobs}
    for value in space.dimensions[knob]:
        if value == own[knob]:
            continue
        followers = FOLLOWERS.get(knob, ())
        others = product(*(space.dimensions[name] for name in followers))
        variants = [{}, *(dict(zip(followers, values, strict=True)) for values in others)]
        layouts = (space.complete(**own | {knob: value, "knobs": size, **variant}) for variant in variants)
        plans = (space.adopted(replace(one, knobs=best.knobs)) if space.knobs else one for one in layouts)
        moved = ((moves_between(knob, best, plan), plan) for plan in plans)
        yield from islice((one for one in moved if one[0] and not space.explain(one[1], ignore_bounds=True)), 1)


def _measured_effect(space: Space, moves: Moves, ratios: Sequence[float], runs: Evidence) -> Effect:
    middle = median(ratios)
    if middle < 0:
        moves, middle, ratios = reverse(moves), -middle, [-ratio for ratio in ratios]
    gain = Estimate(*(expm1(ratio) for ratio in (middle, min(ratios), max(ratios))))
    grounds = [f"{len(ratios)} pair{'' if len(ratios) == 1 else 's'}", *([] if len(ratios) == 1 else [_range(gain)])]
    changed = [space.knobs.named(one.knob) for one in moves]
    numerics = any(knob is not None and knob.numerics is Numerics.CHANGES for knob in changed)
    grounds += ["changes the numerics"] if numerics else []
    return _effect(moves, gain, runs, grounds, pairs=len(ratios), numerics=numerics)


def _predicted_effect(moves: Moves, ratio: float, width: float, p_fits: float, ended: Verdict | None) -> Effect:
    gain = Estimate(*(expm1(one) for one in (abs(ratio), abs(ratio) - width, abs(ratio) + width)))
    if ratio < 0:
        return _effect(reverse(moves), gain, Evidence.PREDICTED, [_range(gain)])
    tried = f"the faster plan was tried: {ended}" if ended else f"P(fits) of the faster plan {100 * p_fits:.0f} %"
    return _effect(moves, gain, Evidence.PREDICTED, [_range(gain), tried], p_fits=p_fits, ended=ended)


def _effect(moves: Moves, gain: Estimate, evidence: Evidence, grounds: Sequence[str], **others: Any) -> Effect:
    """others: fields that are not those of nothing known."""
    change, *followers = moves
    known = {"pairs": 0, "p_fits": None, "ended": None, "numerics": False, **others}
    words = f"{' with '.join(map(str, moves))}: {signed(gain.value)} ({', '.join([evidence, *grounds])})"
    return view_of(Effect, change, followers=tuple(followers), gain=gain, evidence=evidence, words=words, **known)


def _range(gain: Estimate) -> str:
    return f"{signed(gain.low).removesuffix(' %')} to {signed(gain.high)}"
