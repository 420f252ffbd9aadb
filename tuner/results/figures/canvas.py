"""What all figures share: their sizes, colours and shapes, text that is taken as it is, and SVG.

Nothing here touches pyplot or keeps state between figures.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from meshtune.runners.outcome import Verdict
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.campaign.units import Estimate, measured_word, number

# Inches: the width of a printed page's text.
WIDTH, HEIGHT = 7.2, 3.4
# Okabe and Ito's colours, which people with any colour blindness tell apart, but for the page's blue and red.
BLACK, GREY, LIGHT = "#000000", "#666666", "#cccccc"
BLUE, VERMILLION, GREEN, ORANGE = "#1f68c0", "#c33131", "#009e73", "#e69f00"
SKY, PURPLE, YELLOW = "#56b4e9", "#cc79a7", "#f0e442"


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker's shape, colour and word. hollow: only its edge is drawn."""

    shape: str
    colour: str
    word: str
    hollow: bool = False

    def named(self, simulated: bool) -> str:
        return self.word.replace("measured", measured_word(simulated))

    @property
    def style(self) -> dict[str, Any]:
        return {
            "marker": self.shape,
            "color": self.colour,
            "markerfacecolor": "none" if self.hollow else self.colour,
            "markersize": 6,
            "linestyle": "none",
        }


MARKS: Mapping[Verdict, Marker] = {
    Verdict.OK: Marker("o", BLUE, "measured"),
    Verdict.OOM: Marker("x", VERMILLION, "out of memory"),
    Verdict.CRASHED: Marker("s", "#c2581f", "crashed"),
    Verdict.TIMED_OUT: Marker("^", ORANGE, "over its time limit"),
    Verdict.PRUNED: Marker("v", "#7d7b74", "given up as slower", hollow=True),
    Verdict.CANCELLED: Marker("+", GREY, "cancelled"),
    Verdict.LOST: Marker("D", GREY, "lost with its node", hollow=True),
    Verdict.ILLEGAL: Marker("*", BLACK, "refused by its program"),
}
BASELINE = Marker("D", BLACK, "baseline")
AGAIN = Marker("o", GREEN, "measured again", hollow=True)
# For the series of bars, with their hatches: of lines alone, since a pattern of circles takes 100 kB of SVG.
SERIES: Sequence[tuple[str, str]] = (
    *((BLUE, ""), (ORANGE, "///"), (GREEN, "|||"), (VERMILLION, "\\\\\\"), (SKY, "xx"), (PURPLE, "++")),
    *((YELLOW, "//"), (GREY, "--"), (BLACK, "")),
)
# As the page has them (charts.css).
PARTS = {"compute": "#2a78d6", "tp": "#7c4dbd", "cp": "#a8479b", "ep": "#b3476b", "send_receive": "#a8730a"}
PARTS |= {"dp": "#0f8577", "optimizer": "#5f7a1c", "bubble": "#8a8880"}
# Held while matplotlib's settings are those of an SVG: they are the process's.
_saving = threading.Lock()
_NO_XML = re.compile("[^\t\n -~\u00a0-\ud7ff\ue000-\ufffd]")
MAX_LABEL = 60


def mark_of(trial: Trial) -> Marker | None:
    """None for a trial that has not ended."""
    if trial.verdict is None:
        return None
    if trial.verdict is Verdict.OK and trial.origin in (Origin.CONFIRMATION, Origin.BASELINE):
        return AGAIN if trial.origin is Origin.CONFIRMATION else BASELINE
    return MARKS[trial.verdict]


def new_figure(title: str, *, height: float = HEIGHT) -> Axes:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(label(title), loc="left", fontsize=11, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color=LIGHT, linewidth=0.5)
    axes.set_axisbelow(True)
    return axes


def figure_of(axes: Axes) -> Figure:
    assert isinstance(axes.figure, Figure)  # not a part of one
    return axes.figure


def say(axes: Axes, text: str) -> Figure:
    """In place of a figure that has nothing to show."""
    axes.grid(False)
    axes.set_axis_off()
    axes.text(0.5, 0.5, label(text), ha="center", va="center", transform=axes.transAxes, parse_math=False)
    return figure_of(axes)


def label(text: str) -> str:
    """A text from anywhere, fit for XML and short."""
    kept = _NO_XML.sub("\ufffd", text)
    return kept if len(kept) <= MAX_LABEL else kept[: MAX_LABEL - 3] + "..."


def name_ticks(axis: Any, names: Sequence[str], **style: Any) -> None:
    """Whole numbers from 0 on are called by these names; as they are, with no formulas in them."""
    axis.set_ticks(range(len(names)), [label(name) for name in names], **style)
    for tick in axis.get_ticklabels():
        tick.set_parse_math(False)


def plain_numbers(*axes: Any) -> None:
    """Axes with numbers as the rest of meshtune writes them."""
    for axis in axes:
        axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def whole_numbers(axis: Any) -> None:
    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def whiskers(axes: Axes, at: Sequence[float], values: Sequence[Estimate], *, lying: bool, **style: Any) -> None:
    """Values with their intervals, along the axis of the places `at`. lying: those are heights."""
    middle = [one.value for one in values]
    spread = [[one.value - one.low for one in values], [one.high - one.value for one in values]]
    if lying:
        axes.errorbar(middle, at, xerr=spread, **style)
    else:
        axes.errorbar(at, middle, yerr=spread, **style)


def finish(axes: Axes, across: str, up: str = "", *, columns: int = 4, rows: Sequence[str] = ()) -> Figure:
    """With the words of both axes, and a legend below them, where it hides nothing; none where nothing has a name.
    rows: names from the top on, of what lies along an axis of numbers."""
    if rows:
        name_ticks(axes.yaxis, rows, fontsize=8)
        axes.invert_yaxis()
        plain_numbers(axes.xaxis)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    handles, names = axes.get_legend_handles_labels()
    if handles:
        axes.figure.legend(handles, names, loc="outside lower left", ncols=columns, frameon=False, fontsize=8)
    return figure_of(axes)


def svg(figure: Figure) -> str:
    """The figure as an element of HTML or a file, the same for the same figure; its text stays text."""
    written = StringIO()
    with _saving, mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "meshtune", "svg.id": None}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return text[text.index("<svg") :]
