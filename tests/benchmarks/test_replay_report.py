from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from replay_cells import Cell, read_cells
from replay_plot import plot
from replay_report import Comparison, document
from replay_runs import Contender, Rules, Run

MakeTable = Callable[..., Path]
SVG = "{http://www.w3.org/2000/svg}"
CELL_KEYS = [
    *("table", "model", "devices", "seq_len", "global_batch", "settings", "ok", "search"),
    *("reached", "trials_median", "trials_p90", "failed_median", "ask_seconds_p95"),
]


def run(trials: int, failed: int = 0, reached: bool = True, ask_s: float = 0.1) -> Run:
    """The failures come first, then settings of half the speed."""
    ran = [0.5] * (trials - failed - 1) + [1.0 if reached else 0.5]
    return Run(reached, (0.0,) * failed + tuple(ran), (ask_s,) * trials)


@pytest.fixture
def comparison(make_table: MakeTable, settings: list[dict[str, object]]) -> Comparison:
    """Two searches, two cells, two runs of each; the first cell's runs come first, by search."""
    (cell,) = read_cells(make_table(*settings)).cells
    other: Cell = replace(cell, table="other", key=replace(cell.key, devices=16))
    return Comparison(
        cells=(cell, other),
        contenders=(Contender("own<1>", "random", {}), Contender("optuna-tpe", "optuna", {})),
        seeds=2,
        rules=Rules(tolerance=0.05, batch=1, max_trials=50),
        runs=(
            *(run(1), run(3, failed=2)),
            *(run(8), run(12, failed=4)),
            *(run(9, failed=2), run(20, failed=4, reached=False, ask_s=0.5)),
            *(run(10), run(10)),
        ),
    )


def test_each_cell_has_its_figures_by_search(comparison: Comparison) -> None:
    cells = document(comparison)["cells"]

    assert [list(cell) for cell in cells] == [CELL_KEYS] * 4
    assert [(cell["devices"], cell["search"]) for cell in cells] == [
        (8, "own<1>"),
        (8, "optuna-tpe"),
        (16, "own<1>"),
        (16, "optuna-tpe"),
    ]
    assert [cell["trials_median"] for cell in cells] == [2, 10, (9 + 50) / 2, 10]
    assert cells[0] == {
        "table": "table",
        "model": "gpt-small",
        "devices": 8,
        "seq_len": 1024,
        "global_batch": 16,
        "settings": 20,
        "ok": 20,
        "search": "own<1>",
        "reached": 1.0,
        "trials_median": 2.0,
        "trials_p90": pytest.approx(2.8),
        "failed_median": 1.0,
        "ask_seconds_p95": pytest.approx(0.1),
    }


def test_the_summary_pools_all_runs_and_counts_what_was_not_reached_as_the_most_trials(comparison: Comparison) -> None:
    summary = document(comparison)["summary"]
    assert list(summary) == ["own<1>", "optuna-tpe"]
    assert summary["own<1>"] == {
        "cells": 2,
        "reached": 0.75,
        "trials_median": (3 + 9) / 2,
        "trials_mean": (1 + 3 + 9 + 50) / 4,
        "trials_p90": pytest.approx(9 + 0.7 * (50 - 9)),
        "failed_median": 2.0,
        "failed_share": 8 / (1 + 3 + 9 + 20),
        "ask_seconds_p95": pytest.approx(0.5),
    }


def test_the_picture_has_a_line_a_band_and_a_name_for_each_search(comparison: Comparison) -> None:
    root = ElementTree.fromstring(plot(comparison))
    kinds = [(path.get("class") or "").split()[0] for path in root.iter(f"{SVG}path")]
    assert (kinds.count("line"), kinds.count("band"), kinds.count("goal")) == (2, 2, 1)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"own<1>: 6", "optuna-tpe: 10"} <= set(texts)
    assert "Best setting so far, as a share of the fastest one (4 runs in 2 cells)" in texts
    assert [text for text in texts if text and text.isdigit()] == ["1", "2", "3", "5", "10", "20", "30", "50"]
