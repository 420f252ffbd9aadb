"""The probability that a plan runs: that it fits into memory, and that nothing else stops it.

Memory is a mixture of Gaussian processes over log(real peak / expected peak), as in `speed`: close to the physics,
loosely so, or not at all. A measured peak is an observation; a plan that ran out of memory, or that ran without telling
its peak, is a censored one: its peak lies above, or below, what a rank can use. A crash may have been memory or not: it
counts as a censored observation with the probability that it was, and with the rest it makes its neighbours suspect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erf, exp, log, pi, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.columns import (
    RECOMPUTES,
    SCHEDULES,
    BoolColumn,
    Columns,
    FloatColumn,
    IntColumn,
    columns_of,
    zero_groups,
)
from meshtune.search_spaces.knobs import Codes
from meshtune.search_spaces.physics.estimate import heavy_cdf
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan, Recompute, Schedule
from meshtune.tuner.search.physics.gaussian import Field, Points, Process, condition, weights_of
from meshtune.tuner.search.physics.knob_effects import shared_values
from meshtune.tuner.search.physics.prior import UNKNOWN_PEAK, Rows

# How far apart two peaks are, in units of length, of which an engine makes up one and training the other.
PER_ENGINE = 2.5
# What the same plan's peak differs by from run to run, as a standard deviation of logarithms.
NOISE = 0.03
# The chance of each failure, had the plan fitted: out-of-memory verdicts are hardly ever wrong, crashes often are not
# memory's doing.
OTHER_CAUSE = {Verdict.OOM: 0.02, Verdict.CRASHED: 0.15}
# Failures that are not memory's: this share of plans is expected to have one, which weighs as much as so many trials.
BASE_FAILURES = 0.05
BASE_TRIALS = 2.0
NEIGHBOURS = Field(slopes=0.0, amplitude=1.0, length=1.0, offset=0.0, campaign_offset=0.0, knobs=0.0)

# The more of its activations a plan computes again, the fewer it keeps.
KEPT = {Recompute.FULL: 0, Recompute.SELECTIVE: 1, Recompute.NONE: 2}
# A plan that differs in any other field is no witness. Accumulation only ever shrinks as the micro-batch grows.
LOOSE = ("micro_batch_size", "grad_accum_steps", "zero_stage", "zero_group", "recompute")
# ZeRO 2 and 3 hold buffers that 0 and 1 do not, so only stages that keep nothing of their own are compared.
WITHOUT_BUFFERS = 1

# By hypothesis: its weight, and mean and standard deviation of the logarithm of each plan's peak.
Peaks = Sequence[tuple[float, FloatColumn, FloatColumn]]


class MemoryHypothesis(NamedTuple):
    """weight: before any trial. physics: expects the physics' peaks, else UNKNOWN_PEAK of every plan."""

    weight: float
    physics: bool
    field: Field


HYPOTHESES = (
    MemoryHypothesis(0.65, True, Field(slopes=1.0, amplitude=0.12, length=1.0, offset=0.0, campaign_offset=0.02)),
    MemoryHypothesis(0.25, True, Field(slopes=1.0, amplitude=0.4, length=1.0, offset=0.0, campaign_offset=0.02)),
    MemoryHypothesis(0.1, False, Field(slopes=0.0, amplitude=0.8, length=1.0, offset=0.5, campaign_offset=0.02)),
)


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """Outcomes of plans, row by row. log_peak: of the measured bytes, NaN where unknown. verdicts: informative ones.
    weights: how much each counts."""

    rows: Rows
    log_peak: FloatColumn
    verdicts: Sequence[Verdict]
    weights: FloatColumn

    def latest(self, most: int) -> Tried:
        last = slice(max(0, len(self.rows) - most), None)
        return Tried(self.rows.take(last), self.log_peak[last], self.verdicts[last], self.weights[last])


@dataclass(frozen=True, slots=True, eq=False)
class Feasibility:
    """The belief about memory and other failures. suspects: plans that failed, with the probability of each that
    memory was not the cause."""

    kept: Sequence[tuple[float, MemoryHypothesis, Process]]
    tried: Rows
    suspects: FloatColumn

    def runs(self, rows: Rows, peaks: Peaks) -> FloatColumn:
        """The probability that each plan runs. peaks: of these plans."""
        fits = np.zeros(len(rows))
        for weight, mean, sd in peaks:
            fits += weight * heavy_cdf((rows.log_capacity - mean) / np.sqrt(sd**2 + NOISE**2))
        near = NEIGHBOURS.between(_points_of(rows), _points_of(self.tried))
        if rows.changed.shape[1]:
            near *= shared_values(rows.changed, self.tried.changed)
        others = (BASE_TRIALS * BASE_FAILURES + near @ self.suspects) / (BASE_TRIALS + near.sum(axis=1))
        runs: FloatColumn = fits * (1.0 - others)
        return runs

    def peaks(self, rows: Rows) -> Peaks:
        """By hypothesis: its weight, and mean and standard deviation of the logarithm of each plan's peak."""
        peaks = []
        for weight, hypothesis, process in self.kept:
            view = process.view(_points_of(rows))
            peaks.append((weight, _expected(hypothesis, rows) + view.mean, view.sd))
        return peaks


