"""Several searches beside each other, the shares of knobs by SHAP, and published figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from matplotlib.figure import Figure

from meshtune.tuner.campaign.units import Estimate
from meshtune.tuner.results.figures import canvas

STYLES = ("-", "--", ":", "-.")
# A curve of a run: its number at each trial, None before there is one.
Curve = Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A figure of ours as a ratio of the published one. within: what it may be off by. of: predicted or measured."""

    name: str
    of: str
    ratio: Estimate
    within: float


def curves_by_search(title: str, unit: str, searches: Mapping[str, Sequence[Curve]], *, whole: bool = False) -> Figure:
    """The median over the runs of each search, and from the least to the greatest, trial by trial. whole: the scale is
    from 0 to 100."""
    axes = canvas.new_figure(title)
    for place, (name, curves) in enumerate(searches.items()):
        colour, style = canvas.SERIES[place % len(canvas.SERIES)][0], STYLES[place % len(STYLES)]
        longest = max(map(len, curves), default=0)
        points = []
        for at in range(longest):
            values = [value for curve in curves if at < len(curve) and (value := curve[at]) is not None]
            # Before every run has a number the median would be of the luckiest.
            if len(values) == sum(at < len(curve) for curve in curves):
                points.append((at + 1, median(values), min(values), max(values)))
        if points:
            trials, middle, low, high = zip(*points, strict=True)
            axes.plot(trials, middle, color=colour, linestyle=style, linewidth=1.8, label=f"{name}, {len(curves)} runs")
            axes.fill_between(trials, low, high, color=colour, alpha=0.15, linewidth=0)
    if not axes.lines:
        return canvas.say(axes, "no run has a number")
    if whole:
        axes.set_ylim(0, 100)
    canvas.whole_numbers(axes.xaxis)
    canvas.plain_numbers(axes.yaxis)
    return canvas.finish(axes, "trials; lines are medians, bands reach from the least to the greatest run", unit)


def knob_shares(title: str, ways: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """What each knob accounts for, in percent of the speed, by way of counting: a bar for the mean over the runs and a
    dot for each."""
    means = {way: {knob: fmean(values) for knob, values in knobs.items() if values} for way, knobs in ways.items()}
    knobs = list(dict.fromkeys(knob for shares_of in means.values() for knob in shares_of))
    knobs.sort(key=lambda knob: -max(shares_of.get(knob, 0.0) for shares_of in means.values()))
    axes = canvas.new_figure(title, height=max(canvas.HEIGHT, 0.45 * len(knobs) + 1.4))
    if not knobs:
        return canvas.say(axes, "too few plans were measured")
    thick = 0.8 / len(means)
    for place, (way, shares_of) in enumerate(means.items()):
        colour, hatch = canvas.SERIES[place % len(canvas.SERIES)]
        heights = [row - 0.4 + thick * (place + 0.5) for row in range(len(knobs))]
        shares = [100 * shares_of.get(knob, 0.0) for knob in knobs]
        style: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "alpha": 0.75}
        axes.barh(heights, shares, height=0.9 * thick, label=way, **style)
        for height, knob in zip(heights, knobs, strict=True):
            dots = [100 * share for share in ways[way].get(knob, ())]
            axes.plot(dots, [height] * len(dots), "o", color=canvas.BLACK, markersize=2.5)
    return canvas.finish(axes, "mean absolute SHAP value, % of the speed; dots are runs", rows=knobs)


def published_beside_ours(rows: Sequence[Beside]) -> Figure:
    """Ours over the published figure, with its spread and what it may be off by."""
    names = list(dict.fromkeys(row.name for row in rows))
    axes = canvas.new_figure("Ours over what was published", height=max(2.4, 0.4 * len(names) + 1.3))
    if not rows:
        return canvas.say(axes, "nothing was published to compare with")
    allowed = {row.name: row.within for row in rows}
    for at, name in enumerate(names):
        axes.barh(at, 2 * allowed[name], left=1 - allowed[name], height=0.6, color=canvas.LIGHT, alpha=0.6)
    ways = list(dict.fromkeys(row.of for row in rows))
    for place, way in enumerate(ways):
        some = [row for row in rows if row.of == way]
        heights = [names.index(row.name) + 0.12 * (2 * place - len(ways) + 1) for row in some]
        shape, colour = (("o", canvas.BLUE), ("s", canvas.ORANGE))[place % 2]
        style: dict[str, Any] = {"fmt": shape, "color": colour, "ecolor": canvas.GREY, "capsize": 2, "markersize": 5}
        canvas.whiskers(axes, heights, [row.ratio for row in some], lying=True, label=way, **style)
    axes.axvline(1, color=canvas.BLACK, linewidth=0.8)
    return canvas.finish(axes, "ours / published; grey is what the row allows", rows=names)
