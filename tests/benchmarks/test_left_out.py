"""One source left out: what the constants are expected to be elsewhere, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from generalise import main, predicted, read_source
from left_out import PRIOR, Fitted, over_sources

from meshtune.search_spaces.physics.constants import CONSTANTS
from meshtune.search_spaces.physics.estimate import estimate_time

MakeTable = Callable[..., Path]
EFFICIENCIES = ("matmul_efficiency", "memory_efficiency", "node_efficiency")
SURE = 0.03
# Wide enough that its steps are not the launching of kernels.
LARGE = {"layers": 24, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn": 16384}


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


def test_the_interval_is_the_one_that_holds_90_percent(make_table: MakeTable) -> None:
    """A step that lies 1.8 standard deviations off is inside of 95 %, not of 90 %."""
    (cell,) = read_source(make_table(LARGE)).cells
    (group,) = cell.groups
    time = estimate_time(group.training, group.columns, PRIOR)
    for sds, inside in ((1.5, 1.0), (1.8, 0.0)):
        measured = float(time.step_s[0] * np.exp(sds * time.log_sd[0]))
        found = predicted(read_source(make_table(LARGE | {"step_time_s": measured})), PRIOR)
        assert found["interval_90_holds"] == inside


def test_one_source_alone_cannot_be_left_out(make_table: MakeTable) -> None:
    with pytest.raises(SystemExit):
        main([str(make_table({}))])


def test_each_source_is_judged_by_the_others(make_table: MakeTable, capsys: pytest.CaptureFixture[str]) -> None:
    tables = [str(make_table(LARGE, LARGE | {"step_time_s": 2.0}, name=name)) for name in ("one", "two")]
    assert main([*tables, "--no-search"]) == 0
    told = capsys.readouterr().out
    assert "one" in told
    assert "two" in told
    assert "summary" in told