def learn_feasibility(tried: Tried, hypotheses: Sequence[MemoryHypothesis] = HYPOTHESES) -> Feasibility:
    """The hypotheses after these trials."""
    learnt = [_learn(hypothesis, tried) for hypothesis in hypotheses]
    evidence = np.array([log(one.weight) + density for one, (_, density, _) in zip(hypotheses, learnt, strict=True)])
    shares = weights_of(evidence) if len(tried.rows) else np.array([one.weight for one in hypotheses])
    suspects = np.sum([share * blame for share, (_, _, blame) in zip(shares, learnt, strict=True)], axis=0)
    kept = [
        (float(share), hypothesis, process)
        for share, hypothesis, (process, _, _) in zip(shares, hypotheses, learnt, strict=True)
        if share > 0
    ]
    return Feasibility(kept, tried.rows, suspects)


def log_evidence(hypothesis: MemoryHypothesis, tried: Tried) -> float:
    """How well a hypothesis foretells these trials, as a logarithm."""
    return _learn(hypothesis, tried)[1]


def _learn(hypothesis: MemoryHypothesis, tried: Tried) -> tuple[Process, float, FloatColumn]:
    """The process, its log evidence, and how far each trial's failure is not memory's doing."""
    rows, field = tried.rows, hypothesis.field
    base = _expected(hypothesis, rows)
    known = np.flatnonzero(np.isfinite(tried.log_peak))
    points, noise = _points_of(rows.take(known)), NOISE**2 / tried.weights[known]
    process = condition(field, points, (tried.log_peak - base)[known], noise)
    density = process.log_evidence
    late = np.array([verdict is Verdict.TIMED_OUT for verdict in tried.verdicts], dtype=np.bool_)
    suspects = late.astype(np.float64)
    # Of these only a bound of the peak is known; a time-out says nothing about memory.
    censored = np.flatnonzero(~np.isfinite(tried.log_peak) & ~late)
    if not len(censored):
        return process, density, suspects
    chosen = rows.take(censored)
    bound = chosen.log_capacity - base[censored]
    verdicts = [tried.verdicts[i] for i in censored.tolist()]
    others = [OTHER_CAUSE.get(verdict, 0.0) for verdict in verdicts]
    above = np.array([verdict in OTHER_CAUSE for verdict in verdicts])
    at = _points_of(chosen)
    value, variance, blame, evidence = _moments(
        *process.joint(at), bound, above, np.array(others), tried.weights[censored]
    )
    suspects[censored] = blame
    useful = np.flatnonzero(np.isfinite(variance))
    if len(useful):
        process = process.extended(_points_of(chosen.take(useful)), value[useful], variance[useful])
    return process, density + evidence, suspects


def _moments(
    mean: FloatColumn,
    covariance: npt.NDArray[np.float64],
    bound: FloatColumn,
    above: npt.NDArray[np.bool_],
    others: FloatColumn,
    weights: FloatColumn,
) -> tuple[FloatColumn, FloatColumn, FloatColumn, float]:
    """Censored observations as normal ones: values and variances (infinite: says nothing), blames, and log evidence.

    Assumed density filtering, one observation after the other (Opper 1998): each is replaced by the normal one that
    gives the same mean and variance. Below or above `bound`; above with the chance `others` of another cause.
    """
    mean, covariance = mean.copy(), covariance.copy()
    count = len(mean)
    value, variance, blame = np.zeros(count), np.full(count, np.inf), np.zeros(count)
    evidence = 0.0
    for i in range(count):
        before = float(covariance[i, i])
        spread = sqrt(before + NOISE**2)
        sign = 1.0 if above[i] else -1.0
        z = sign * (mean[i] - bound[i]) / spread
        inside = max(0.5 * (1.0 + erf(z / sqrt(2.0))), 1e-9)
        other = others[i]
        likelihood = other + (1.0 - other) * inside
        evidence += float(weights[i]) * log(likelihood)
        blame[i] = other * (1.0 - inside) / likelihood
        slope = (1.0 - other) * exp(-0.5 * z * z) / sqrt(2.0 * pi) / likelihood
        shrink = (slope * z + slope * slope) / spread**2 * float(weights[i])
        if shrink <= 0.0 or slope < 1e-12:
            continue
        push = sign * slope / spread * float(weights[i])
        after = before - before**2 * min(shrink, 0.999 / before)
        variance[i] = 1.0 / (1.0 / after - 1.0 / before)
        moved = mean[i] + before * push
        value[i] = variance[i] * (moved / after - mean[i] / before)
        column = covariance[:, i].copy()
        mean += column * push
        covariance -= np.outer(column, column) * min(shrink, 0.999 / before)
    return value, variance, blame, evidence


