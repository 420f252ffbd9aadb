"""What one knob is worth, all else equal: "tp 8 -> 4: +11 %", from pairs of measured plans, or else predicted.

A pair differs in one knob alone, and in what follows from it. Where no pair was measured, the calibrated physics says
what a change at the best measured plan would bring. The two are never mixed: every effect says which one it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from math import expm1, log
from statistics import median
from typing import Any

import numpy as np

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.columns import code, columns_of
from meshtune.search_spaces.physics.calibration import Calibration
from meshtune.search_spaces.physics.constants import TIME_CONSTANTS
from meshtune.search_spaces.physics.estimate import log_step, slopes
from meshtune.search_spaces.physics.estimates import Training
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.interval import Estimate
from meshtune.tuner.prediction.predict import WIDTH, foresee

# What may have to change with a knob: an interleaving schedule needs several chunks, and the others take one.
FOLLOWERS: Mapping[str, tuple[str, ...]] = {"schedule": ("vpp",)}


class Evidence(StrEnum):
    """What a number rests on."""

    MEASURED = "measured"
    PREDICTED = "predicted"


@dataclass(frozen=True, slots=True)
class Change:
    """A knob from one value to another; followers: what has to change with it, by name."""

    knob: str
    before: Any
    after: Any
    followers: tuple[tuple[str, Any, Any], ...] = ()

    @property
    def reversed(self) -> Change:
        back = tuple((name, after, before) for name, before, after in self.followers)
        return Change(self.knob, self.after, self.before, back)

    def __str__(self) -> str:
        moved = [f"{name} {before} -> {after}" for name, before, after in self.followers]
        return " with ".join([f"{self.knob} {self.before} -> {self.after}", *moved])


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A change for the better. gain: a ratio of speeds minus 1 (0.11: 11 % faster).

    Measured: the median of the pairs, from the smallest to the largest. Predicted: at the best measured plan, with its
    95 % interval; where it is the other plan that is faster, p_fits is the probability that it fits, and `ended` how it
    ended where it was tried in vain.
    """

    change: Change
    gain: Estimate
    evidence: Evidence
    pairs: int = 0
    p_fits: float | None = None
    ended: Verdict | None = None

    def __str__(self) -> str:
        return f"{self.change}: {signed(self.gain.value)} ({', '.join([str(self.evidence), *self._grounds()])})"

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        followers = [{"knob": name, "before": old, "after": new} for name, old, new in self.change.followers]
        return {
            "knob": self.change.knob,
            "before": self.change.before,
            "after": self.change.after,
            "followers": followers,
            "gain": self.gain.document(),
            "evidence": str(self.evidence),
            "pairs": self.pairs,
            "p_fits": self.p_fits,
            "ended": None if self.ended is None else str(self.ended),
            "words": str(self),
        }

    def _grounds(self) -> Iterator[str]:
        if self.pairs:
            yield f"{self.pairs} pair{'' if self.pairs == 1 else 's'}"
        if self.pairs != 1:
            yield f"{signed(self.gain.low).removesuffix(' %')} to {signed(self.gain.high)}"
        if self.ended is not None:
            yield f"the faster plan was tried: {self.ended}"
        elif self.p_fits is not None:
            yield f"P(fits) of the faster plan {100 * self.p_fits:.0f} %"


def signed(share: float) -> str:
    """A gain in percent, with a decimal where it tells something."""
    return f"{100 * share:+.0f} %" if abs(share) >= 0.0995 else f"{100 * share:+.1f} %"


def measured_effects(space: Space, measured: Mapping[Plan, float]) -> list[Effect]:
    """What pairs of measured plans say, the largest effect first. measured: tokens per second by plan."""
    found: dict[Change, list[float]] = {}
    for knob in _searched(space):
        for alike in _alike(space, measured, knob):
            for first, second in combinations(sorted(alike, key=lambda plan: _order(plan, knob)), 2):
                change = _change(knob, first, second)
                if change is not None:
                    found.setdefault(change, []).append(log(measured[second] / measured[first]))
    return by_size([_measured_effect(change, ratios) for change, ratios in found.items()])


