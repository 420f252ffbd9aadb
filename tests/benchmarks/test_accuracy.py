from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from accuracy import main
from reported import GB, reported
from tables import read_table

from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import DEFAULTS, UNCALIBRATED
from meshtune.search_spaces.physics.estimate import estimate

MakeTable = Callable[..., Path]
# Large enough that the devices, not the launching of kernels, decide the time.
SHAPES = {"hidden": 8192, "heads": 64, "kv_heads": 64, "ffn": 32768}
# Ways to spread 16 sequences over 8 devices.
PLANS = [
    SHAPES | {"tp": tp, "pp": 8 // tp // dp, "dp": dp, "micro_batch": size, "grad_accum": 16 // size // dp}
    for tp in (1, 2, 4, 8)
    for dp in (1, 2, 4)
    if tp * dp <= 8
    for size in (1, 2)
]


def run(path: Path, *arguments: str) -> dict[str, dict[str, object]]:
    out = path.with_suffix(".json")
    assert main([str(path), "--json", str(out), *arguments]) == 0
    return dict(json.loads(out.read_text(encoding="utf-8")))


def measured_by_physics(
    make_table: MakeTable, scale: float = 1.0, plans: Sequence[dict[str, object]] = PLANS
) -> list[dict[str, object]]:
    """The settings with what the physics says of them when matrix products reach `scale` of the default."""
    kept, _ = reported(read_table(make_table(*plans, name="plain")))
    constants = replace(DEFAULTS, matmul_efficiency=DEFAULTS.matmul_efficiency * scale)
    truth = estimate(
        kept[0].training, columns_of([one.plan for one in kept]), replace(UNCALIBRATED, constants=constants)
    )
    values = zip(plans, truth.time.step_s, truth.memory.peak_bytes, strict=True)
    return [plan | {"step_time_s": float(time), "mem_gb": float(peak) / GB} for plan, time, peak in values]


def test_a_table_that_the_physics_made_is_predicted_without_error(make_table: MakeTable) -> None:
    cells = run(make_table(*measured_by_physics(make_table)))["cells"]

    assert cells == [
        {
            "table": "table",
            "model": "gpt-small",
            "devices": 8,
            "seq_len": 1024,
            "global_batch": 16,
            "rows": len(PLANS),
            "calibrate": 0,
            "time_mape": pytest.approx(0, abs=1e-9),
            "time_median_ape": pytest.approx(0, abs=1e-9),
            "spearman": pytest.approx(1),
            "memory_median_ape": pytest.approx(0, abs=1e-9),
            "fit_auc": None,
        }
    ]


def test_errors_are_fractions_of_the_measured_time_and_memory(make_table: MakeTable) -> None:
    known = measured_by_physics(make_table)
    slower = [row | {"step_time_s": row["step_time_s"] * (2 if at < 4 else 1.25)} for at, row in enumerate(known)]  # type: ignore[operator]
    larger = [row | {"mem_gb": row["mem_gb"] * 4} for row in slower]  # type: ignore[operator]

    (cell,) = run(make_table(*larger))["cells"]

    assert cell["time_mape"] == pytest.approx((4 * 0.5 + (len(known) - 4) * 0.2) / len(known))
    assert cell["time_median_ape"] == pytest.approx(0.2)
    assert cell["memory_median_ape"] == pytest.approx(0.75)


def test_what_did_not_fit_is_told_from_what_did(make_table: MakeTable) -> None:
    large = SHAPES | {"layers": 400, "step_time_s": None}
    known = measured_by_physics(make_table)
    (cell,) = run(make_table(*known, {"status": "oom"} | large, {"status": "fail"} | large))["cells"]
    assert (cell["fit_auc"], cell["rows"]) == (1.0, len(PLANS) + 2)


def test_five_rows_recover_a_cluster_of_other_constants(make_table: MakeTable) -> None:
    path = make_table(*measured_by_physics(make_table, scale=0.7))

    before, after = run(path, "--calibrate", "5", "--draws", "4")["cells"]

    assert (before["calibrate"], after["calibrate"]) == (0, 5)
    assert before["time_mape"] > 0.1
    assert after["time_mape"] < before["time_mape"] / 3


@pytest.mark.parametrize("arguments", [(), ("--cluster", "dgx")])
def test_an_unknown_cluster_ends_with_the_presets_and_status_2(
    make_table: MakeTable, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert main([str(make_table({"hardware": "Abacus 9000"})), *arguments]) == 2
    assert "dgx-h100" in capsys.readouterr().err


def test_one_node_s_rows_predict_more_nodes(make_table: MakeTable) -> None:
    """The same plans on two nodes with twice the replicas, where products reach 60 % of the default."""
    twice = [plan | {"nodes": 2, "gpus": 16, "dp": plan["dp"] * 2, "global_batch": 32} for plan in PLANS]
    rows = measured_by_physics(make_table, 0.6) + measured_by_physics(make_table, 0.6, twice)
    found = run(make_table(*rows), "--anchor", "one-node")

    assert [(cell["nodes"], cell["rows"], cell["anchors"]) for cell in found["cells"]] == [
        (2, len(PLANS), learnt) for learnt in (0, 8, len(PLANS))
    ]
    none, chosen, every = (found["summary"][kind]["time_median_ape"] for kind in ("none", "chosen", "all"))
    assert none > 0.2
    assert every < chosen < none / 4