def _expected(hypothesis: MemoryHypothesis, rows: Rows) -> FloatColumn:
    return rows.log_peak if hypothesis.physics else rows.log_capacity + log(UNKNOWN_PEAK)


def _points_of(rows: Rows) -> Points:
    features = np.concatenate([rows.features, PER_ENGINE * rows.engine[:, None]], axis=1)
    return Points(features, rows.peak_slopes, rows.campaign, rows.peak_knobs)


def surely_out_of_memory(columns: Columns, ran_out: Sequence[Plan]) -> npt.NDArray[np.bool_]:
    """True for each plan of `columns` that needs at least the memory of one of those that ran out.

    Only rules that hold for every training code: with all else equal (accumulation follows from a fixed batch), a
    larger micro-batch keeps more activations, though not under GPipe, which keeps those of the whole batch; a lower
    stage of ZeRO, where there is data parallelism, keeps more states, and so do more groups that it shards over; fewer
    recomputed activations are more kept ones.
    A crash proves nothing: only out-of-memory verdicts count.
    """
    doomed = np.zeros(len(columns["tp"]), dtype=np.bool_)
    if not ran_out:
        return doomed
    kept = np.array([KEPT[recompute] for recompute in RECOMPUTES])
    tried = columns_of(ran_out)
    alike = _alike(columns, tried)
    groups, groups_tried = zero_groups(columns), zero_groups(tried)
    for row, same in enumerate(alike):
        micro_batch, stage = tried["micro_batch_size"][row], tried["zero_stage"][row]
        stages = columns["zero_stage"][same]
        lower = ((stages == stage) & (groups[same] >= groups_tried[row])) | (
            (stages < stage) & (stage <= WITHOUT_BUFFERS)
        )
        larger = columns["micro_batch_size"][same] >= micro_batch
        if tried["pp"][row] > 1 and SCHEDULES[tried["schedule"][row]] is Schedule.GPIPE:
            larger = columns["micro_batch_size"][same] == micro_batch
        # Gradients may wait for the backward pass of a step's only micro-batch, and those of a chunk, where interleaved
        # ones take their micro-batches in a row, are reduced before the next chunk's.
        fewest = [1, tried["pp"][row]] if SCHEDULES[tried["schedule"][row]] is Schedule.INTERLEAVED else [1]
        steps, steps_tried = columns["grad_accum_steps"][same], tried["grad_accum_steps"][row]
        fresh = np.any([(steps <= few) & (steps_tried > few) for few in fewest], axis=0) & (stages >= 2)
        doomed[same] |= lower & larger & ~fresh & (kept[columns["recompute"][same]] >= kept[tried["recompute"][row]])
    return doomed


def surely_out_with_knobs(
    columns: Columns, layouts: IntColumn, codes: Codes, ran_out: Sequence[tuple[Plan, Codes]]
) -> BoolColumn:
    """The same of plans with knobs: what is sure about two layouts holds where their knobs are the same."""
    doomed = np.zeros(len(layouts), dtype=np.bool_)
    for plan, own in ran_out:
        same = np.flatnonzero(np.all(codes == own, axis=1))
        if len(same):
            doomed[same] |= surely_out_of_memory(columns, [plan])[layouts[same]]
    return doomed


def _alike(columns: Columns, tried: Columns) -> list[npt.NDArray[np.int64]]:
    """For each of the tried plans: the rows that differ from it in nothing but what the rules compare."""
    both = {name: np.concatenate([columns[name], tried[name]]) for name in PLAN_FIELDS}
    both["batch"] = both["micro_batch_size"] * both["grad_accum_steps"]
    group = np.zeros(len(both["tp"]), dtype=np.int64)
    for name, column in both.items():
        if name not in LOOSE:
            values, codes = np.unique(column, return_inverse=True)
            _, group = np.unique(group * len(values) + codes, return_inverse=True)
    count = len(columns["tp"])
    order = np.argsort(group[:count], kind="stable")
    ends = np.searchsorted(group[:count][order], [group[count:], group[count:] + 1])
    return [order[begin:end] for begin, end in ends.T]
