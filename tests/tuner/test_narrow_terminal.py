"""Tables on a terminal of 80 columns: rows take two lines at most, plans stay whole, and what is left out is named."""

from __future__ import annotations

from itertools import takewhile

import pytest
import yaml
from command_lab import run_meshtune, said, shown
from rich.box import SQUARE
from rich.table import Table

from meshtune.tuner.cli import common
from meshtune.tuner.cli.render.terminal import Listing, Terminal, new_table

SIMULATED = {
    "name": "long-plans",
    "model": "gpt-1t",
    "cluster": {"preset": "frontier", "nodes": 384},
    "global_batch_size": 9600,
    "space": {
        "tp": [4, 8],
        "pp": [16, 32, 64],
        "vpp": [1, 2, 4],
        "micro_batch_size": [1, 2],
        "zero_stage": [1],
        "recompute": ["none", "selective", "full"],
        "schedule": ["1f1b", "interleaved"],
    },
    "workload": {"kind": "simulated"},
    "runner": {"kind": "simulated", "seed": 7, "noise": 0.02, "fault_rate": 0.1},
    "baseline": {"tp": 8, "pp": 64, "micro_batch_size": 1, "zero_stage": 1, "recompute": "full"},
    "objective": "tflops_per_device",
    "pareto": True,
    "budget": {"trials": 12},
    "trial": {"time_limit_s": 21600},
    "seed": 1,
}
PLAN = "tp8 pp64 dp6 mbs1 ga1600 zero1 recompute-full"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("narrow")
    (folder / "spec.yaml").write_text(yaml.safe_dump(SIMULATED))
    assert run_meshtune(folder, "run", "spec.yaml").code == 0
    assert run_meshtune(folder, "token", "create", "ci", "--scope", "read:all").code == 0
    return folder


@pytest.fixture
def narrow(monkeypatch):
    """The tables that commands print, each with the lines of its rows."""
    printed = []
    original = Listing.__rich_console__

    def watched(self, console, options):
        for part in original(self, console, options):
            if isinstance(part, Table):
                printed.append((self, part))
            yield part

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(Listing, "__rich_console__", watched)
    monkeypatch.setattr(common.console, "_width", 80)
    return printed


def lines_of_rows(table: Table) -> list[int]:
    """How many lines each row takes at 80 columns."""
    table.title = table.caption = None
    table.box, table.show_lines, table.pad_edge = SQUARE, True, False
    lines = shown(table, width=80).splitlines()
    body = iter(lines[next(at for at, line in enumerate(lines) if line.startswith("├")) + 1 :])
    heights = []
    while part := [*takewhile(lambda line: not line.startswith(("├", "└")), body)]:
        heights.append(len(part))
    return heights


COMMANDS = (
    *("show", "show last", "show last --trial 0", "show last --trial 5", "best last", "analyze last", "token list"),
    *("estimate spec.yaml", "project spec.yaml", "spaces spec.yaml", "spaces knobs.yaml --knobs", "knobs", "examples"),
    *("sites", "study list", "doctor --skip-self-test", "run spec.yaml"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_row_takes_two_lines_at_most(folder, narrow, command):
    if "knobs.yaml" in command and not (folder / "knobs.yaml").exists():
        said(folder, "examples", "knobs")
        (folder / "examples" / "knobs.yaml").rename(folder / "knobs.yaml")
    done = run_meshtune(folder, *command.split(" "))
    assert "Traceback" not in done.err
    assert done.code in ((0, 1) if "doctor" in command else (0,))
    assert narrow or command == "knobs"
    for listing, table in narrow:
        headers = [str(column.header) for column in table.columns]
        kept = [str(column.header) for column in listing.columns if str(column.header) not in listing.spare]
        assert [name for name in headers if name in kept] == kept
    assert max((height for _, table in narrow for height in lines_of_rows(table)), default=0) <= 2


def test_columns_go_by_importance_and_are_named(folder, narrow):
    printed = said(folder, "best", "last")
    assert all(len(line) <= 80 for line in printed.split("left out here")[0].splitlines())
    assert "left out here: 90 % interval" in printed
    wide = int(printed.split("COLUMNS=")[1].split()[0])
    common.console._width = wide
    whole = said(folder, "best", "last")
    assert "left out here" not in whole
    assert "memory/rank" in whole
    common.console._width = wide - 1
    assert "left out here: memory/rank; COLUMNS" in said(folder, "best", "last")


def test_no_word_of_a_plan_is_cut():
    table = new_table("", "trial", "plan", "reason", right=["tokens/s"], spare=["tokens/s", "reason"])
    table.add_row("0", PLAN, "because " * 40, "1,000,000")
    printed = shown(table, width=50)
    # The reason is more important, but too long at any such width; what is less important takes its place.
    assert "left out here: reason; COLUMNS=" in printed
    assert "1,000,000" in printed
    words = printed.split("left out")[0].split()
    assert [word for word in words if word in PLAN.split()] == PLAN.split()
    assert "left out here: reason, tokens/s" in shown(table, width=40)
    # The lasting columns stay even where their rows take more lines.
    assert [word for word in shown(table, width=25).split() if word in PLAN.split()] == PLAN.split()


def test_a_pipe_is_as_wide_as_columns_says(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert common._console(stderr=False).width == common.PIPE_WIDTH
    monkeypatch.setenv("COLUMNS", "97")
    assert common._console(stderr=False).width == 97
    assert isinstance(common._console(stderr=True), Terminal)
