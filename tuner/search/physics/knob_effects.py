"""Effects of knobs as the posterior sees them: linear features of each plan's values, whose product is a covariance.

A knob changes the logarithm of a step's time by a number of its own for each value, 0 for the default, on every layout
alike; and by another in proportion to the share of communication in the layout's step, by the physics. Both are learnt
on one layout and hold on the others. Declared effects make one of the two likelier, and shift what is expected; of
memory likewise. Values of numeric and ordered knobs are alike by their distance, of others not.

Most knobs do nothing that can be measured, and a few do much. So each knob has a relevance, a factor of its effects'
standard deviation, that follows from the evidence (automatic relevance determination, MacKay 1992).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np

from meshtune.search_spaces.columns import Columns, FloatColumn
from meshtune.search_spaces.knob import SIZES, Knob, KnobKind
from meshtune.search_spaces.knobs import Codes, KnobSet
from meshtune.search_spaces.physics.constants import Constants
from meshtune.search_spaces.physics.timing import TimePart, time_parts
from meshtune.search_spaces.physics.training import Training, with_usual_speeds
from meshtune.tuner.search.physics.prior import Matrix, Rows

# Standard deviations of logarithms: of the time, on every layout and per unit of the communication's share; and of the
# peak. The first number where nothing is declared, the second where an effect on that is.
EVERYWHERE, EVERYWHERE_DECLARED = 0.06, 0.03
BY_SHARE, BY_SHARE_DECLARED = 0.1, 0.25
PEAK, PEAK_DECLARED = 0.015, 0.1
# Expected of a declared effect: of the time per unit of the part's share, and of the peak.
SHIFT_BY_SHARE, PEAK_SHIFT = 0.1, 0.08
# Over which share of the values' span a numeric or ordered knob forgets.
LENGTH = 0.4
# Relevances, each with its probability before any trial: for the time, and for the peak, which few knobs change much.
RELEVANCES = ((0.2, 0.5), (1.0, 0.35), (3.0, 0.15))
PEAK_RELEVANCES = ((1.0, 0.7), (4.0, 0.2), (15.0, 0.07), (60.0, 0.03))
_COMMUNICATION = (TimePart.TP, TimePart.CP, TimePart.EP, TimePart.SEND_RECEIVE, TimePart.DP)
_COMPUTE = (TimePart.COMPUTE, TimePart.RECOMPUTE, TimePart.OPTIMIZER)


def part_shares(training: Training, columns: Columns, constants: Constants) -> Matrix:
    """Of each layout's step: the share of communication, and of computation, by the physics; half each without."""
    if not training.model.known:
        return np.full((len(columns["tp"]), 2), 0.5)
    parts = time_parts(with_usual_speeds(training), columns, constants)
    total = np.sum([*parts.values()], axis=0)
    shares = [np.sum([parts[one] for one in kind if one in parts], axis=0) for kind in (_COMMUNICATION, _COMPUTE)]
    return np.stack([share / total for share in shares], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Effect:
    """Of one knob, by code: features of its values, and where a value lies from the default (0) to the furthest one (1
    or -1)."""

    at: int
    knob: Knob
    features: Matrix
    signed: FloatColumn


@dataclass(frozen=True, slots=True, eq=False)
class KnobEffects:
    effects: tuple[_Effect, ...]
    defaults: Codes

    @classmethod
    def of(cls, knobs: KnobSet, foreseen: Sequence[int] = ()) -> KnobEffects:
        """foreseen: the knobs, by position, that the physics itself expects something of, in place of what they
        declare."""
        effects = [_effect(at, knob) for at, knob in enumerate(knobs) if knob.name not in SIZES]
        for at, one in enumerate(effects):
            if one.at in foreseen:
                effects[at] = replace(one, signed=np.zeros_like(one.signed))
        return cls(tuple(effects), knobs.defaults)

    def scales(self, relevances: FloatColumn, peak_relevances: FloatColumn) -> Scales:
        """The factors of features. Both by knob."""
        sizes = [one.features.shape[1] for one in self.effects]
        return Scales(np.repeat(relevances, [3 * size for size in sizes]), np.repeat(peak_relevances, sizes))

    def changed(self, codes: Codes) -> Codes:
        """The codes of values beside the defaults, else 0."""
        own = codes.copy()
        searched = {one.at for one in self.effects}
        own[:, [at for at in range(codes.shape[1]) if at not in searched]] = 0
        return np.where(own == self.defaults, 0, own)

    def attach(self, rows: Rows, codes: Codes, shares: Matrix) -> Rows:
        """The rows with the features of these values, and what is expected of them. shares: as `part_shares`."""
        count = len(rows)
        time, peak = [np.zeros((count, 0))], [np.zeros((count, 0))]
        shift, peak_shift = np.zeros(count), np.zeros(count)
        communication, computation = shares.T
        for one in self.effects:
            own, signed = one.features[codes[:, one.at]], one.signed[codes[:, one.at]]
            sends, computes = one.knob.declared("communication"), one.knob.declared("compute")
            memory, declared = one.knob.declared("memory"), bool(sends or computes)
            # The share of computation hardly differs between layouts: it counts where an effect on it is declared.
            by_communication = BY_SHARE_DECLARED if sends else 0.0 if computes else BY_SHARE
            by_computation = BY_SHARE_DECLARED if computes else 0.0
            time.append(own * (EVERYWHERE_DECLARED if declared else EVERYWHERE))
            time.append(own * (by_communication * communication)[:, None])
            time.append(own * (by_computation * computation)[:, None])
            peak.append(own * (PEAK_DECLARED if memory else PEAK))
            shift += SHIFT_BY_SHARE * (sends * communication + computes * computation) * signed
            peak_shift += PEAK_SHIFT * memory * signed
        return replace(
            rows,
            knobs=np.concatenate(time, axis=1),
            peak_knobs=np.concatenate(peak, axis=1),
            changed=self.changed(codes),
            log_step=rows.log_step + shift,
            log_refitted=rows.log_refitted + shift,
            log_stalled=rows.log_stalled + shift,
            log_ideal=rows.log_ideal + shift,
            log_peak=rows.log_peak + peak_shift,
        )


def _effect(at: int, knob: Knob) -> _Effect:
    default = knob.position(knob.default) or 0
    places = _places(knob)
    covariance = _covariance(knob, places, default)
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-6
    features = np.zeros((len(knob.values) + 1, int(kept.sum())))
    features[1:] = vectors[:, kept] * np.sqrt(values[kept])
    # As it is but for rounding: the reference of all others.
    features[default + 1] = 0.0
    signed = np.zeros(len(knob.values) + 1)
    if knob.kind is KnobKind.CATEGORICAL or np.isnan(places[default]):
        signed[1:] = np.arange(len(knob.values)) != default
    else:
        apart = np.nan_to_num(places - places[default])
        signed[1:] = apart / (np.max(np.abs(apart)) or 1.0)
    return _Effect(at, knob, features, signed)


def _places(knob: Knob) -> FloatColumn:
    """Where each value lies between 0 and 1; NaN for those that have no place: of a categorical knob all."""
    count = len(knob.values)
    if knob.kind is KnobKind.CATEGORICAL:
        return np.full(count, np.nan)
    if knob.kind is KnobKind.ORDERED:
        return np.arange(count) / max(1, count - 1)
    numbers = np.array([np.nan if isinstance(value, (str, bool)) else float(value) for value in knob.values])
    known = numbers[~np.isnan(numbers)]
    if known.min() > 0 and known.max() >= 4 * known.min():
        numbers, known = np.log(numbers), np.log(known)
    span = float(known.max() - known.min())
    places: FloatColumn = (numbers - known.min()) / (span or 1.0)
    return places


def _covariance(knob: Knob, places: FloatColumn, default: int) -> Matrix:
    """Of the effects of the values against the default's, the largest variance 1."""
    count = len(knob.values)
    apart = (places[:, None] - places[None, :]) / LENGTH
    # Values without a place are like themselves alone.
    alike = np.where(np.isnan(apart), np.eye(count), np.exp(-0.5 * np.nan_to_num(apart) ** 2))
    against = alike - alike[:, [default]] - alike[[default], :] + alike[default, default]
    largest = float(np.max(np.diag(against)))
    scaled: Matrix = against / (largest or 1.0)
    return scaled


def relevances_of(
    effects: KnobEffects,
    evidence: Callable[[FloatColumn], float],
    changed: Codes,
    known: Sequence[tuple[float, float]] = RELEVANCES,
    rounds: int = 2,
) -> FloatColumn:
    """The relevance of each knob: coordinate by coordinate the one with the largest evidence times its probability.

    evidence: the log evidence of the trials under relevances of all knobs. changed: of what was tried, as
    `Rows.changed`; a knob that was never changed has relevance 1. known: relevances with their probabilities.
    """
    chosen = np.ones(len(effects.effects))
    tried = [number for number, one in enumerate(effects.effects) if np.any(changed[:, one.at])]
    for _ in range(rounds if tried else 0):
        before = chosen.copy()
        for number in tried:
            scored = []
            for relevance, probability in known:
                other = chosen.copy()
                other[number] = relevance
                scored.append((evidence(other) + log(probability), relevance))
            chosen[number] = max(scored)[1]
        if np.array_equal(before, chosen):
            break
    return chosen


@dataclass(frozen=True, slots=True, eq=False)
class Scales:
    """Factors of the features of knobs: of the time, and of the peak."""

    time: FloatColumn
    peak: FloatColumn

    def of(self, rows: Rows) -> Rows:
        """The rows with their features so scaled."""
        return replace(rows, knobs=rows.knobs * self.time, peak_knobs=rows.peak_knobs * self.peak)


def shared_values(changed: Codes, tried: Codes) -> Matrix:
    """Of each tried plan's values beside the defaults, the share that each plan has too; 1 where it has none: plans x
    tried. Both as `Rows.changed`."""
    shared, total = np.zeros((len(changed), len(tried))), np.zeros(len(tried))
    for own, other in zip(changed.T, tried.T, strict=True):
        shared += (own[:, None] == other[None, :]) & (other > 0)[None, :]
        total += other > 0
    return np.where(total > 0, shared / np.maximum(total, 1.0), 1.0)