def predicted_effects(
    space: Space, training: Training, calibration: Calibration, best: Plan, ended: Mapping[Plan, Verdict]
) -> list[Effect]:
    """What the physics says of every change of one knob at the plan `best`, the largest first. All that times depend on
    must be known of the cluster. ended: the verdicts of the plans that were tried in vain."""
    changes = [one for knob in _searched(space) for one in _changes_at(space, best, knob)]
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
    return by_size(
        [
            _predicted_effect(change, float(ratio), float(width), float(fits), ended.get(plan))
            for (change, plan), ratio, width, fits in zip(
                changes, logs[1:] - logs[0], widths, outlook.fits[1:], strict=True
            )
        ]
    )


def by_size(effects: Sequence[Effect]) -> list[Effect]:
    """The largest gain first; equal ones as they came."""
    return sorted(effects, key=lambda effect: -effect.gain.value)


def _searched(space: Space) -> list[str]:
    return [name for name, values in space.dimensions.items() if len(values) > 1]


def _alike(space: Space, plans: Mapping[Plan, float], knob: str) -> list[list[Plan]]:
    """Plans that differ from each other at most in the knob, its followers, and what is no dimension of the space."""
    kept = [name for name in space.dimensions if name not in (knob, *FOLLOWERS.get(knob, ()))]
    groups: dict[tuple[Any, ...], list[Plan]] = {}
    for plan in plans:
        groups.setdefault(tuple(getattr(plan, name) for name in kept), []).append(plan)
    return list(groups.values())


def _order(plan: Plan, knob: str) -> int:
    return code(knob, getattr(plan, knob))


def _change(knob: str, first: Plan, second: Plan) -> Change | None:
    """From one plan to another; None where they have one value, or a follower changes that need not."""
    before, after = (_plain(getattr(plan, knob)) for plan in (first, second))
    if before == after:
        return None
    moved = [
        (name, getattr(first, name), getattr(second, name))
        for name in FOLLOWERS.get(knob, ())
        if getattr(first, name) != getattr(second, name)
    ]
    # A follower must change only between having one chunk and several.
    return None if any(min(old, new) > 1 for _, old, new in moved) else Change(knob, before, after, tuple(moved))


def _changes_at(space: Space, best: Plan, knob: str) -> Iterator[tuple[Change, Plan]]:
    """Every legal plan beside `best` with another value of the knob; followers change only where they must."""
    own = {name: getattr(best, name) for name in space.dimensions}
    for value in space.dimensions[knob]:
        if value == own[knob]:
            continue
        variants = [{}, *({name: one} for name in FOLLOWERS.get(knob, ()) for one in space.dimensions[name])]
        plans = (space.complete(**{**own, knob: value, **variant}) for variant in variants)
        plan = next((plan for plan in plans if not space.explain(plan, ignore_bounds=True)), None)
        change = None if plan is None else _change(knob, best, plan)
        if plan is not None and change is not None:
            yield change, plan


def _measured_effect(change: Change, ratios: Sequence[float]) -> Effect:
    middle = median(ratios)
    if middle < 0:
        change, middle, ratios = change.reversed, -middle, [-ratio for ratio in ratios]
    gain = Estimate(*(expm1(ratio) for ratio in (middle, min(ratios), max(ratios))))
    return Effect(change=change, gain=gain, evidence=Evidence.MEASURED, pairs=len(ratios))


def _predicted_effect(change: Change, ratio: float, width: float, fits: float, ended: Verdict | None) -> Effect:
    gain = Estimate(*(expm1(one) for one in (abs(ratio), abs(ratio) - width, abs(ratio) + width)))
    if ratio < 0:
        return Effect(change=change.reversed, gain=gain, evidence=Evidence.PREDICTED)
    return Effect(change=change, gain=gain, evidence=Evidence.PREDICTED, p_fits=fits, ended=ended)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, StrEnum) else value
