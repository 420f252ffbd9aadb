"""By which of its runs should a winner be named? Draws campaigns whose truth is known, and counts what comes of it.

`python benchmarks/second_runs.py [--campaigns 40000] [--seed 1]`. A campaign measures 20 plans once and the best of
them again, all with the same log-normal noise between runs; plan 0 is the baseline. Steps within a run do not scatter.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from meshtune.tuner.results.ranking import T_QUANTILES

PLANS = 20
NOISE = 0.02
COLUMNS = ("winner by", "bias", "speed lost", "interval covers", "gain's covers", "rightly better", "wrongly better")

Column = npt.NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaigns", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    random = np.random.default_rng(given.seed)
    console = Console(width=120)
    for spread in (0.0, 0.02, 0.05):
        for again in (1, 3, 10):
            title = f"plans scatter by {spread:.0%}, runs by {NOISE:.0%}; the best {again} are measured again"
            table = Table(*COLUMNS, title=title, title_justify="left", box=MARKDOWN)
            for row in rows(random, given.campaigns, spread, again):
                table.add_row(*row)
            console.print(table)


def rows(random: np.random.Generator, campaigns: int, spread: float, again: int) -> list[tuple[str, ...]]:
    """What comes of naming the winner by the first runs alone, by the first, the mean of both, or the second."""
    true = random.normal(0, spread, (campaigns, PLANS))
    first = true + random.normal(0, NOISE, (campaigns, PLANS))
    top = np.argsort(-first, axis=1)[:, :again]
    truth, ones = np.take_along_axis(true, top, 1), np.take_along_axis(first, top, 1)
    twos = truth + random.normal(0, NOISE, (campaigns, again))
    sd = np.sqrt(((twos - ones) ** 2).mean(axis=1) / 2)
    width = T_QUANTILES[min(again, len(T_QUANTILES)) - 1] * sd
    ways = (
        ("first runs alone", ones, 0.0 * width, 1),
        ("first runs", ones, width, 1),
        ("means of both", (ones + twos) / 2, width, 2),
        ("second runs", twos, width, 1),
    )
    return [_row(name, values, w, runs, true, truth, first[:, 0], top) for name, values, w, runs in ways]


def _row(
    name: str,
    values: Column,
    width: Column,
    runs: int,
    true: Column,
    truth: Column,
    base: Column,
    top: npt.NDArray[np.intp],
) -> tuple[str, ...]:
    """width: of one run's interval, in logarithms. base: the baseline's one run."""
    each = np.arange(len(values))
    winner = values.argmax(axis=1)
    value, real, other = values[each, winner], truth[each, winner], top[each, winner] != 0
    gain, real_gain, wide = value - base, real - true[:, 0], width * np.sqrt(1 / runs + 1)
    better = (gain > wide) & other
    shares = (
        np.abs(value - real) <= width / np.sqrt(runs),
        (np.abs(gain - real_gain) <= wide)[other],
        better & (real_gain > 0),
        better & (real_gain <= 0),
    )
    bias, lost = 100 * (value - real).mean(), 100 * (true.max(axis=1) - real).mean()
    return (name, f"{bias:+.2f} %", f"{lost:.2f} %", *(f"{100 * share.mean():.1f} %" for share in shares))


if __name__ == "__main__":
    main()
