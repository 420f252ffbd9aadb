"""Rows of measured settings, as the benchmarks read them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

# One setting of a small GPT on a node of 8 A100; the tests change some values of it.
SETTING: dict[str, object] = {
    "model": "gpt-small",
    "layers": 8,
    "hidden": 1024,
    "heads": 8,
    "kv_heads": 8,
    "ffn": 4096,
    "vocab": 8192,
    "seq_len": 1024,
    "hardware": "A100-80GB (8/node)",
    "nodes": 1,
    "gpus": 8,
    "gpus_per_node": 8,
    "gpu_mem_gb": 80,
    "tp": 2,
    "pp": 2,
    "dp": 2,
    "micro_batch": 2,
    "grad_accum": 4,
    "global_batch": 16,
    "act_ckpt": "none",
    "precision": "fp16",
    "status": "ok",
    "step_time_s": 1.5,
}
MakeTable = Callable[..., Path]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-figures", action="store_true", help="store the figures of test_figures.py anew")


@pytest.fixture
def make_table(tmp_path: Path) -> MakeTable:
    """A table of the setting, one row per mapping of changes; None leaves a value empty."""

    def make(*changes: Mapping[str, object], name: str = "table", without: str = "") -> Path:
        from tables import COLUMNS

        columns = [column for column in COLUMNS if column != without]
        path = tmp_path / f"{name}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            for change in changes:
                row = SETTING | dict(change)
                writer.writerow(["" if (value := row.get(column)) is None else value for column in columns])
        return path

    return make


@pytest.fixture
def settings() -> list[dict[str, object]]:
    """20 settings of 16 sequences on the node's 8 devices, of which no two take equally long."""
    degrees = [(tp, 8 // tp // dp, dp) for tp in (1, 2, 4, 8) for dp in (1, 2, 4, 8) if tp * dp <= 8]
    plans = [
        {"tp": tp, "pp": pp, "dp": dp, "micro_batch": size, "grad_accum": 16 // size // dp}
        for tp, pp, dp in degrees
        for size in (1, 2)
    ]
    return [plan | {"step_time_s": 1.0 + 0.1 * at} for at, plan in enumerate(plans)]
