from __future__ import annotations

import numpy as np
import pytest
from metrics import absolute_relative_errors, area_under_roc, mean, median, spearman


def test_relative_errors_are_fractions_of_what_was_measured() -> None:
    errors = absolute_relative_errors(np.array([1.1, 3.0, 5.0]), np.array([1.0, 4.0, np.nan]))

    assert errors == pytest.approx([0.1, 0.25])
    assert (mean(errors), median(np.array([1.0, 2.0, 9.0]))) == (pytest.approx(0.175), 2.0)
    assert (mean(errors[:0]), median(errors[:0])) == (None, None)


def test_spearman_with_ties_is_the_correlation_of_the_ranks() -> None:
    # Ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4: deviations' products sum to 4.5, their squares to 4.5 and 5.
    found = spearman(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 30.0, 20.0, 40.0]))
    assert found == pytest.approx(4.5 / np.sqrt(4.5 * 5))


def test_spearman_says_nothing_of_one_value_or_of_equal_ones() -> None:
    assert spearman(np.array([1.0]), np.array([2.0])) is None
    assert spearman(np.array([1.0, 1.0]), np.array([2.0, 3.0])) is None


def test_the_area_counts_pairs_in_the_right_order_and_half_of_the_ties() -> None:
    # Positives 0.9 and 0.5 against negatives 0.5 and 0.1: three pairs right, one tie.
    score, positive = np.array([0.9, 0.5, 0.5, 0.1]), np.array([True, True, False, False])
    assert area_under_roc(score, positive) == pytest.approx(3.5 / 4)
    assert area_under_roc(score, ~positive) == pytest.approx(0.5 / 4)
