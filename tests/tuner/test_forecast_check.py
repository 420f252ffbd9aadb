"""Expectations against outcomes, with numbers that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshtune.runners.documents import plain
from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.trial import Expectation
from meshtune.tuner.results.analysis.forecast_check import check_forecasts


@pytest.fixture
def trial(make):
    """A trial that was expected to take `expected_s` (half to twice as long), and took `measured_s` or ended so."""

    def build(number, expected_s, outcome, p_fits=0.9):
        known = Expectation(
            step_time_s=expected_s,
            step_time_low_s=expected_s / 2,
            step_time_high_s=expected_s * 2,
            p_fits=p_fits,
            gain=0.0,
            peak_bytes=1e9,
        )
        measured = outcome if isinstance(outcome, Verdict) else make.measurement(outcome)
        return replace(make.trial(number, measured), expectation=known)

    return build


def test_step_times_are_compared_by_their_ratio(trial):
    found = check_forecasts([trial(0, 1.0, 1.1), trial(1, 2.0, 1.8), trial(2, 4.0, 12.0)])
    assert [forecast.ratio for forecast in found.forecasts] == pytest.approx([1.1, 0.9, 3.0])
    assert [forecast.within for forecast in found.forecasts] == [True, True, False]
    assert found.steps.trials == 3
    assert found.steps.within == pytest.approx(2 / 3)
    assert found.steps.median_error == pytest.approx(0.1)
    assert found.steps.spearman == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("measured", "expected"), [((4.0, 3.0, 2.0, 1.0), -1.0), ((1.0, 2.0, 4.0, 3.0), 0.8), ((1.0, 1.0, 1.0, 1.0), None)]
)
def test_ranks_are_compared_where_there_is_an_order(trial, measured, expected):
    found = check_forecasts([trial(number, 1.0 + number, step) for number, step in enumerate(measured)]).steps.spearman
    assert found == (None if expected is None else pytest.approx(expected))


def test_the_probability_to_fit_is_compared_with_what_fitted(trial):
    found = check_forecasts(
        [
            trial(0, 1.0, 1.0, p_fits=1.0),
            trial(1, 1.0, Verdict.PRUNED, p_fits=0.9),
            trial(2, 1.0, Verdict.OOM, p_fits=0.6),
            trial(3, 1.0, Verdict.OOM, p_fits=0.05),
        ]
    ).fits
    assert (found.trials, found.fitted) == (4, 2)
    assert found.expected == pytest.approx(2.55)
    assert found.brier == pytest.approx((0 + 0.01 + 0.36 + 0.0025) / 4)
    assert found.brier_of_share == pytest.approx(0.25)
    assert [(one.low, one.high, one.trials, one.fitted) for one in found.classes] == [
        (0.9, 1.0, 2, 2),
        (0.5, 0.9, 1, 0),
        (0.0, 0.1, 1, 0),
    ]
    assert found.classes[0].expected == pytest.approx(1.9)


@pytest.mark.parametrize(
    "verdict", [Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.CANCELLED, Verdict.LOST, Verdict.ILLEGAL]
)
def test_what_ended_otherwise_says_nothing_of_memory(trial, verdict):
    found = check_forecasts([trial(0, 1.0, verdict)])
    assert (found.forecasts, found.steps, found.fits) == ((), None, None)


def test_a_search_that_expected_nothing_is_compared_with_nothing(make):
    found = check_forecasts([make.trial(0, make.measurement(1.0)), make.trial(1, Verdict.OOM)])
    assert plain(found) == {"forecasts": [], "steps": None, "fits": None}
