"""Leave one source out: predictions and searches judged on tables that had no part in any number they use.

`python benchmarks/generalise.py TABLE.csv [...] [--no-search] [--seeds 5] [--sources NAME,...] [--explain] [--defaults]
[--json OUT]`. A source is one table. For each in turn, the constants, their spread, the scatter around the formulas
(`left_out`) and the weights of the search's hypotheses (`left_out_hypotheses`) come from all other sources, and this
one is predicted and searched. Cells are those of accuracy.py and
replay.py; rows of cells with fewer than 10 timed ones are scored together, by hardware. summary: the median over the
sources of predictions, the mean of how often intervals hold, and all runs together of searches.
benchmarks/accuracy.md explains the columns.

Exit status: 0, or 2 where an argument or a table is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import metrics
import numpy as np
import numpy.typing as npt
from left_out import Fitted, fit_source, moved, observed, over_sources, widened
from left_out_hypotheses import told_by, weigh
from replay_cells import read_cells
from replay_report import GENERIC, Comparison
from replay_runs import Rules, parse_contenders, play_all
from reported import Reported, reported
from rich.console import Console
from rich.table import Table
from scoring import Cell
from tables import TableError, cell_of, read_table

from meshtune.search_spaces.physics.constants import CONSTANTS, DEFAULTS, Calibration
from meshtune.search_spaces.physics.estimate import estimate
from meshtune.search_spaces.physics.fitting import calibrate
from meshtune.tuner.search.physics.weighing import Hypotheses

# As in accuracy.py and replay.py.
LEAST_ROWS, LEAST_RANKED, LEARNT, DRAWS = 10, 8, 5, 3
# Devices of a large cell; rows of one node that teach what more nodes take.
LARGE, ONE_NODE_ROWS = 256, 20
# 90 % of a normal distribution lie within +- this many standard deviations.
WIDTH_90 = 1.645
# Cells of a source that are calibrated, spread evenly over it.
LEARNT_CELLS = 12
PROCESSES = 2
TOLERANCE, MAX_TRIALS = 0.05, 100
CONTENDERS = "physics,deephyper,optuna-tpe"
SEARCHED = ("trials_median", "trials_p90", "failed_share", "times_fewer", "worst_cell")
PREDICTED = (
    "time_uncalibrated",
    "spearman_cell",
    "time_after_5",
    "time_after_5_at_256",
    "time_one_node_to_more",
    "memory_uncalibrated",
    "memory_after_5",
    "interval_90_holds",
)
SHARES = ("failed_share", *PREDICTED)
FEATURES = ("tp", "pp", "dp", "cp", "micro_batch_size", "grad_accum_steps", "zero_stage")

Figures = dict[str, float | None]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """One table's rows that can be predicted, in the cells that they are scored in."""

    name: str
    path: Path
    reports: tuple[Reported, ...]
    cells: tuple[Cell, ...]


def read_source(path: Path) -> Source:
    """Raises TableError, OSError."""
    reports, _ = reported(read_table(path))
    by_setting: dict[object, list[Reported]] = {}
    for one in reports:
        by_setting.setdefault(cell_of(one.row), []).append(one)
    large = [members for members in by_setting.values() if sum(one.timed for one in members) >= LEAST_ROWS]
    by_hardware: dict[str, list[Reported]] = {}
    for members in by_setting.values():
        if members not in large:
            by_hardware.setdefault(members[0].row.hardware, []).extend(members)
    groups = [*large, *(members for members in by_hardware.values() if any(map(_tells, members)))]
    return Source(path.stem, path, reports, tuple(map(Cell, groups)))


def _tells(one: Reported) -> bool:
    return one.timed or one.peak_memory_bytes is not None


def predicted(source: Source, calibration: Calibration, doubted: Calibration) -> Figures:
    """The errors of the physics on a source. Medians over its cells. doubted: with the width of intervals."""
    before = [_before(cell, doubted) for cell in source.cells]
    spread = np.unique(np.linspace(0, len(source.cells) - 1, min(len(source.cells), LEARNT_CELLS)).round().astype(int))
    after = [_after(source.cells[int(at)], calibration) for at in spread]
    scores = [*before, *after, _to_more_nodes(source, calibration)]
    return {name: _pooled(name, [score[name] for score in scores if name in score]) for name in PREDICTED}


