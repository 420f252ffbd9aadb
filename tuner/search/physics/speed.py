"""Believed speeds of plans after the measurements: a mixture of hypotheses about the physics' error.

Each hypothesis is a Gaussian process over log(measured / expected). Four trust the physics, closely, loosely (from the
prior, and from refitted constants, see `refit`) or for its order alone; one expects a network that stalls; two trust
nothing, and take every plan for equally fast at first. Their weights follow from how well each foretold what was
measured (their evidence), so a prior that is badly wrong is found out within a few trials and no longer followed. The
one that trusts the order is as wide as those that trust nothing: else a large scatter, however well the plans are
ordered, would be evidence against the physics. A past that misleads is found out, too: with earlier campaigns, each
hypothesis stands there a second time, conditioned on the campaign's own measurements alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import FloatColumn
from meshtune.tuner.search.physics.gaussian import Field, Points, Process, View, condition, tamed, weights_of
from meshtune.tuner.search.physics.prior import Matrix, Rows

# Between two runs of one plan, as a standard deviation of logarithms.
NOISE = 0.05
# A run this many standard deviations from what all others say is taken for a sick node's.
FAR = 4.0
# Of seconds per token, when nothing is measured: a cluster may be slower or faster as a whole, by a factor of e.
OFFSET = 1.0
CAMPAIGN_OFFSET = 0.1
# The probability, while the campaign has measured nothing, that what earlier campaigns measured applies to it: judged.
APPLIES = 0.9
# Degrees of freedom of the tails.
FREEDOM = 3.0
# On the diagonal of a covariance that is drawn from: plans that are all but equal would else make it indefinite.
ROUNDING = 1e-7


class Expects(StrEnum):
    """Expected times: the physics'; its refitted ones; those where transfers between stages stall; all alike."""

    PHYSICS = "physics"
    REFITTED = "refitted"
    STALLS = "stalls"
    ALIKE = "alike"


class SpeedHypothesis(NamedTuple):
    """weight: before any measurement."""

    weight: float
    expects: Expects
    field: Field


def _field(slopes: float, amplitude: float, length: float = 1.0) -> Field:
    return Field(slopes=slopes, amplitude=amplitude, length=length, offset=OFFSET, campaign_offset=CAMPAIGN_OFFSET)


# The weights are those that public tables give them (`benchmarks/generalise.py --defaults`). The fields were chosen on
# two of these tables, where wide ranges of them do equally well (benchmarks/log.md).
HYPOTHESES = (
    SpeedHypothesis(0.62, Expects.PHYSICS, _field(slopes=1.0, amplitude=0.08)),
    SpeedHypothesis(0.08, Expects.PHYSICS, _field(slopes=2.0, amplitude=0.2)),
    SpeedHypothesis(0.08, Expects.REFITTED, _field(slopes=2.0, amplitude=0.2)),
    SpeedHypothesis(0.07, Expects.PHYSICS, _field(slopes=2.0, amplitude=0.4)),
    SpeedHypothesis(0.06, Expects.STALLS, _field(slopes=2.0, amplitude=0.2)),
    SpeedHypothesis(0.04, Expects.ALIKE, _field(slopes=0.0, amplitude=0.4)),
    SpeedHypothesis(0.05, Expects.ALIKE, _field(slopes=0.0, amplitude=0.5, length=2.0)),
)


class Component(NamedTuple):
    """One hypothesis after the measurements, for some plans: mean and standard deviation of log(seconds per token)."""

    weight: float
    mean: FloatColumn
    sd: FloatColumn


@dataclass(frozen=True, slots=True, eq=False)
class Views:
    """The speeds of some plans, kept up while these are believed one after the other. kept: by hypothesis its weight,
    what it expects of the plans, and the view of its residual."""

    kept: Sequence[tuple[float, FloatColumn, View]]

    def components(self, count: int | None = None) -> list[Component]:
        """Each hypothesis' speeds of the first `count` plans, or of all."""
        return [Component(weight, (base + view.mean)[:count], view.sd[:count]) for weight, base, view in self.kept]

    def believing(self, at: npt.NDArray[np.int64]) -> Views:
        """As if the plans at these positions had been measured just as each hypothesis expects: the means stay, the
        doubt goes."""
        return Views([(weight, base, view.believing(at, NOISE**2)) for weight, base, view in self.kept])


