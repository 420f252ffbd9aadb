"""Gaussian processes over plans: the residual between what was measured and what was expected.

The covariance of two plans has five parts: what the physics' constants, if they are wrong, do to both (their slopes); a
smooth function of the plans' features (Matern 5/2); an offset common to all; one of each campaign; and what their knobs
do to both, on all layouts alike, on layouts of such features alone, and two knobs together. Exact; a few hundred
observations at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import FloatColumn
from meshtune.tuner.search.physics.prior import Matrix

# Keeps a matrix of equal plans positive definite; far below any noise.
JITTER = 1e-9
# A hypothesis of a lower weight is left out: it would cost as much as the others.
MIN_WEIGHT = 1e-3
# Of knobs' effects, as shares of the variance of those that all layouts have: what layouts of other features do not
# share; and what effects do together, per variance squared, so that 6 % twice lets 3 % come of their meeting.
OWN_EFFECTS = 0.3
TOGETHER = 60.0
# More runs than this are not taken for a sick node's: then it is the field that is wrong.
MAX_OUTLIERS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A prior covariance; standard deviations of logarithms. slopes: how many times the constants' own uncertainty is
    believed in. amplitude, length: of the smooth function. offset: common to all. campaign_offset: of each campaign.
    knobs: how many times the assumed size of knobs' effects is believed in."""

    slopes: float
    amplitude: float
    length: float
    offset: float
    campaign_offset: float
    knobs: float = 1.0

    def between(self, one: Points, other: Points) -> Matrix:
        """Covariances: rows of `one` x rows of `other`."""
        alike = _matern(one.features, other.features, self.length)
        covariance: Matrix = self.amplitude**2 * alike + self.offset**2
        if self.knobs and one.knobs.shape[1]:
            effects = self.knobs**2 * (one.knobs @ other.knobs.T)
            covariance += effects * (1.0 + OWN_EFFECTS * alike) + TOGETHER * effects**2
        if self.slopes:
            covariance += self.slopes**2 * (one.slopes @ other.slopes.T)
        if self.campaign_offset:
            covariance += self.campaign_offset**2 * (one.campaign[:, None] == other.campaign[None, :])
        return covariance

    def variance(self, points: Points) -> FloatColumn:
        """The diagonal of `between(points, points)`."""
        constant = self.amplitude**2 + self.offset**2 + self.campaign_offset**2
        variance: FloatColumn = constant + self.slopes**2 * np.sum(points.slopes**2, axis=1)
        if self.knobs and points.knobs.shape[1]:
            effects = self.knobs**2 * np.sum(points.knobs**2, axis=1)
            variance = variance + effects * (1.0 + OWN_EFFECTS) + TOGETHER * effects**2
        return variance


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Plans as a field sees them, see `prior.Rows`."""

    features: Matrix
    slopes: Matrix
    campaign: FloatColumn
    knobs: Matrix

    def take(self, index: npt.NDArray[np.int64]) -> Points:
        return Points(*(getattr(self, name)[index] for name in Points.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A field's prediction for some points and all of them together, updated while more of them are observed: a
    product of a matrix and a vector for each, in the place of a new process.

    mean: of the residual. variance: noise left out. explained: points x observations, in blocks; what is known of two
    points' covariance is the product of their rows.
    """

    field: Field
    points: Points
    mean: FloatColumn
    variance: FloatColumn
    explained: tuple[Matrix, ...] = ()

    @property
    def sd(self) -> FloatColumn:
        return np.sqrt(np.maximum(self.variance, JITTER))

    def believing(self, at: npt.NDArray[np.int64], noise_variance: float) -> View:
        """After the points at these positions were observed just as expected: no mean moves, and doubt goes."""
        covariance = self.field.between(self.points, self.points.take(at))
        for block in self.explained:
            covariance -= block @ block[at].T
        lower = np.linalg.cholesky(covariance[at] + (noise_variance + JITTER) * np.eye(len(at)))
        more = np.linalg.solve(lower, covariance.T).T
        variance = self.variance - np.sum(more**2, axis=1)
        return replace(self, variance=variance, explained=(*self.explained, more))


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """A field after observations, each with its noise's variance. inverse: of the Cholesky factor of their covariance.
    pull: the covariance's inverse times the residuals. log_evidence: the log density of the residuals."""

    field: Field
    points: Points
    residuals: FloatColumn
    noise_variance: FloatColumn
    inverse: Matrix
    pull: FloatColumn
    log_evidence: float

    def view(self, points: Points) -> View:
        across = self.field.between(points, self.points)
        explained = across @ self.inverse.T
        variance = self.field.variance(points) - np.sum(explained**2, axis=1)
        return View(self.field, points, across @ self.pull, variance, (explained,))

    def joint(self, points: Points) -> tuple[FloatColumn, Matrix]:
        across = self.field.between(points, self.points)
        explained = across @ self.inverse.T
        covariance: Matrix = self.field.between(points, points) - explained @ explained.T
        return across @ self.pull, covariance

    def extended(self, points: Points, residuals: FloatColumn, noise_variance: FloatColumn) -> Process:
        both = Points(
            *(np.concatenate([getattr(self.points, name), getattr(points, name)]) for name in Points.__slots__)
        )
        return condition(
            self.field,
            both,
            np.concatenate([self.residuals, residuals]),
            np.concatenate([self.noise_variance, noise_variance]),
        )


