from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from replay import main, read_all
from rich.console import Console

MakeTable = Callable[..., Path]
Settings = list[dict[str, object]]


def test_tables_are_replayed_into_figures_and_a_picture(
    make_table: MakeTable, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings[5] |= {"status": "oom", "step_time_s": None}
    tables = [make_table(*settings, settings[0], {"layers": None}, name=name) for name in ("one", "two")]
    out, picture = tmp_path / "out.json", tmp_path / "out.svg"
    arguments = [*map(str, tables), "--search", "random,grid", "--seeds", "3", "--max-trials", "15"]

    assert main([*arguments, "--json", str(out), "--plot", str(picture)]) == 0

    found = json.loads(out.read_text(encoding="utf-8"))
    assert [(cell["table"], cell["search"]) for cell in found["cells"]] == [
        (table, search) for table in ("one", "two") for search in ("random", "grid")
    ]
    assert [(cell["settings"], cell["ok"]) for cell in found["cells"]] == [(20, 19)] * 4
    assert found["summary"]["grid"]["cells"] == 2
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    printed = capsys.readouterr().out
    assert "one: 22 rows, 1 cells of 20 settings" in printed
    assert "merged: 1 more rows of the same settings" in printed
    assert "left out, not stated: 1 rows, first one.csv, line 23: layers of gpt-small" in printed
    assert "all 6 runs of each search, in 2 cells" in printed


def test_a_warm_start_gives_each_cell_the_past_of_smaller_clusters(
    make_table: MakeTable, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    half: dict[str, object] = {"gpus": 4, "gpus_per_node": 4, "tp": 1, "pp": 2, "dp": 2}
    table = make_table(*settings, half, half | {"micro_batch": 1, "grad_accum": 8})
    given = Namespace(tables=[table], warm_start=table, cluster=None, family=None)

    (cell,) = read_all(given, Console(width=140))

    assert [(one.training.cluster.devices, len(one.seen)) for one in cell.past] == [(4, 2)]
    printed = capsys.readouterr().out
    assert "warm start: 22 settings of 2 trainings" in printed
    assert "left out, too few settings that ran: 1 cells" in printed
    assert main([str(table), "--search", "grid", "--seeds", "1", "--warm-start", str(table)]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--search", "random"],
        ["table.csv", "--latency"],
        ["table.csv", "--seeds", "0"],
        ["table.csv", "--tolerance", "1"],
        ["table.csv", "--tolerance", "a twentieth"],
    ],
)
def test_a_wrong_argument_ends_with_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