@dataclass(frozen=True, slots=True, eq=False)
class Speeds:
    """The hypotheses that are left, each with its weight and its process."""

    kept: Sequence[tuple[float, SpeedHypothesis, Process]]

    def at(self, rows: Rows) -> list[Component]:
        return self.views(rows).components()

    def views(self, rows: Rows) -> Views:
        """The same, for updates by believed plans. It holds a matrix of plans x observations for each."""
        return Views(
            [(weight, expected(one, rows), process.view(points_of(rows, one))) for weight, one, process in self.kept]
        )

    def draw(self, rows: Rows, count: int, random: np.random.Generator) -> Matrix:
        """Joint samples of log(seconds per token): about `count` x plans. Their tails are Student's t: steps of real
        clusters are further off, more often, than a normal distribution has it (benchmarks/log.md)."""
        samples = []
        for weight, hypothesis, process in self.kept:
            mean, covariance = process.joint(points_of(rows, hypothesis))
            lower = np.linalg.cholesky(covariance + ROUNDING * np.eye(len(rows)))
            draws = max(1, round(weight * count))
            # Divided by a chi, the whole draw is a multivariate Student's t.
            normal = random.standard_normal((draws, len(rows)))
            scale = np.sqrt(FREEDOM / random.chisquare(FREEDOM, (draws, 1)))
            samples.append(expected(hypothesis, rows) + mean + scale * (normal @ lower.T))
        return np.concatenate(samples)


def learn_speeds(
    rows: Rows, log_times: FloatColumn, weights: FloatColumn, hypotheses: Sequence[SpeedHypothesis] = HYPOTHESES
) -> Speeds:
    """The hypotheses after these measurements. log_times: of seconds per token. weights: how much each counts."""
    learnt = _learn(rows, log_times, weights, hypotheses)
    own = rows.campaign == 0
    if not own.all():
        past, alone = (
            _learn(rows.take(at), log_times[at], weights[at], hypotheses)
            for at in (np.flatnonzero(~own), np.flatnonzero(own))
        )
        learnt = _doubting_the_past(learnt, past, alone)
    shares = weights_of(np.array([one.log_weight for one in learnt]))
    kept = zip(shares.tolist(), learnt, strict=True)
    return Speeds([(share, one.hypothesis, one.process) for share, one in kept if share > 0])


class _Learnt(NamedTuple):
    """log_weight: of the hypothesis' weight times its evidence."""

    log_weight: float
    hypothesis: SpeedHypothesis
    process: Process


def _learn(
    rows: Rows, log_times: FloatColumn, weights: FloatColumn, hypotheses: Sequence[SpeedHypothesis]
) -> list[_Learnt]:
    learnt = []
    for one in hypotheses:
        points = points_of(rows, one)
        residuals = log_times - expected(one, rows)
        noise = tamed(one.field, points, residuals, NOISE**2 / weights, FAR)
        process = condition(one.field, points, residuals, noise)
        learnt.append(_Learnt(float(np.log(one.weight)) + process.log_evidence, one, process))
    return learnt


def _doubting_the_past(together: Sequence[_Learnt], past: Sequence[_Learnt], alone: Sequence[_Learnt]) -> list[_Learnt]:
    """The hypotheses twice: earlier campaigns apply, or they do not and the campaign's own measurements are all that is
    known. Which of the two follows from how well each foretells the own measurements: with the past, that is the
    evidence of all of them together over that of the past."""
    foretold = float(np.logaddexp.reduce([one.log_weight for one in past]))
    applies = [one._replace(log_weight=one.log_weight - foretold + float(np.log(APPLIES))) for one in together]
    return applies + [one._replace(log_weight=one.log_weight + float(np.log(1.0 - APPLIES))) for one in alone]


def expected(hypothesis: SpeedHypothesis, rows: Rows) -> FloatColumn:
    known = {
        Expects.PHYSICS: rows.log_step,
        Expects.REFITTED: rows.log_refitted - rows.log_gained,
        Expects.STALLS: rows.log_stalled,
        Expects.ALIKE: rows.log_ideal,
    }
    return known[hypothesis.expects]


def points_of(rows: Rows, hypothesis: SpeedHypothesis) -> Points:
    slopes = rows.refitted_slopes if hypothesis.expects is Expects.REFITTED else rows.step_slopes
    return Points(rows.features, slopes, rows.campaign, rows.knobs)
