"""What the runs of a replay add up to: figures by cell and search, their JSON, and the tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from replay_cells import Cell, TableCells
from replay_runs import Contender, Rules, Run
from rich.console import Console
from rich.table import Table

# The borrowed searches, that know nothing of training: what the product's own is held against.
GENERIC = ("deephyper", "optuna")


@dataclass(frozen=True, slots=True)
class Figures:
    """Of some runs. trials: until within the tolerance, and the most allowed where that was not reached. reached: the
    share of runs that got there. failed: trials until then that did not run. ask_seconds: of every ask."""

    reached: float
    trials_median: float
    trials_mean: float
    trials_p90: float
    failed_median: float
    failed_share: float
    ask_seconds_p95: float

    @classmethod
    def of(cls, runs: Sequence[Run], max_trials: int) -> Figures:
        trials = [len(run.shares) if run.reached else max_trials for run in runs]
        return cls(
            reached=float(np.mean([run.reached for run in runs])),
            trials_median=float(np.median(trials)),
            trials_mean=float(np.mean(trials)),
            trials_p90=float(np.percentile(trials, 90)),
            failed_median=float(np.median([run.failed for run in runs])),
            failed_share=sum(run.failed for run in runs) / max(1, sum(len(run.shares) for run in runs)),
            ask_seconds_p95=float(np.percentile([second for run in runs for second in run.ask_seconds], 95)),
        )


IN_CELLS = ("reached", "trials_median", "trials_p90", "failed_median", "ask_seconds_p95")


@dataclass(frozen=True, slots=True)
class Comparison:
    """runs: as `play_all` gives them, `seeds` of each search in each cell."""

    cells: tuple[Cell, ...]
    contenders: tuple[Contender, ...]
    seeds: int
    rules: Rules
    runs: tuple[Run, ...]

    def figures(self, cell: int, search: int) -> Figures:
        """Of one search in one cell, by their positions."""
        first = (cell * len(self.contenders) + search) * self.seeds
        return Figures.of(self.runs[first : first + self.seeds], self.rules.max_trials)

    def pooled(self, search: int) -> list[Run]:
        """All runs of one search, by its position."""
        return [run for at, run in enumerate(self.runs) if at // self.seeds % len(self.contenders) == search]

    def pooled_figures(self, search: int) -> Figures:
        return Figures.of(self.pooled(search), self.rules.max_trials)

    @property
    def generic(self) -> list[int]:
        """The positions of the borrowed searches."""
        return [place for place, contender in enumerate(self.contenders) if contender.kind in GENERIC]


def document(comparison: Comparison) -> dict[str, Any]:
    """What `--json` writes."""
    cells = [
        {
            "table": cell.table,
            **asdict(cell.key),
            "settings": len(cell.outcomes),
            "ok": cell.ok,
            "search": contender.label,
            **{name: getattr(comparison.figures(at, place), name) for name in IN_CELLS},
        }
        for at, cell in enumerate(comparison.cells)
        for place, contender in enumerate(comparison.contenders)
    ]
    return {"cells": cells, "summary": _summary(comparison)}


def _summary(comparison: Comparison) -> dict[str, Any]:
    return {
        contender.label: {
            "cells": len(comparison.cells),
            **asdict(comparison.pooled_figures(place)),
        }
        for place, contender in enumerate(comparison.contenders)
    }


def show_table(table: TableCells, console: Console) -> None:
    """What of a table is replayed, and what is not."""
    settings = sum(len(cell.outcomes) for cell in table.cells)
    merged = sum(cell.merged for cell in table.cells)
    lines = [f"{table.table}: {table.read} rows, {len(table.cells)} cells of {settings} settings"]
    if merged:
        lines.append(f"  merged: {merged} more rows of the same settings")
    lines += [f"  left out, {one.kind}: {one.rows} rows, first {one.first}" for one in table.left]
    if table.small:
        lines.append(f"  left out, too few settings that ran: {table.small} cells")
    for line in lines:
        console.print(line, markup=False, highlight=False)


def show_cells(comparison: Comparison, console: Console) -> None:
    """Trials to the goal of every cell, median and 90th percentile, and the median of those that failed."""
    table = Table(title="trials to the goal: median / 90th percentile (failed)", title_justify="left")
    table.add_column("cell", overflow="fold")
    for heading in ("settings", "ok", *(contender.label for contender in comparison.contenders)):
        table.add_column(heading, justify="right")
    for at, cell in enumerate(comparison.cells):
        texts = [_cell_text(comparison.figures(at, place)) for place in range(len(comparison.contenders))]
        table.add_row(cell.label, str(len(cell.outcomes)), str(cell.ok), *texts)
    console.print(table)


def show_summary(comparison: Comparison, console: Console) -> None:
    """All runs of all cells, by search, beside the better of the borrowed searches."""
    runs = len(comparison.cells) * comparison.seeds
    table = Table(title=f"all {runs} runs of each search, in {len(comparison.cells)} cells", title_justify="left")
    table.add_column("search", overflow="fold")
    headings = ("reached", "median", "mean", "90 %", "failed", "of all", "ask, 95 %", "times fewer", "worst cell")
    for heading in headings:
        table.add_column(heading, justify="right")
    for place, contender in enumerate(comparison.contenders):
        figures = comparison.pooled_figures(place)
        table.add_row(
            contender.label,
            f"{100 * figures.reached:.1f} %",
            f"{figures.trials_median:g}",
            f"{figures.trials_mean:.1f}",
            f"{figures.trials_p90:g}",
            f"{figures.failed_median:g}",
            f"{100 * figures.failed_share:.1f} %",
            f"{figures.ask_seconds_p95:.3f} s",
            *_beside_generic(comparison, place),
        )
    console.print(table)
    if comparison.generic:
        names = ", ".join(comparison.contenders[place].label for place in comparison.generic)
        told = f"times fewer trials at the median than the best of {names}; worst cell: its median over theirs"
        console.print(told, markup=False, highlight=False)


def _beside_generic(comparison: Comparison, place: int) -> tuple[str, str]:
    """How many times fewer trials than the best borrowed search, and how many times more in the worst cell."""
    if not comparison.generic:
        return "-", "-"
    own = comparison.pooled_figures(place).trials_median
    best = min(comparison.pooled_figures(one).trials_median for one in comparison.generic)
    worst = max(
        comparison.figures(at, place).trials_median
        / min(comparison.figures(at, one).trials_median for one in comparison.generic)
        for at in range(len(comparison.cells))
    )
    return f"{best / own:.1f}", f"{worst:.2f}"


def _cell_text(figures: Figures) -> str:
    missed = "" if figures.reached == 1 else f", {100 * figures.reached:.0f} %"
    return f"{figures.trials_median:g} / {figures.trials_p90:g} ({figures.failed_median:g}{missed})"
