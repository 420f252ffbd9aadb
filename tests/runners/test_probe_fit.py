"""A link's latency and bandwidth come back from the times they make, noise and nonsense included."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshtune.runners.trainer_answers import NoFit, fit_all_reduce, fit_point_to_point

SIZES = [1024 * 4**power for power in range(9)]
latencies = st.floats(1e-6, 1e-4)
bandwidths = st.floats(1e9, 1e11)


def all_reduce_s(size, ranks, alpha_s, bandwidth):
    return 2 * (ranks - 1) * alpha_s + 2 * (ranks - 1) / ranks * size / bandwidth


@given(latencies, bandwidths, st.integers(2, 1024))
def test_exact_times_give_back_the_link(alpha_s, bandwidth, ranks):
    fit = fit_all_reduce(SIZES, [all_reduce_s(size, ranks, alpha_s, bandwidth) for size in SIZES], ranks)
    assert fit.alpha_s == pytest.approx(alpha_s, rel=1e-6)
    assert fit.bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=1e-6)
    assert fit.worst_residual < 1e-6


def test_every_size_counts_the_same_however_long_it_takes():
    times = [1e-5 + size / 1e9 for size in SIZES]
    times[-1] *= 2  # seen by absolute least squares alone, the largest would make the bandwidth half
    fit = fit_point_to_point(SIZES, times)
    assert fit.bandwidth_bytes_per_s > 0.75e9
    assert fit.alpha_s == pytest.approx(1e-5, rel=0.3)


def test_a_negative_latency_becomes_none_and_the_bandwidth_is_fitted_alone():
    # The unconstrained line through these is t = 2 S / 1e9 - 1e-6.
    fit = fit_point_to_point([1000, 2000], [1e-6, 3e-6])
    assert fit.alpha_s == 0
    # minimum of (1000 b / 1e-6 - 1)^2 + (2000 b / 3e-6 - 1)^2, in units of 1e-9: (b - 1)^2 + (2 b / 3 - 1)^2
    assert fit.bandwidth_bytes_per_s == pytest.approx(1e9 / ((1 + 2 / 3) / (1 + 4 / 9)))
    assert fit.worst_residual == pytest.approx(3 / 13)  # b = 15 / 13; the second is the worse one


@pytest.mark.parametrize(
    ("sizes", "times", "word"),
    [
        ([1000, 2000], [2e-6, 1e-6], "larger messages did not take longer"),
        ([1000, 2000, 4000], [1e-6, 1e-6, 1e-6], "larger messages did not take longer"),
        ([1000], [1e-6], "two sizes at least are needed, not 1"),
        ([1000, 1000], [1e-6, 2e-6], "two sizes at least are needed, not 1"),
        ([1000, 2000], [0.0, 1e-6], "must be positive and finite, not 0.0"),
        ([1000, 2000], [-1e-6, 1e-6], "not -1e-06"),
        ([1000, 2000], [nan, 1e-6], "not nan"),
        ([1000, 2000], [1e-6, inf], "not inf"),
    ],
)
def test_times_that_make_no_link_are_refused(sizes, times, word):
    with pytest.raises(NoFit, match=word):
        fit_point_to_point(sizes, times)
