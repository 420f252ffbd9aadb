"""How a campaign went: the best so far, failures over time, which knobs cause out-of-memory, second runs, and trials by
node."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from matplotlib.figure import Figure

from meshtune.runners.outcome import FAILED, Verdict
from meshtune.search_spaces.changes import knob_words, value_word
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.trial import Origin, Trial, first_runs
from meshtune.tuner.results.analysis.analysis import Failures
from meshtune.tuner.results.analysis.memory_failures import KnobMemory
from meshtune.tuner.results.figures import canvas
from meshtune.tuner.results.ranking import Ranked

# Lanes and knobs that fit a printed page and can still be read.
MAX_LANES, MAX_KNOBS = 40, 6
# Of the whole time, the least that a trial is drawn with.
MIN_SPAN = 0.004


def best_so_far(campaign: Campaign, trials: Sequence[Trial]) -> Figure:
    """Every trial's objective by its own run, the best first run so far, and what failed, below, by how."""
    yardstick = yardstick_of(campaign.spec)
    axes = canvas.new_figure(f"Best so far: {campaign.spec.model.worded(yardstick.objective.words)}")
    if not trials:
        return canvas.say(axes, "no trial was planned")
    groups: dict[canvas.Marker, list[Trial]] = {}
    for trial in trials:
        if (mark := canvas.mark_of(trial)) is not None:
            groups.setdefault(mark, []).append(trial)
    for mark in sorted(groups, key=[*canvas.MARKS.values(), canvas.BASELINE, canvas.AGAIN].index):
        shown = {trial.number: yardstick.of(run) for trial in groups[mark] if (run := trial.measurement) is not None}
        if shown:
            axes.plot([*shown], [*shown.values()], label=mark.named(campaign.simulated), **mark.style)
    if firsts := [trial for trial in first_runs(trials) if trial.measurement is not None]:
        firsts.sort(key=lambda trial: trial.number)
        places = [*(trial.number for trial in firsts), max(trial.number for trial in trials)]
        line: Any = yardstick.best_so_far(trial.measurement for trial in firsts)
        style: dict[str, Any] = {"color": canvas.BLACK, "linewidth": 1.2, "label": "best first run so far"}
        axes.step(places, [*line, line[-1]], where="post", **style)
    # In lanes below all numbers: what has no speed has no height.
    failed = {mark: [trial.number for trial in some if trial.measurement is None] for mark, some in groups.items()}
    lanes = [mark for mark in canvas.MARKS.values() if failed.get(mark)]
    for lane, mark in enumerate(lanes):
        heights, words = [-0.04 - 0.07 * lane] * len(failed[mark]), f"{mark.word} ({len(failed[mark])})"
        lifted = axes.get_xaxis_transform()
        axes.plot(failed[mark], heights, label=words, transform=lifted, clip_on=False, **mark.style)
    axes.tick_params(axis="x", pad=4 + 12 * len(lanes))
    canvas.whole_numbers(axes.xaxis)
    canvas.plain_numbers(axes.yaxis)
    return canvas.finish(axes, "trial, in the order of planning", yardstick.unit)


def failures_over_time(failures: Failures) -> Figure:
    """The share of trials that failed, in windows of ten by cause, and of all so far."""
    axes = canvas.new_figure("Failures over time: share of trials without a speed")
    if failures.all is None or not failures.all.failed:
        return canvas.say(axes, "no trial failed")
    bottoms = [0.0] * len(failures.windows)
    for verdict, hatch in zip(FAILED, ("///", "\\\\\\", "|||", "xx", "++"), strict=True):
        heights = [100 * window.verdicts.get(verdict, 0) / window.trials for window in failures.windows]
        if any(heights):
            axes.bar(
                [(window.first + window.last) / 2 for window in failures.windows],
                heights,
                bottom=bottoms,
                width=[0.9 * (window.last - window.first + 1) for window in failures.windows],
                color=canvas.MARKS[verdict].colour,
                edgecolor="white",
                hatch=hatch,
                label=f"{canvas.MARKS[verdict].word}, of ten trials",
            )
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    rates = [100 * one.rate for one in failures.so_far]
    axes.plot([one.trial for one in failures.so_far], rates, color=canvas.BLACK, linewidth=1.5, label="all so far")
    axes.set_ylim(0, 100)
    canvas.whole_numbers(axes.xaxis)
    return canvas.finish(axes, "trial, in the order of planning", "failed, %", columns=3)


