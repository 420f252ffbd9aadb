"""The error of the physics on measured runs: step time, its order, memory, and what fits; benchmarks/accuracy.md.

`python benchmarks/accuracy.py TABLE.csv [...] [--calibrate K] [--cluster PRESET|FILE] [--family NAME] [--cell hardware]
[--draws 20] [--seed 0] [--json OUT] [--anchor one-node]`. A cell is one (model, gpus, seq_len, global_batch); with
`--cell hardware` all rows of one hardware are, for tables whose batch varies. With `--calibrate K` every cell is
scored twice: as it is, and after K random timed rows of it were measured, which are then not scored (the mean over
the draws). Errors are fractions. `--anchor one-node` predicts more nodes from one node's rows, see `anchor`.

Exit status: 0, or 2 where an argument or a table is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import anchor
import metrics
from reported import FAMILIES, Leaving, NamedCluster, Reported, named_cluster, reported
from rich.console import Console
from rich.table import Table
from scoring import SCORES, Cell, Score, combine
from tables import CellKey, TableError, cell_of, read_table

# Fewer timed rows say little about a cell; after a calibration so many at least are left to score.
LEAST_ROWS = 10
LEAST_SCORED = 5
# A calibration takes about half a second, and a table some hundred of them.
PROCESSES = 2
HEADINGS = {
    "time_mape": "time MAPE",
    "time_median_ape": "median",
    "spearman": "Spearman",
    "memory_median_ape": "memory",
    "fit_auc": "AUC of fits",
}
CELL = tuple(field.name for field in fields(CellKey))
FRACTIONS = ("time_mape", "time_median_ape", "memory_median_ape")


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell's score. rows: all that could be estimated, of every status. calibrate: how many were learnt from."""

    table: str
    key: CellKey | str
    rows: int
    calibrate: int
    score: Score

    def as_dict(self) -> dict[str, Any]:
        """As in the JSON file. A cell of one hardware has the hardware for its model, and null for the rest."""
        key = self.key
        cell = dict.fromkeys(CELL) | {"model": key} if isinstance(key, str) else asdict(key)
        return {"table": self.table, **cell, "rows": self.rows, "calibrate": self.calibrate, **asdict(self.score)}

    @property
    def label(self) -> str:
        if isinstance(self.key, str):
            return self.key
        return f"{self.key.model}, {self.key.devices} devices, seq {self.key.seq_len}, batch {self.key.global_batch}"


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table's scores. small: cells left out for having too few timed rows."""

    table: str
    read: int
    entries: tuple[Entry, ...]
    left: tuple[Leaving, ...]
    small: int


@dataclass(frozen=True, slots=True)
class Options:
    calibrate: int
    cluster: NamedCluster
    family: str | None
    by_hardware: bool
    draws: int
    seed: int


def assess(path: Path, options: Options) -> TableReport:
    """The scores of every cell of one table. Raises TableError, OSError."""
    rows = read_table(path)
    reports, left = reported(rows, options.cluster, options.family)
    cells: dict[CellKey | str, list[Reported]] = {}
    for one in reports:
        cells.setdefault(one.row.hardware if options.by_hardware else cell_of(one.row), []).append(one)
    least = max(LEAST_ROWS, options.calibrate + LEAST_SCORED)
    large = {key: members for key, members in cells.items() if sum(one.timed for one in members) >= least}
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        scores = list((pool.map if options.calibrate else map)(partial(_scores, options=options), large.values()))
    entries = [
        Entry(path.stem, key, len(large[key]), calibrate, score)
        for key, by_calibrate in zip(large, scores, strict=True)
        for calibrate, score in by_calibrate.items()
    ]
    return TableReport(path.stem, len(rows), tuple(entries), left, len(cells) - len(large))


def _scores(members: Sequence[Reported], options: Options) -> dict[int, Score]:
    """One cell's scores by how many rows were learnt from."""
    cell = Cell(members)
    scores = {0: cell.uncalibrated()}
    if options.calibrate:
        scores[options.calibrate] = cell.calibrated(options.calibrate, options.draws, options.seed)
    return scores


