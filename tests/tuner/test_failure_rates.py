"""Failure rates: what counts as one, and how they go over a campaign."""

from __future__ import annotations

import pytest

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.trial import TrialState
from meshtune.tuner.results.analysis.analysis import count_failures


@pytest.fixture
def trials(make):
    """Trials that ended so, in the order of planning; None still runs."""

    def build(*verdicts):
        return [
            make.trial(number, state=TrialState.RUNNING)
            if verdict is None
            else make.trial(number, make.measurement(1.0) if verdict is Verdict.OK else verdict)
            for number, verdict in enumerate(verdicts)
        ]

    return build


OK, OOM, CRASHED = Verdict.OK, Verdict.OOM, Verdict.CRASHED


def test_rates_are_counted_after_each_trial(trials):
    found = count_failures(trials(OOM, OK, CRASHED, OK))
    assert [window.rate for window in found.so_far] == pytest.approx([1, 1 / 2, 2 / 3, 1 / 2])
    assert found.all.verdicts == {OK: 2, OOM: 1, CRASHED: 1}


def test_windows_are_ten_trials_each_and_stand_alone(trials):
    found = count_failures(trials(*[OOM] * 9, OK, *[OK] * 8, OOM, OOM, OK, OOM, OK))
    assert [(window.first, window.last, window.rate) for window in found.windows] == [
        (0, 9, 0.9),
        (10, 19, 0.2),
        (20, 22, pytest.approx(1 / 3)),
    ]
    assert found.all.rate == pytest.approx(12 / 23)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_what_ended_without_a_speed_and_not_by_intent_has_failed(trials, verdict):
    found = count_failures(trials(OK, verdict))
    failed = {Verdict.OOM, Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.ILLEGAL, Verdict.LOST}
    assert found.all.failed == (verdict in failed)
    assert found.all.trials == (1 if verdict is Verdict.CANCELLED else 2)


def test_trials_are_taken_in_the_order_of_planning_and_running_ones_are_not_counted(trials):
    found = count_failures(list(reversed(trials(OOM, None, OK))))
    assert [(one.trial, one.failed) for one in found.so_far] == [(0, 1), (2, 1)]
