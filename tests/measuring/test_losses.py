"""Two settings train the same, or the first step that says otherwise is named."""

from __future__ import annotations

from math import inf, nan

import pytest

from meshtune.tuner.results.ranking import LossCheck, check_losses


def test_losses_that_differ_by_rounding_are_the_check_losses():
    found = check_losses([2.5, 2.25, 2.125], [2.5, 2.25 + 1e-6, 2.125], 1e-4)
    assert found.equal is True
    assert found.step == 1
    assert found.difference == pytest.approx(1e-6)
    assert str(found) == "trains the same: the losses of step 1 differ by 1e-06"


def test_the_first_step_that_differs_is_named():
    found = check_losses([2.5, 2.25, 2.0], [2.5, 2.5, 3.0], 1e-4)
    assert found == LossCheck(False, 1, 0.25)
    assert str(found) == "does not train the same: the losses of step 1 differ by 0.25"


@pytest.mark.parametrize("broken", [nan, inf, -inf])
def test_a_loss_that_is_no_number_equals_nothing(broken):
    assert check_losses([1.0, broken], [1.0, broken], 1e-4) == LossCheck(False, 1, inf)


def test_only_what_both_have_is_compared():
    assert check_losses([1.0, 2.0], [1.0], 1e-4).equal is True
    assert check_losses([], [1.0], 1e-4) == LossCheck(None)
    assert str(check_losses([], [], 1e-4)) == "no losses to compare"


def test_the_tolerance_itself_is_allowed():
    assert check_losses([1.0], [1.5], 0.5).equal is True
