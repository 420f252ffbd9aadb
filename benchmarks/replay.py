"""Trials until a search is near the best measured setting: tables of real runs replayed (benchmarks/replay.md).

`python benchmarks/replay.py TABLE.csv [...] [--search physics,deephyper,optuna-tpe,random] [--seeds 20]
[--tolerance 0.05] [--batch 1] [--max-trials 100] [--warm-start TABLE.csv] [--cluster PRESET] [--json OUT]
[--plot OUT.svg]`, or `python benchmarks/replay.py --latency [--search NAME]`: how long one proposal takes.

Exit status: 0, or 2 where an argument, a table or a search is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from replay_cells import LEAST_OK, Cell, read_cells, read_past, smaller
from replay_latency import show_latency
from replay_plot import plot
from replay_report import Comparison, document, show_cells, show_summary, show_table
from replay_runs import Contender, Rules, parse_contenders, play_all
from reported import FAMILIES, named_cluster
from rich.console import Console
from rich.progress import track
from tables import TableError

from meshtune.tuner.search.base import PastCampaign, SearchError

SEARCHES = "physics,deephyper,optuna-tpe,random"


def read_all(given: argparse.Namespace, console: Console) -> list[Cell]:
    """The cells of all tables, each with its past. Raises TableError, OSError."""
    past: tuple[PastCampaign, ...] = ()
    cluster = named_cluster(given.cluster)
    if given.warm_start is not None:
        past = read_past(given.warm_start, cluster, given.family)
        console.print(f"warm start: {sum(len(one.seen) for one in past)} settings of {len(past)} trainings")
    cells: list[Cell] = []
    for path in given.tables:
        table = read_cells(path, cluster, given.family)
        show_table(table, console)
        cells += [replace(cell, past=smaller(past, cell)) for cell in table.cells]
    if not cells:
        raise TableError(f"no cell to replay: none has {LEAST_OK} settings that ran")
    return cells


def compare(cells: Sequence[Cell], contenders: Sequence[Contender], given: argparse.Namespace) -> Comparison:
    """Plays every run, with a progress bar where a person looks on. Raises SearchError."""
    rules = Rules(given.tolerance, given.batch, given.max_trials)
    bar = Console(stderr=True)
    runs = track(
        play_all(cells, contenders, given.seeds, rules),
        "replaying",
        total=len(cells) * len(contenders) * given.seeds,
        console=bar,
        transient=True,
        disable=not bar.is_terminal,
    )
    return Comparison(tuple(cells), tuple(contenders), given.seeds, rules, tuple(runs))


def report(comparison: Comparison, given: argparse.Namespace, console: Console) -> None:
    """Prints the tables, and writes the files that were asked for. Raises OSError."""
    show_cells(comparison, console)
    show_summary(comparison, console)
    if given.json is not None:
        text = json.dumps(document(comparison), indent=1, allow_nan=False)
        given.json.write_text(text + "\n", encoding="utf-8")
    if given.plot is not None:
        given.plot.write_text(plot(comparison), encoding="utf-8")


def _at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, not {text!r}")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be a number, at least 0 and below 1, not {text!r}")
    return value


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="replay.py", description="Trials until a search is near the best setting.")
    parser.add_argument("tables", metavar="TABLE.csv", type=Path, nargs="*")
    parser.add_argument("--search", metavar="NAME,...", default=SEARCHES, help=f"NAME:option=value; default {SEARCHES}")
    parser.add_argument("--seeds", type=_at_least_one, default=20, help="runs of each search in each cell; default 20")
    parser.add_argument("--tolerance", type=_share, default=0.05, help="share of the best to be missed; default 0.05")
    parser.add_argument("--batch", type=_at_least_one, default=1, help="settings asked for at a time; default 1")
    parser.add_argument("--max-trials", type=_at_least_one, default=100, help="of one run; default 100")
    parser.add_argument("--warm-start", metavar="TABLE.csv", type=Path, help="what smaller clusters measured")
    parser.add_argument("--cluster", metavar="PRESET|FILE", help="of all rows; default: by their hardware")
    parser.add_argument("--family", choices=FAMILIES, help="training code of all rows; default: by names and shapes")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write the figures there")
    parser.add_argument("--plot", metavar="OUT.svg", type=Path, help="draw the best so far against trials")
    parser.add_argument("--latency", action="store_true", help="time the proposals of the first search instead")
    given = parser.parse_args(arguments)
    if bool(given.tables) == given.latency:
        parser.error("name the tables to replay, or --latency and no table")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = _arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        contenders = parse_contenders(given.search)
        if given.latency:
            show_latency(contenders[0], console)
        else:
            report(compare(read_all(given, console), contenders, given), given, console)
    except (TableError, SearchError, OSError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