def _before(cell: Cell, calibration: Calibration) -> Figures:
    times, peaks, holds = _ratios(cell, calibration)
    timed = np.isfinite(times)
    ranked = np.count_nonzero(timed) >= LEAST_RANKED
    speeds = cell.tokens / cell.step_s
    return {
        "time_uncalibrated": _error(times),
        "spearman_cell": metrics.spearman((speeds * np.exp(times))[timed], speeds[timed]) if ranked else None,
        "memory_uncalibrated": _error(peaks),
        "interval_90_holds": float(np.mean(holds[timed])) if np.any(timed) else None,
    }


def _after(cell: Cell, calibration: Calibration) -> Figures:
    """After so many random rows of the cell: the mean over draws."""
    telling = np.flatnonzero([_tells(one) for one in cell.reports])
    if len(telling) < 2 * LEARNT:
        return {"time_after_5": None, "memory_after_5": None}
    random = np.random.default_rng(0)
    times, peaks = [], []
    for _ in range(DRAWS):
        chosen = random.choice(telling, LEARNT, replace=False)
        rest = np.setdiff1d(np.arange(len(cell.reports)), chosen)
        learnt = calibrate(observed([cell.reports[int(one)] for one in chosen]), calibration)
        time, peak, _ = _ratios(cell, learnt)
        times.append(_error(time[rest]))
        peaks.append(_error(peak[rest]))
    large = _mean(times) if cell.reports[0].row.gpus >= LARGE else None
    return {"time_after_5": _mean(times), "time_after_5_at_256": large, "memory_after_5": _mean(peaks)}


def _to_more_nodes(source: Source, calibration: Calibration) -> Figures:
    """The error on more nodes after rows of one node alone, of all models together."""
    timed = [one for cell in source.cells for one in cell.reports if one.timed]
    alone, more = ([one for one in timed if (one.row.nodes == 1) == few] for few in (True, False))
    if len(alone) < LEARNT or len(more) < LEARNT:
        return {"time_one_node_to_more": None}
    random, cell, errors = np.random.default_rng(0), Cell(more), []
    for _ in range(DRAWS):
        chosen = random.choice(len(alone), min(len(alone), ONE_NODE_ROWS), replace=False)
        learnt = calibrate(observed([alone[int(one)] for one in chosen]), calibration)
        errors.append(_error(_ratios(cell, learnt)[0]))
    return {"time_one_node_to_more": _mean(errors)}