def summary(entries: Sequence[Entry], calibrate: int) -> dict[str, Any]:
    """The keys of a cell, each metric its median over the cells of this `calibrate`; null for what names a cell."""
    chosen = [entry for entry in entries if entry.calibrate == calibrate]
    tables = {entry.table for entry in chosen}
    return {
        "table": tables.pop() if len(tables) == 1 else None,
        **dict.fromkeys(CELL),
        "rows": median(entry.rows for entry in chosen) if chosen else None,
        "calibrate": calibrate,
        **_medians(chosen),
    }


def document(reports: Sequence[TableReport], calibrate: int) -> dict[str, Any]:
    """What `--json` writes. summary: of the K asked for, with that of no calibration inside it where K is not 0."""
    entries = [entry for report in reports for entry in report.entries]
    overall = summary(entries, calibrate)
    if calibrate:
        overall["uncalibrated"] = summary(entries, 0)
    return {"cells": [entry.as_dict() for entry in entries], "summary": overall}


def show(report: TableReport, console: Console) -> None:
    """The table for people: every cell, then the median of each metric."""
    table = Table(title=f"{report.table}: {report.read} rows", title_justify="left")
    table.add_column("cell", overflow="fold")
    for heading in ("rows", "learnt", *(HEADINGS[name] for name in SCORES)):
        table.add_column(heading, justify="right")
    for entry in report.entries:
        table.add_row(entry.label, str(entry.rows), str(entry.calibrate), *_texts(asdict(entry.score)))
    table.add_section()
    for calibrate in sorted({entry.calibrate for entry in report.entries}):
        chosen = [entry for entry in report.entries if entry.calibrate == calibrate]
        table.add_row(f"median of {len(chosen)} cells", "", str(calibrate), *_texts(_medians(chosen)))
    console.print(table)
    for reason in report.left:
        console.print(
            f"left out, {reason.kind}: {reason.rows} rows, first {reason.first}", markup=False, highlight=False
        )
    if report.small:
        console.print(f"left out, too few timed rows: {report.small} cells", highlight=False)


def _medians(entries: Sequence[Entry]) -> dict[str, float | None]:
    return {name: combine([entry.score for entry in entries], name, metrics.median) for name in SCORES}


def _texts(values: dict[str, float | None]) -> list[str]:
    return ["-" if (value := values[name]) is None else _text(name, value) for name in SCORES]


def _text(name: str, value: float) -> str:
    return f"{100 * value:.1f} %" if name in FRACTIONS else f"{value:.3f}"


def _at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, not {text!r}")
    return int(text)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="accuracy.py", description="How well the physics predicts measured runs.")
    parser.add_argument("tables", metavar="TABLE.csv", type=Path, nargs="+")
    parser.add_argument("--calibrate", metavar="K", type=_at_least_one, help="score again after K measured rows")
    parser.add_argument("--cluster", metavar="PRESET|FILE", help="of all rows; default: by their hardware")
    parser.add_argument("--family", choices=FAMILIES, help="training code of all rows; default: by names and shapes")
    parser.add_argument("--cell", choices=("setting", "hardware"), default="setting", help="what is scored together")
    parser.add_argument("--draws", type=_at_least_one, default=20, help="random choices of K rows; default 20")
    parser.add_argument("--seed", type=int, default=0, help="of the draws; default 0")
    parser.add_argument("--anchor", choices=("one-node",), help="predict more nodes from one node's rows")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write the scores there")
    return parser.parse_args(arguments)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    given = _arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        cluster, by_hardware = named_cluster(given.cluster), given.cell == "hardware"
        options = Options(given.calibrate or 0, cluster, given.family, by_hardware, given.draws, given.seed)
        if given.anchor:
            found, left = anchor.anchored(given.tables, cluster, given.family, given.calibrate or anchor.ANCHORS)
            anchor.show(found, left, console)
            if given.json is not None:
                _write(given.json, anchor.document(found))
            return 0
        reports = []
        for path in given.tables:
            reports.append(assess(path, options))
            show(reports[-1], console)
        if given.json is not None:
            _write(given.json, document(reports, options.calibrate))
    except (TableError, OSError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