def out_of_memory_by_knob(knobs: Sequence[KnobMemory]) -> Figure:
    """The share of plans that ran out of memory by each value, of the knobs that tell the most."""
    shown = knobs[:MAX_KNOBS]
    rows = sum(len(one.values) for one in shown) + len(shown)
    axes = canvas.new_figure("Out of memory by value of a knob", height=max(canvas.HEIGHT, 0.2 * rows + 1.0))
    if not shown:
        return canvas.say(axes, "nothing ran out of memory, or everything did")
    names: list[str] = []
    for knob in shown:
        for one in knob.values:
            at = len(names)
            axes.barh(at, 100 * one.share, color=canvas.VERMILLION, edgecolor="white", hatch="///", height=0.7)
            axes.text(100 * one.share + 1, at, f"{one.oom} of {one.plans}", va="center", fontsize=8)
            names.append(f"{knob_words(knob.knob)} = {value_word(one.value)}")
        names.append("")
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 112)
    return canvas.finish(axes, "out of memory, % of the plans that had this value", rows=names[:-1])


def second_runs(ranking: Sequence[Ranked]) -> Figure:
    """The objective by the first run beside that of the second runs, with intervals, of what was measured again."""
    again = [entry for entry in ranking if entry.confirmed]
    axes = canvas.new_figure("First runs and second runs", height=max(2.2, 0.35 * len(again) + 1.4))
    if not again:
        return canvas.say(axes, "nothing was measured again")
    series = (
        ("first run", -0.15, canvas.Marker("o", canvas.BLUE, "", hollow=True), [entry.first_run for entry in again]),
        ("mean of second runs", 0.15, canvas.Marker("s", canvas.GREEN, ""), [entry.objective for entry in again]),
    )
    for name, offset, mark, values in series:
        style = {**mark.style, "ecolor": mark.colour, "capsize": 3, "label": name}
        canvas.whiskers(axes, [row + offset for row in range(len(again))], values, lying=True, **style)
    names = [f"trial {one.trial.number}{' (baseline)' * (one.trial.origin is Origin.BASELINE)}" for one in again]
    return canvas.finish(axes, again[0].unit, rows=names)


def timeline(campaign: Campaign, trials: Sequence[Trial]) -> Figure:
    """Every attempt from its start to its end, on the nodes that it ran on; in slots where no node is known."""
    runs = [
        (trial, attempt, attempt.started_at, attempt.finished_at or attempt.started_at)
        for trial in trials
        for attempt in trial.attempts
        if attempt.started_at is not None
    ]
    axes = canvas.new_figure("Trials by node", height=canvas.HEIGHT)
    if not runs:
        return canvas.say(axes, "no job has started")
    begin = min(start for _, _, start, _ in runs)
    nodes = sorted({node for _, attempt, _, _ in runs for node in attempt.nodes})
    slots = _slots([(start, end) for _, attempt, start, end in runs if not attempt.nodes])
    lanes = [*nodes, *(f"slot {number}" for number in range(1, max(slots, default=-1) + 2))]
    whole = max(end for *_, end in runs) - begin
    units = ((2 * 3600, 3600.0, "hours"), (120, 60.0, "minutes"), (-inf, 1.0, "seconds"))
    shown, (_, unit, name) = lanes[:MAX_LANES], next(one for one in units if whole >= one[0])
    canvas.figure_of(axes).set_figheight(max(2.2, 0.22 * len(shown) + 1.4))
    places, labelled, free = {lane: at for at, lane in enumerate(shown)}, set[str](), iter(slots)
    for trial, attempt, start, end in sorted(runs, key=lambda run: run[2]):
        mine = list(attempt.nodes) or [f"slot {next(free) + 1}"]
        verdict = None if attempt.outcome is None else attempt.outcome.verdict
        mark = canvas.MARKS[verdict] if verdict is not None else canvas.Marker("", canvas.GREY, "under way")
        for lane in mine:
            if lane in places:
                axes.barh(
                    places[lane],
                    max(end - start, MIN_SPAN * whole) / unit,
                    left=(start - begin) / unit,
                    color=mark.colour,
                    edgecolor="white",
                    linewidth=0.5,
                    height=0.8,
                    hatch="" if verdict is Verdict.OK else "////",
                    label="" if mark.word in labelled else mark.named(campaign.simulated),
                )
                labelled.add(mark.word)
        if len(runs) <= MAX_LANES and mine[0] in places:
            middle = ((start + end) / 2 - begin) / unit
            axes.text(middle, places[mine[0]], str(trial.number), ha="center", va="center", fontsize=6, color="white")
    more = f" ({len(lanes) - len(shown)} more are not shown)" if len(lanes) > len(shown) else ""
    return canvas.finish(axes, f"{name} since the first start{more}", rows=shown)


def _slots(spans: Sequence[tuple[float, float]]) -> list[int]:
    """The first lane that is free, by span, in the order of their starts."""
    free_at: list[float] = []
    places = []
    for start, end in sorted(spans):
        slot = next((slot for slot, free in enumerate(free_at) if free <= start), len(free_at))
        free_at[slot:] = [end, *free_at[slot + 1 :]]
        places.append(slot)
    return places