def _ratios(cell: Cell, calibration: Calibration) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Per row log(measured / predicted) of the step and of the peak, NaN where not measured, and whether the measured
    step lies in the predicted 90 % interval."""
    times, peaks = np.full(len(cell.reports), np.nan), np.full(len(cell.reports), np.nan)
    holds = np.zeros(len(cell.reports), dtype=np.bool_)
    for group in cell.groups:
        found = estimate(group.training, group.columns, calibration)
        times[group.index] = np.log(cell.step_s[group.index] / found.time.step_s)
        peaks[group.index] = np.log(cell.peak_bytes[group.index] / found.memory.peak_bytes)
        holds[group.index] = np.abs(times[group.index]) <= WIDTH_90 * found.time.log_sd
    return times, peaks, holds


def _error(logs: Floats) -> float | None:
    """The median of |predicted / measured - 1|."""
    return metrics.median(np.abs(np.exp(-logs[np.isfinite(logs)]) - 1))


def hypotheses_of(sources: Sequence[Source], fitted: Sequence[Fitted], without: str) -> Hypotheses:
    """The search's hypotheses with the weights that all sources but one give them, by constants in which neither that
    one nor the source itself had a part."""
    told = []
    for source in sources:
        if source.name != without:
            apart = over_sources([one for one in fitted if one.source not in (without, source.name)])
            told.append(told_by(source.cells, apart))
    return weigh(told)


def searched(
    sources: Mapping[Source, Calibration], hypotheses: Sequence[Hypotheses], seeds: int
) -> tuple[dict[str, Figures], Figures]:
    """Searches by source, and all of them together; none of a source without a cell that can be replayed."""
    contenders = parse_contenders(CONTENDERS)
    rules = Rules(TOLERANCE, 1, MAX_TRIALS)
    cells = [
        (source.name, replace(cell, calibration=calibration, hypotheses=held))
        for (source, calibration), held in zip(sources.items(), hypotheses, strict=True)
        for cell in read_cells(source.path).cells
    ]
    runs = tuple(play_all([cell for _, cell in cells], contenders, seeds, rules)) if cells else ()
    per = len(contenders) * seeds
    by_source: dict[str, Figures] = {}
    for name in dict.fromkeys(name for name, _ in cells):
        here = [at for at, (other, _) in enumerate(cells) if other == name]
        chosen = tuple(run for at in here for run in runs[at * per : (at + 1) * per])
        by_source[name] = _search_figures(
            Comparison(tuple(cells[at][1] for at in here), contenders, seeds, rules, chosen)
        )
    pooled = Comparison(tuple(cell for _, cell in cells), contenders, seeds, rules, runs)
    return by_source, _search_figures(pooled) if cells else dict.fromkeys(SEARCHED)


def _search_figures(comparison: Comparison) -> Figures:
    own = comparison.pooled_figures(0)
    generic = [place for place in comparison.generic if comparison.contenders[place].kind in GENERIC]
    best = min(comparison.pooled_figures(place).trials_median for place in generic)
    worst = max(
        comparison.figures(at, 0).trials_median / min(comparison.figures(at, place).trials_median for place in generic)
        for at in range(len(comparison.cells))
    )
    return {
        "trials_median": own.trials_median,
        "trials_p90": own.trials_p90,
        "failed_share": own.failed_share,
        "times_fewer": best / own.trials_median,
        "worst_cell": worst,
    }


def explain(source: Source, calibration: Calibration, console: Console) -> None:
    """The misses of a source by term: log(measured / predicted) against the logarithms of the plans' degrees, and the
    rows that are furthest off."""
    logs = np.concatenate([_ratios(cell, calibration)[0] for cell in source.cells])
    reports = [one for cell in source.cells for one in cell.reports]
    timed = np.flatnonzero(np.isfinite(logs))
    if len(timed) < LEAST_ROWS:
        return
    columns = [np.log2([max(1, getattr(reports[at].plan, name)) for at in timed]) for name in FEATURES]
    varied = [(name, column) for name, column in zip(FEATURES, columns, strict=True) if np.ptp(column) > 0]
    design = np.stack([np.ones(len(timed)), *(column for _, column in varied)], axis=1)
    slopes = np.linalg.lstsq(design, logs[timed], rcond=None)[0]
    told = ", ".join(f"{name} {slope:+.2f}" for (name, _), slope in zip(varied, slopes[1:], strict=True))
    median, rest = float(np.median(logs[timed])), logs[timed] - design @ slopes
    console.print(f"{source.name}: median {median:+.2f}; per doubling {told}; left {rest.std():.2f}", highlight=False)
    for at in timed[np.argsort(-np.abs(logs[timed]))[:5]]:
        one = reports[int(at)]
        console.print(f"  {logs[at]:+.2f} {one.row.place}: {one.row.model}, {one.plan.key}", highlight=False)


def show(by_source: Mapping[str, Figures], summary: Figures, console: Console) -> None:
    table = Table(title="each source by what the others say", title_justify="left")
    table.add_column("source", overflow="fold")
    names = [name for name in (*SEARCHED, *PREDICTED) if name in summary]
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for source, figures in by_source.items():
        table.add_row(source, *(_text(name, figures.get(name)) for name in names))
    table.add_section()
    table.add_row("summary", *(_text(name, summary[name]) for name in names))
    console.print(table)


def _text(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if name == "spearman_cell" else f"{100 * value:.1f} %" if name in SHARES else f"{value:.3g}"


def _pooled(name: str, values: Sequence[float | None]) -> float | None:
    """How often intervals hold: the mean over cells or sources. Any other figure: the median."""
    if name == "interval_90_holds":
        return _mean(values)
    return metrics.median(np.array([value for value in values if value is not None], dtype=np.float64))


def _mean(values: Sequence[float | None]) -> float | None:
    return metrics.mean(np.array([value for value in values if value is not None], dtype=np.float64))


def show_defaults(sources: Sequence[Source], fitted: Sequence[Fitted], console: Console) -> None:
    """The constants and hypotheses over all sources, and which sources moved which constant."""
    found = widened(fitted)
    for place, name in enumerate(CONSTANTS):
        value, doubt = getattr(found.constants, name), float(np.sqrt(found.covariance[place, place]))
        default = getattr(DEFAULTS, name)
        console.print(f"{name}: {value:.3g} (sd {doubt:.2f}), default {default:.3g}", highlight=False)
    console.print(f"scatter: time {found.time_log_sd:.3f}, memory {found.memory_log_sd:.3f}", highlight=False)
    held = hypotheses_of(sources, fitted, without="")
    for what, hypotheses in (("speeds", held.speeds), ("memory", held.memory)):
        weights = ", ".join(f"{one.weight:.2f}" for one in hypotheses)
        console.print(f"weights of the hypotheses about {what}: {weights}", highlight=False)
    for one in fitted:
        _show_moved(one, console)


def _show_moved(fitted: Fitted, console: Console) -> None:
    told = ", ".join(f"{name} x{factor:.2f}" for name, factor in moved(fitted).items()) or "none"
    console.print(f"{fitted.source} by itself moves: {told}", markup=False, highlight=False)


def _pool() -> ProcessPoolExecutor:
    # A core for each worker: small matrices gain nothing by threads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn"))


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="generalise.py", description="Every source judged by what the others say.")
    parser.add_argument("tables", metavar="TABLE.csv", type=Path, nargs="+")
    parser.add_argument("--sources", metavar="NAME,...", help="leave out only these tables, by their stems")
    parser.add_argument("--no-search", action="store_true", help="predictions alone")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each search in each cell; default 5")
    parser.add_argument("--explain", action="store_true", help="the misses of each source, term by term")
    parser.add_argument("--defaults", action="store_true", help="print the constants over all sources instead")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write the figures there")
    given = parser.parse_args(arguments)
    if len(given.tables) < 2 and not given.defaults:
        parser.error("leaving one source out needs two tables at least")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = _arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    try:
        sources = [read_source(path) for path in given.tables]
        with _pool() as pool:
            fitted = list(pool.map(fit_source, *zip(*((one.name, one.reports) for one in sources), strict=True)))
        if given.defaults:
            show_defaults(sources, fitted, console)
            return 0
        chosen = given.sources.split(",") if given.sources else [source.name for source in sources]
        others = {
            source: over_sources([one for one in fitted if one.source != source.name])
            for source in sources
            if source.name in chosen
        }
        doubted = [widened([one for one in fitted if one.source != source.name]) for source in others]
        with _pool() as pool:
            figures = list(pool.map(predicted, others.keys(), others.values(), doubted))
        by_source = {source.name: found for source, found in zip(others, figures, strict=True)}
        summary = {name: _pooled(name, [figures[name] for figures in by_source.values()]) for name in PREDICTED}
        for source in others:
            _show_moved(next(one for one in fitted if one.source == source.name), console)
        if given.explain:
            for source, calibration in others.items():
                explain(source, calibration, console)
        if not given.no_search:
            names = [source.name for source in others]
            with _pool() as pool:
                held = list(pool.map(hypotheses_of, repeat(sources), repeat(fitted), names))
            by_search, pooled = searched(others, held, given.seeds)
            by_source = {name: {**by_search.get(name, {}), **figures} for name, figures in by_source.items()}
            summary = {**pooled, **summary}
        show(by_source, summary, console)
        if given.json is not None:
            text = json.dumps({"sources": by_source, "summary": summary}, indent=1, allow_nan=False)
            given.json.write_text(text + "\n", encoding="utf-8")
    except (TableError, OSError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
