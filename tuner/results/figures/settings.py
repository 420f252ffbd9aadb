"""What settings are worth: time by part, predictions against measurements, effects of knobs, two axes, and scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from meshtune.runners.outcome import FAILED
from meshtune.search_spaces.changes import knob_words, value_in, value_word, words_of
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.trial import Origin, Trial, time_by_part
from meshtune.tuner.campaign.units import Estimate, measured_word, number
from meshtune.tuner.results.analysis.forecast_check import ForecastCheck
from meshtune.tuner.results.analysis.knob_effects import Effect, Evidence
from meshtune.tuner.results.figures import canvas
from meshtune.tuner.results.ranking import Ranked, rank

MAX_EFFECTS, MAX_SETTINGS, MAX_CELLS = 20, 8, 400
# As plots of published scaling have it: a scale with ticks at the sizes themselves.
_SCALE = 2


def step_parts(settings: Sequence[tuple[str, Ranked]]) -> Figure:
    """Where the time of a profiled step went, means over the ranks. settings: by what they are called, such as
    "baseline"; those without a profile are left out."""
    profiled = [
        (f"{name}: trial {entry.trial.number}", parts)
        for name, entry in settings[:MAX_SETTINGS]
        if (parts := time_by_part(entry.measurement.profile))
    ]
    axes = canvas.new_figure("Time of a profiled step by part", height=max(2.2, 0.4 * len(profiled) + 1.5))
    if not profiled:
        return canvas.say(axes, "no step was profiled")
    names = list(dict.fromkeys(part.part for _, parts in profiled for part in parts))
    begin = [0.0] * len(profiled)
    for place, part in enumerate(names):
        colour, hatch = canvas.SERIES[place % len(canvas.SERIES)]
        times = [next((one.time_s for one in parts if one.part == part), 0.0) for _, parts in profiled]
        if not any(times):
            continue
        style: dict[str, Any] = {"hatch": hatch, "edgecolor": "white", "linewidth": 0.5, "height": 0.7}
        style["color"] = canvas.PARTS.get(part, colour)
        axes.barh(range(len(profiled)), times, left=begin, label=knob_words(part).replace("_", " "), **style)
        begin = [start + time for start, time in zip(begin, times, strict=True)]
    return canvas.finish(axes, "seconds of a step", columns=5, rows=[name for name, _ in profiled])


def predicted_against_measured(campaign: Campaign, check: ForecastCheck) -> Figure:
    """Step times as the search expected them when it chose the plans, with their 95 % intervals, against what came."""
    made = measured_word(campaign.simulated)
    axes = canvas.new_figure(f"Predicted against {made} step time")
    if not check.forecasts:
        return canvas.say(axes, f"the search expected nothing of any {made} plan")
    for within, shape, colour, name in ((True, "o", canvas.BLUE, "inside"), (False, "s", canvas.ORANGE, "outside")):
        some = [one for one in check.forecasts if one.within is within]
        if some:
            measured, expected = [one.measured_s for one in some], [one.expected_s for one in some]
            style: dict[str, Any] = {"fmt": shape, "color": colour, "elinewidth": 0.7, "markersize": 5}
            words = f"{name} the 95 % interval ({len(some)})"
            canvas.whiskers(axes, measured, expected, lying=False, label=words, **style)
    every = [one.measured_s for one in check.forecasts] + [one.expected_s.value for one in check.forecasts]
    ends = [min(every) * 0.95, max(every) * 1.05]
    axes.plot(ends, ends, color=canvas.GREY, linewidth=1, linestyle="--", label="equal")
    axes.set_xscale("log", base=10)
    axes.set_yscale("log", base=10)
    canvas.plain_numbers(axes.xaxis, axes.yaxis)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(axis.get_major_formatter())
        axis.set_tick_params(which="both", labelsize=7)
    return canvas.finish(axes, f"{made}, seconds of a step", "predicted, seconds of a step", columns=3)


def knob_effects(effects: Sequence[Effect]) -> Figure:
    """What a change of one knob is worth, all else equal, the largest first."""
    shown = effects[:MAX_EFFECTS]
    axes = canvas.new_figure("What a change of a knob is worth", height=max(2.2, 0.24 * len(shown) + 1.4))
    if not shown:
        return canvas.say(axes, "no two plans with a speed differ in one knob alone, and nothing can be predicted")
    for evidence in Evidence:
        colour, hatch = (canvas.ORANGE, "///") if evidence is Evidence.PREDICTED else (canvas.BLUE, "")
        rows = [row for row, one in enumerate(shown) if one.evidence is evidence]
        if rows:
            gains = [shown[row].gain.times(100) for row in rows]
            style: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "height": 0.7}
            axes.barh(rows, [one.value for one in gains], label=str(evidence), **style)
            canvas.whiskers(axes, rows, gains, lying=True, fmt="none", ecolor=canvas.BLACK, capsize=2)
    canvas.name_ticks(axes.yaxis, [words_of(one.moves) for one in shown], fontsize=8)
    axes.set_ylim(max(len(shown), 3) - 0.4, -0.6)
    axes.axvline(0, color=canvas.BLACK, linewidth=0.8)
    more = f" ({len(effects) - len(shown)} smaller ones are not shown)" if len(effects) > len(shown) else ""
    canvas.plain_numbers(axes.xaxis)
    return canvas.finish(axes, f"faster by, %{more}")


def heat_map(campaign: Campaign, trials: Sequence[Trial], across: str, up: str) -> Figure:
    """The best setting of every pair of values of two axes or knobs; a cross where all that was tried failed."""
    yardstick = yardstick_of(campaign.spec)
    reached = {entry.trial.number: entry.objective.value for entry in rank(campaign, trials)}
    title = f"Best of each {knob_words(across)} and {knob_words(up)}, {yardstick.unit}"
    axes = canvas.new_figure(title, height=1.2 * canvas.HEIGHT)
    axes.grid(False)
    cells: dict[tuple[str, str], list[Trial]] = {}
    values: list[dict[str, object]] = [{}, {}]
    for trial in trials:
        if trial.verdict is None or trial.origin is Origin.CONFIRMATION:
            continue
        pair = [value_in(trial.plan, name) for name in (across, up)]
        names = [value_word(value) for value in pair]
        for known, name, value in zip(values, names, pair, strict=True):
            known[name] = value
        cells.setdefault((names[0], names[1]), []).append(trial)
    columns, rows = (_ordered(known) for known in values)
    if not cells or len(columns) * len(rows) > MAX_CELLS:
        return canvas.say(axes, "no trial has ended" if not cells else "there are too many pairs of values to show")
    grid = np.full((len(rows), len(columns)), np.nan)
    for (column, row), tried in cells.items():
        place = rows.index(row), columns.index(column)
        if speeds := [reached[one.number] for one in tried if one.number in reached]:
            grid[place] = yardstick.best(speeds)
        elif any(one.verdict in FAILED for one in tried):
            axes.plot(place[1], place[0], marker="x", color=canvas.GREY, markersize=8)
    better_is_dark = "cividis" if yardstick.objective.smaller_is_better else "cividis_r"
    # Paths, not an image: it stays sharp in print.
    edges = [np.arange(size + 1) - 0.5 for size in (len(columns), len(rows))]
    mesh = axes.pcolormesh(*edges, np.ma.masked_invalid(grid), cmap=better_is_dark, edgecolors="white")
    for (row_at, column_at), value in np.ndenumerate(grid):
        if isfinite(value):
            colour = "white" if float(sum(mesh.cmap(mesh.norm(value))[:3])) < 1.5 else canvas.BLACK
            axes.text(column_at, row_at, number(value), ha="center", va="center", fontsize=7, color=colour)
    canvas.name_ticks(axes.xaxis, columns, fontsize=8)
    canvas.name_ticks(axes.yaxis, rows, fontsize=8)
    return canvas.finish(axes, knob_words(across), knob_words(up))


def scaling(
    series: Mapping[str, Sequence[tuple[int, Estimate]]],
    title: str = "Scaling: speed of one device against the smallest size",
) -> Figure:
    """Efficiency by the number of devices, a share of the smallest size's speed per device. series: by their names."""
    axes = canvas.new_figure(title)
    sizes = sorted({devices for points in series.values() for devices, _ in points})
    if len(sizes) < 2:
        return canvas.say(axes, "fewer than two sizes have a speed")
    marks = (("o", canvas.BLUE, "-"), ("s", canvas.ORANGE, "--"), ("^", canvas.GREEN, ":"), ("D", canvas.BLACK, "-."))
    for (name, points), (shape, colour, line) in zip(series.items(), marks, strict=False):
        shares = [one.times(100) for _, one in points]
        style: dict[str, Any] = {"marker": shape, "color": colour, "linestyle": line, "capsize": 3, "markersize": 5}
        if points:
            canvas.whiskers(axes, [at for at, _ in points], shares, lying=False, label=name, **style)
    axes.axhline(100, color=canvas.LIGHT, linewidth=1)
    axes.set_ylim(bottom=0)
    axes.set_xscale("log", base=_SCALE)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_xticks([], minor=True)
    return canvas.finish(axes, "devices", "efficiency, %")


def _ordered(known: Mapping[str, object]) -> list[str]:
    """Numbers by size, before words."""
    numbers = {name: value for name, value in known.items() if isinstance(value, (int, float))}
    return [*sorted(numbers, key=numbers.__getitem__), *sorted(known.keys() - numbers)]