def condition(field: Field, points: Points, residuals: FloatColumn, noise_variance: FloatColumn) -> Process:
    """The field after these residuals were observed, each with its noise's variance."""
    covariance = field.between(points, points) + np.diag(noise_variance + JITTER)
    lower = np.linalg.cholesky(covariance)
    inverse = np.linalg.solve(lower, np.eye(len(residuals)))
    scaled = inverse @ residuals
    density = -0.5 * float(scaled @ scaled) - float(np.sum(np.log(np.diag(lower))))
    return Process(field, points, residuals, noise_variance, inverse, inverse.T @ scaled, density)


def weights_of(log_evidence: FloatColumn) -> FloatColumn:
    """The weights of hypotheses, which add up to 1; 0 for one below MIN_WEIGHT."""
    weights: FloatColumn = np.exp(log_evidence - log_evidence.max())
    weights /= weights.sum()
    weights[weights < MIN_WEIGHT] = 0.0
    weights /= weights.sum()
    return weights


def tamed(field: Field, points: Points, residuals: FloatColumn, noise_variance: FloatColumn, far: float) -> FloatColumn:
    """The noise, made larger where a residual lies more than `far` standard deviations from what all others say of it.

    One run on a sick node (30 times too slow in public tables) would else bend the field around it. The others' word
    is the leave-one-out prediction, in closed form (Rasmussen & Williams 2006, eq. 5.12).
    """
    if len(residuals) < 2:
        return noise_variance
    covariance = field.between(points, points) + JITTER * np.eye(len(residuals))
    noise_variance = noise_variance.copy()
    for _ in range(MAX_OUTLIERS):
        precision = np.linalg.inv(covariance + np.diag(noise_variance))
        precisions = np.diag(precision)
        off = (precision @ residuals) / precisions
        # The furthest one alone: it makes its neighbours look far off, too.
        furthest = int(np.argmax(off**2 * precisions))
        if off[furthest] ** 2 * precisions[furthest] <= far**2:
            break
        noise_variance[furthest] = max(noise_variance[furthest], (off[furthest] / far) ** 2)
    return noise_variance


def _matern(one: Matrix, other: Matrix, length: float) -> Matrix:
    squares = np.sum(one**2, axis=1)[:, None] + np.sum(other**2, axis=1)[None, :] - 2.0 * (one @ other.T)
    distance = np.sqrt(5.0 * np.maximum(squares, 0.0)) / length
    kernel: Matrix = (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)
    return kernel
