"""Scores of the physics on one cell: before anything is measured, and after a few of the cell's own rows were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import metrics
import numpy as np
import numpy.typing as npt
from reported import Reported
from tables import Status

from meshtune.search_spaces.columns import Columns, columns_of, rows
from meshtune.search_spaces.physics.constants import UNCALIBRATED, Calibration
from meshtune.search_spaces.physics.estimate import Estimates, estimate, estimate_memory, log_step
from meshtune.search_spaces.physics.fitting import Measured, calibrate
from meshtune.search_spaces.physics.training import Training, usable_bytes

Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Score:
    """Errors are fractions of what was measured; None where the cell does not tell.

    time_mape, time_median_ape: mean and median absolute relative error of the step time. spearman: rank correlation of
    tokens per second. memory_median_ape: of the peak. fit_auc: area under the ROC curve of P(fits), ok against oom and
    fail.
    """

    time_mape: float | None
    time_median_ape: float | None
    spearman: float | None
    memory_median_ape: float | None
    fit_auc: float | None


SCORES: tuple[str, ...] = tuple(field.name for field in fields(Score))


@dataclass(frozen=True, slots=True)
class _Group:
    """The rows of one Training, estimated at once. index: their positions in the cell."""

    training: Training
    columns: Columns
    index: Positions


@dataclass(frozen=True, slots=True)
class _Predicted:
    """One value per row of the cell."""

    step_s: Floats
    peak_bytes: Floats
    fits: Floats


class Cell:
    """Rows that are scored together, with what was measured of them as arrays."""

    def __init__(self, reports: Sequence[Reported]) -> None:
        self.reports = tuple(reports)
        self.ok = np.array([one.row.status is Status.OK for one in reports], dtype=np.bool_)
        self.timed = np.array([one.timed for one in reports], dtype=np.bool_)
        self.step_s = _floats([one.row.step_time_s if one.timed else None for one in reports])
        self.peak_bytes = _floats([one.peak_memory_bytes for one in reports])
        self.tokens = _floats([one.plan.global_batch_size * one.training.model.seq_len for one in reports])
        self.groups = _groups(reports)

    def uncalibrated(self) -> Score:
        """The score of every row, from the constants' defaults."""
        return self.by(UNCALIBRATED)

    def calibrated(self, learnt: int, draws: int, seed: int) -> Score:
        """The mean score over `draws` random choices of `learnt` timed rows, each time of all the other rows.

        Raises ValueError where there are no `learnt` timed rows.
        """
        random = np.random.default_rng(seed)
        choices = (random.choice(np.flatnonzero(self.timed), learnt, replace=False) for _ in range(draws))
        scores = [self.after(np.sort(chosen)) for chosen in choices]
        return Score(**{name: combine(scores, name, metrics.mean) for name in SCORES})

    def after(self, chosen: Positions) -> Score:
        """The score of all rows but the chosen ones, whose measurements the calibration knows."""
        rest = np.ones(len(self.ok), dtype=np.bool_)
        rest[chosen] = False
        return self._score(self._predicted(calibrate(self.observed(chosen))), rest)

    def by(self, calibration: Calibration) -> Score:
        """The score of every row, from these constants."""
        return self._score(self._predicted(calibration), np.ones(len(self.ok), dtype=np.bool_))

    def observed(self, chosen: Positions) -> list[tuple[Estimates, Measured]]:
        """What is known of these rows, for `calibrate`."""
        observed = []
        for group in self.groups:
            here = np.flatnonzero(np.isin(group.index, chosen))
            if len(here):
                at = group.index[here]
                measured = Measured(self.step_s[at], self.peak_bytes[at], np.zeros(len(at), dtype=np.bool_))
                observed.append((estimate(group.training, rows(group.columns, here)), measured))
        return observed

    def _predicted(self, calibration: Calibration) -> _Predicted:
        """What is expected of every row. Raises FloatingPointError where it is no positive number.

        The same numbers as of `estimate`; how sure the step time is would take most of the time, and is not scored.
        """
        step_s, peak_bytes, fits = (np.full(len(self.ok), np.nan) for _ in range(3))
        for group in self.groups:
            memory = estimate_memory(group.training, group.columns, calibration)
            step_s[group.index] = np.exp(log_step(group.training, group.columns, calibration.constants))
            peak_bytes[group.index] = memory.peak_bytes
            fits[group.index] = memory.fits(usable_bytes(group.training))
        sane = (step_s > 0) & np.isfinite(step_s) & (peak_bytes > 0) & np.isfinite(peak_bytes) & (fits >= 0)
        if not np.all(sane):
            first = int(np.argmin(sane))
            raise FloatingPointError(
                f"{self.reports[first].row.place}: the physics gives {step_s[first]} s, {peak_bytes[first]} bytes, "
                f"P(fits) {fits[first]} for {self.reports[first].plan.key}"
            )
        return _Predicted(step_s, peak_bytes, fits)

    def _score(self, predicted: _Predicted, scored: npt.NDArray[np.bool_]) -> Score:
        timed = scored & self.timed
        errors = metrics.absolute_relative_errors(predicted.step_s[timed], self.step_s[timed])
        memory = metrics.absolute_relative_errors(predicted.peak_bytes[scored], self.peak_bytes[scored])
        speeds = (self.tokens[timed] / step_s[timed] for step_s in (predicted.step_s, self.step_s))
        return Score(
            time_mape=metrics.mean(errors),
            time_median_ape=metrics.median(errors),
            spearman=metrics.spearman(*speeds),
            memory_median_ape=metrics.median(memory),
            fit_auc=metrics.area_under_roc(predicted.fits[scored], self.ok[scored]),
        )


def combine(scores: Sequence[Score], name: str, reduce: Callable[[Floats], float | None]) -> float | None:
    """One metric over several scores, those left aside that do not tell it."""
    values = [value for score in scores if (value := getattr(score, name)) is not None]
    return reduce(np.array(values, dtype=np.float64))


def _groups(reports: Sequence[Reported]) -> list[_Group]:
    # All rows of one hardware share its preset, so a cluster is told by its name and size; a ClusterSpec has no hash.
    places: dict[object, list[int]] = {}
    for position, one in enumerate(reports):
        cluster = one.training.cluster
        key = (one.training.model, one.training.framework, cluster.name, cluster.nodes, cluster.devices_per_node)
        places.setdefault(key, []).append(position)
    return [
        _Group(reports[index[0]].training, columns_of([reports[one].plan for one in index]), np.array(index))
        for index in places.values()
    ]


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
