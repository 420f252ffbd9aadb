"""Draws a replay as SVG text: the best setting so far against trials, a line and a band for each search."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt
from replay_report import Comparison
from replay_runs import Run

Floats = npt.NDArray[np.float64]
WIDTH, HEIGHT = 800, 400
LEFT, RIGHT, TOP, BOTTOM = 58, 560, 44, 352
LABEL_GAP = 18
TICKS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000)
# Readable on white and on black; a picture in a page follows the reader's theme.
LIGHT = ("#0b62c4", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#be185d", "#0e7490", "#57606a")
DARK = ("#6cb6ff", "#ff9a5c", "#57d08b", "#cda2ff", "#e3c04a", "#ff8fc0", "#56d4e8", "#a8b3bf")
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f } .axis, .grid, .goal { fill: none; stroke: #8c959f }
.grid { stroke-opacity: .3 } .goal { stroke-dasharray: 4 4 } .line { fill: none; stroke-width: 2.2 }
.band { fill-opacity: .14; stroke: none } .lead { stroke-opacity: .6; fill: none }
"""


def plot(comparison: Comparison) -> str:
    """The picture. A run ends when it reaches the goal: from there on it counts with the setting that it had then."""
    last = comparison.rules.max_trials
    curves = [_quartiles(comparison.pooled(place), last) for place in range(len(comparison.contenders))]
    runs = len(comparison.cells) * comparison.seeds
    title = f"Best setting so far, as a share of the fastest one ({runs} runs in {len(comparison.cells)} cells)"
    ends = _apart([_height(float(curve[1, -1])) for curve in curves])
    bands = [_band(place, curve) for place, curve in enumerate(curves)]
    labels = [
        f"{contender.label}: {comparison.pooled_figures(place).trials_median:g}"
        for place, contender in enumerate(comparison.contenders)
    ]
    lines = [_line(place, *one) for place, one in enumerate(zip(labels, curves, ends, strict=True))]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            f'role="img" aria-label="{escape(title)}">',
            f"<style>{STYLE}{_colours(LIGHT)}",
            "@media (prefers-color-scheme: dark) { text { fill: #e6edf3 }",
            f"{_colours(DARK)} }}</style>",
            f'<text x="{LEFT}" y="20">{escape(title)}</text>',
            *_axes(last, comparison.rules.tolerance),
            *bands,
            *lines,
            "</svg>\n",
        ]
    )


def _quartiles(runs: Sequence[Run], last: int) -> Floats:
    """The 25th, 50th and 75th percentile (rows) of the best share so far, by trial."""
    best = np.zeros((len(runs), last))
    for row, run in zip(best, runs, strict=True):
        row[: len(run.shares)] = run.shares
    return np.percentile(np.maximum.accumulate(best, axis=1), (25, 50, 75), axis=0)


def _axes(last: int, tolerance: float) -> list[str]:
    parts = []
    for percent in range(0, 101, 20):
        y = _height(percent / 100)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>')
    for trial in (tick for tick in TICKS if tick <= last):
        x = _across(trial, last)
        parts.append(f'<path class="axis" d="M{x:.1f} {BOTTOM}v5"/>')
        parts.append(f'<text x="{x:.1f}" y="{BOTTOM + 20}" text-anchor="middle">{trial}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>')
    parts.append(f'<path class="goal" d="M{LEFT} {_height(1 - tolerance):.1f}H{RIGHT}"/>')
    caption = (
        "trials, failed ones included; lines: medians; bands: 25 to 75 % of runs; names: median trials to within "
        f"{100 * tolerance:g} %"
    )
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 8}">{escape(caption)}</text>')
    return parts


def _band(place: int, curve: Floats) -> str:
    points = [*_corners(curve[2]), *reversed(_corners(curve[0]))]
    return f'<path class="band f{place % len(LIGHT)}" d="M{" ".join(points)}Z"/>'


def _line(place: int, label: str, curve: Floats, end: float) -> str:
    """The median, and the label beside its end."""
    colour = place % len(LIGHT)
    lead = f"M{RIGHT + 2} {_height(float(curve[1, -1])):.1f}L{RIGHT + 16} {end:.1f}"
    return (
        f'<path class="line s{colour}" d="M{" ".join(_corners(curve[1]))}"/><path class="lead s{colour}" d="{lead}"/>'
        f'<text class="f{colour}" x="{RIGHT + 20}" y="{end + 4:.1f}">{escape(label)}</text>'
    )


def _corners(shares: Floats) -> list[str]:
    """The staircase through the shares: what is best changes at once."""
    last = len(shares)
    corners = [(1, float(shares[0]))]
    for trial in range(2, last + 1):
        if shares[trial - 1] != shares[trial - 2]:
            corners += [(trial, float(shares[trial - 2])), (trial, float(shares[trial - 1]))]
    corners.append((last, float(shares[-1])))
    return [f"{_across(trial, last):.1f},{_height(share):.1f}" for trial, share in corners]


def _apart(heights: Sequence[float]) -> list[float]:
    """The heights, moved down where two labels would overlap."""
    moved = list(heights)
    free = float(TOP)
    for place in sorted(range(len(heights)), key=heights.__getitem__):
        moved[place] = max(heights[place], free)
        free = moved[place] + LABEL_GAP
    return moved


def _across(trial: int, last: int) -> float:
    """The first trials are what matters: the axis is logarithmic."""
    return LEFT + (RIGHT - LEFT) * log(trial) / log(max(2, last))


def _height(share: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * share


def _colours(palette: Sequence[str]) -> str:
    return " ".join(f".s{at} {{ stroke: {one} }} .f{at} {{ fill: {one} }}" for at, one in enumerate(palette))
