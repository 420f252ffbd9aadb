"""What trials teach about memory: measured peaks, plans that ran out, crashes, and what says nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

import numpy as np
import pytest

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.columns import FloatColumn
from meshtune.search_spaces.space import Bounds, Space
from meshtune.tuner.search.base import Task
from meshtune.tuner.search.physics.feasibility import BASE_FAILURES, Feasibility, Tried, learn_feasibility
from meshtune.tuner.search.physics.prior import Rows, rows_of


@pytest.fixture(scope="module")
def tight(make: Callable[[int, int | None, Bounds], Space]) -> Space:
    """Plans of which the larger micro-batches do not fit."""
    return make(1, 512, Bounds(micro_batch_size=(1, 2, 4, 8, 16, 32), pp=(1, 2, 4), zero_stage=(0, 1)))


@pytest.fixture(scope="module")
def rows(tight: Space, task: Callable[..., Task]) -> Rows:
    return rows_of(task(tight).training, tight.columns)


def margin(rows: Rows) -> FloatColumn:
    """How far above the usable memory the physics expects each plan, as a logarithm."""
    return rows.log_peak - rows.log_capacity


def learn(rows: Rows, told: Sequence[tuple[int, Verdict, float]], weight: float = 1.0) -> Feasibility:
    """After these trials: position, verdict and the logarithm of the peak (NaN: unknown)."""
    chosen = rows.take(np.array([index for index, _, _ in told], dtype=np.int64))
    peaks, verdicts = np.array([peak for _, _, peak in told]), [verdict for _, verdict, _ in told]
    return learn_feasibility(Tried(chosen, peaks, verdicts, np.full(len(told), weight)))


def runs(believed: Feasibility, rows: Rows) -> FloatColumn:
    return believed.runs(rows, believed.peaks(rows))


def at(rows: Rows, told: Sequence[tuple[int, Verdict, float]], weight: float = 1.0) -> FloatColumn:
    return runs(learn(rows, told, weight), rows)


def closest(rows: Rows, to: float) -> int:
    """The plan whose expected peak lies closest to so many times the usable memory, as a logarithm."""
    return int(np.argmin(np.abs(margin(rows) - to)))


def place(tight: Space, **fields: Any) -> int:
    return next(index for index, plan in enumerate(tight) if all(getattr(plan, n) == v for n, v in fields.items()))


def doubtful(rows: Rows) -> Any:
    """The plans that may fit or not."""
    return np.flatnonzero(np.abs(margin(rows)) < 0.2)


def test_before_any_trial_the_physics_says_what_fits(rows: Rows) -> None:
    fits = at(rows, [])
    assert np.all(np.diff(fits[np.argsort(-margin(rows))]) > -0.05)
    assert fits[margin(rows) < -0.7].min() > 0.8
    assert fits[margin(rows) > 0.7].max() < 0.2
    assert fits.max() <= 1.0 - BASE_FAILURES
    assert len(doubtful(rows)) > 5


@pytest.mark.parametrize("off", [-0.15, 0.15])
def test_measured_peaks_move_what_is_expected_of_plans_not_tried(off: float, rows: Rows) -> None:
    told = [
        (int(index), Verdict.OK, float(rows.log_peak[index] + off)) for index in np.flatnonzero(margin(rows) < -0.3)
    ]
    others = doubtful(rows)
    moved = at(rows, told[::4])[others] - at(rows, [])[others]
    # An OK raises the chance that nothing else stops a plan, too, by little.
    assert np.mean(moved) * np.sign(-off) > 0.1
    mean = np.sum([weight * means for weight, means, _ in learn(rows, told[::4]).peaks(rows)], axis=0)
    assert mean[others] - rows.log_peak[others] == pytest.approx(np.full(len(others), off), abs=0.08)


def test_running_out_lowers_the_chance_of_larger_micro_batches_and_hardly_touches_far_plans(
    tight: Space, rows: Rows
) -> None:
    before = at(rows, [])
    ran_out = next(
        index
        for index, plan in enumerate(tight)
        if abs(margin(rows)[index]) < 0.25 and before[index] > 0.4 and plan.micro_batch_size <= 16
    )
    after = at(rows, [(ran_out, Verdict.OOM, nan)])
    witness = tight[ran_out]
    larger = place(
        tight,
        tp=witness.tp,
        pp=witness.pp,
        zero_stage=witness.zero_stage,
        micro_batch_size=2 * witness.micro_batch_size,
    )
    assert after[ran_out] < 0.4 * before[ran_out]
    assert after[larger] < 0.7 * before[larger]
    far = np.argsort(np.linalg.norm(rows.features - rows.features[ran_out], axis=1))[-60:]
    far = far[margin(rows)[far] < -1.0]
    assert len(far) > 3
    assert np.all(after[far] > before[far] - 0.1)


@pytest.mark.parametrize("verdict", [Verdict.OK, Verdict.PRUNED])
def test_a_plan_that_ran_without_telling_its_peak_fitted(verdict: Verdict, rows: Rows) -> None:
    index = closest(rows, 0.05)
    before, after = at(rows, []), at(rows, [(index, verdict, nan)])
    assert after[index] > before[index] + 0.15
    assert np.mean(after[doubtful(rows)] - before[doubtful(rows)]) > 0.02
    assert learn(rows, [(index, verdict, nan)]).suspects.tolist() == [0.0]


@pytest.mark.parametrize("verdict", [Verdict.OOM, Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.PRUNED])
def test_hundreds_of_one_verdict_still_leave_chances(verdict: Verdict, rows: Rows) -> None:
    told = [(index % len(rows), verdict, nan) for index in range(300)]
    fits = at(rows, told)
    assert np.all((fits >= 0) & (fits <= 1))
    if verdict is Verdict.PRUNED:
        assert fits.min() > 0.5
    else:
        assert np.median(fits) < 0.3
