"""One source left out: what the constants are expected to be elsewhere, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from left_out import PRIOR, Fitted, over_sources

from meshtune.search_spaces.physics.constants import CONSTANTS

EFFICIENCIES = ("matmul_efficiency", "memory_efficiency", "node_efficiency")
SURE = 0.03


def source(name: str, factors: Mapping[str, float]) -> Fitted:
    """A source whose rows say that these constants are so many times the prior's, and nothing of the others."""
    before = np.linalg.inv(PRIOR.covariance)
    told = np.diag([1 / SURE**2 if name in factors else 0.0 for name in CONSTANTS])
    covariance = np.linalg.inv(before + told)
    shift = covariance @ told @ np.log([factors.get(name, 1.0) for name in CONSTANTS])
    moved = {name: getattr(PRIOR.constants, name) * np.exp(by) for name, by in zip(CONSTANTS, shift, strict=True)}
    return Fitted(name, replace(PRIOR, constants=replace(PRIOR.constants, **moved), covariance=covariance, times=9))


def test_without_sources_the_prior_is_expected() -> None:
    found = over_sources([])
    for name in CONSTANTS:
        assert getattr(found.constants, name) == pytest.approx(getattr(PRIOR.constants, name))
    assert np.array_equal(found.covariance, PRIOR.covariance)


def test_sources_that_agree_move_the_constant_and_take_doubt_away() -> None:
    found = over_sources([source(str(number), {"network_efficiency": 0.6}) for number in range(8)])
    assert found.constants.network_efficiency == pytest.approx(0.6 * PRIOR.constants.network_efficiency, rel=0.05)
    assert found.log_sd("network_efficiency") < 0.7 * PRIOR.log_sd("network_efficiency")
    assert found.constants.congestion == pytest.approx(PRIOR.constants.congestion)
    # Of what no source tells, the mean over sources is in doubt as well as the spread.
    assert 1 <= found.log_sd("congestion") / PRIOR.log_sd("congestion") < 1.7


def test_sources_that_differ_leave_the_doubt_that_they_show() -> None:
    found = over_sources([source(str(by), {"network_efficiency": by}) for by in (0.4, 0.5, 0.8, 1.2, 2.0, 2.5)])
    assert found.log_sd("network_efficiency") > 1.2 * PRIOR.log_sd("network_efficiency")


def test_an_offset_of_whole_sources_correlates_their_constants() -> None:
    """Everything on one cluster is slower by the same factor: one constant known, the others follow."""
    factors = (0.6, 0.75, 0.9, 1.1, 1.3, 1.6)
    found = over_sources([source(str(by), dict.fromkeys(EFFICIENCIES, by)) for by in factors])
    first, second = (CONSTANTS.index(name) for name in EFFICIENCIES[:2])
    spread = np.sqrt(np.diag(found.covariance))
    assert found.covariance[first, second] / (spread[first] * spread[second]) > 0.5
