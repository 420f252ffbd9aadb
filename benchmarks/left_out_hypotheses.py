"""The weights of the search's hypotheses as other sources have them.

In each of a source's cells, a few random rows say how likely each hypothesis is (its evidence, from equal weights),
with constants that neither this source nor the one left out had a part in. The weights are those of a mixture over
sources, by expectation maximisation from equal ones, which count as `PRIOR_SOURCES` sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from scoring import Cell

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.physics.constants import Calibration
from meshtune.tuner.search.physics import feasibility, speed
from meshtune.tuner.search.physics.feasibility import MemoryHypothesis, Tried, learn_feasibility
from meshtune.tuner.search.physics.prior import Rows, rows_of, stack
from meshtune.tuner.search.physics.speed import SpeedHypothesis, learn_speeds
from meshtune.tuner.search.physics.weighing import Hypotheses

# As many trials of a cell are what a campaign has when its hypotheses count most; cells of a source, and draws in each.
TRIALS, CELLS, DRAWS = 8, 8, 3
PRIOR_SOURCES = 2.0
ROUNDS = 100

Matrix = npt.NDArray[np.float64]
Held = TypeVar("Held", SpeedHypothesis, MemoryHypothesis)


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """Probabilities of the hypotheses about speeds and about memory, from equal weights: draws x hypotheses each."""

    speeds: Matrix
    memory: Matrix


def told_by(cells: Sequence[Cell], calibration: Calibration, seed: int = 0) -> Told:
    """What a source's cells say of the hypotheses."""
    random = np.random.default_rng(seed)
    speeds, memory = [], []
    for at in random.permutation(len(cells))[:CELLS]:
        rows, log_times, log_peaks = _measured(cells[int(at)], calibration)
        for log_values, shares, probabilities in ((log_times, speeds, _of_speeds), (log_peaks, memory, _of_memory)):
            known = np.flatnonzero(np.isfinite(log_values))
            for _ in range(DRAWS if len(known) >= TRIALS else 0):
                chosen = random.choice(known, TRIALS, replace=False)
                shares.append(probabilities(rows.take(chosen), log_values[chosen]))
    return Told(
        np.array(speeds).reshape(-1, len(speed.HYPOTHESES)), np.array(memory).reshape(-1, len(feasibility.HYPOTHESES))
    )


def weigh(told: Sequence[Told]) -> Hypotheses:
    """The hypotheses with the weights that these sources give them."""
    return Hypotheses(
        speeds=_weighed(speed.HYPOTHESES, [one.speeds for one in told if len(one.speeds)]),
        memory=_weighed(feasibility.HYPOTHESES, [one.memory for one in told if len(one.memory)]),
    )


def _weighed(hypotheses: Sequence[Held], told: Sequence[Matrix]) -> list[Held]:
    count = len(hypotheses)
    weights = np.full(count, 1.0 / count)
    for _ in range(ROUNDS):
        shares = [one * weights for one in told]
        sources = [np.mean(one / one.sum(axis=1, keepdims=True), axis=0) for one in shares]
        weights = (PRIOR_SOURCES / count + np.sum([np.zeros(count), *sources], axis=0)) / (PRIOR_SOURCES + len(told))
    return [one._replace(weight=weight) for one, weight in zip(hypotheses, weights.tolist(), strict=True)]


def _measured(cell: Cell, calibration: Calibration) -> tuple[Rows, Matrix, Matrix]:
    """The cell's rows, with log(seconds per token) and log(peak bytes), NaN where not measured."""
    parts = [rows_of(group.training, group.columns, calibration=calibration) for group in cell.groups]
    order = np.concatenate([group.index for group in cell.groups])
    rows = stack(parts)
    return rows, np.log(cell.step_s[order]) - rows.log_tokens, np.log(cell.peak_bytes[order])


def _of_speeds(rows: Rows, log_times: Matrix) -> Matrix:
    equal = [one._replace(weight=1.0 / len(speed.HYPOTHESES)) for one in speed.HYPOTHESES]
    kept = learn_speeds(rows, log_times, np.ones(len(rows)), equal).kept
    return _shares({equal.index(one): weight for weight, one, _ in kept}, len(equal))


def _of_memory(rows: Rows, log_peaks: Matrix) -> Matrix:
    equal = [one._replace(weight=1.0 / len(feasibility.HYPOTHESES)) for one in feasibility.HYPOTHESES]
    kept = learn_feasibility(Tried(rows, log_peaks, [Verdict.OK] * len(rows), np.ones(len(rows))), equal).kept
    return _shares({equal.index(one): weight for weight, one, _ in kept}, len(equal))


def _shares(kept: dict[int, float], count: int) -> Matrix:
    return np.array([kept.get(at, 0.0) for at in range(count)])
