"""The comparison of importances knows the truth of its landscape, and draws what it says."""

from __future__ import annotations

import numpy as np
import pytest
from importance import draw, score, true_shares

from meshtune.search_spaces.plan import Plan

SPEC = """
model: gpt-micro
cluster: {preset: dgx-h100, nodes: 1}
global_batch_size: 64
space: {micro_batch_size: [1, 2, 4], zero_stage: [0, 1]}
budget: {trials: 5}
"""


def test_the_truth_is_the_variance_of_means():
    plans = [Plan(tp=tp, pp=pp) for tp in (1, 2) for pp in (1, 2)]
    speeds = np.array([0.0, 1.0, 2.0, 3.0])
    assert true_shares(plans, speeds, ["tp", "pp"]) == pytest.approx({"tp": 0.8, "pp": 0.2})


@pytest.mark.parametrize("kind", ["uniform", "searched"])
def test_samples_hold_different_plans_and_searched_ones_more_of_the_best(kind):
    speeds = np.arange(100.0)
    rows = draw(kind, speeds, 20, np.random.default_rng(0))
    assert len(set(rows.tolist())) == 20
    assert (np.mean(rows >= 80) >= 0.5) == (kind == "searched")


def test_every_evaluator_is_scored(tmp_path):
    (tmp_path / "toy.yaml").write_text(SPEC)
    table = score(tmp_path / "toy.yaml", 1)
    assert [str(column.header) for column in table.columns][2:5] == [
        "fANOVA",
        "PED-ANOVA, best 10 %",
        "PED-ANOVA, best 25 %",
    ]
    assert table.row_count > 0
