"""Figures of a campaign, drawn here by Matplotlib (the extra `report`) from its record and analysis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshtune.runners.extras import require_extra
from meshtune.tuner.client.requests import Steps
from meshtune.tuner.client.transport import Awaiting, Blocking, step
from meshtune.tuner.results.analysis.analysis import Analysis
from meshtune.tuner.results.analysis.forecast_check import check_forecasts
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.record import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure that a notebook shows by itself. figure: Matplotlib's, to be changed or saved by its own means."""

    figure: Figure

    def save(self, path: str | Path) -> Path:
        """Write it as the end of the name says: .svg, .pdf, .png."""
        self.figure.savefig(path, bbox_inches="tight")
        return Path(path)

    def _repr_svg_(self) -> str:
        from meshtune.tuner.results.figures.canvas import svg

        return svg(self.figure)


class PlotCalls:
    """Methods raise ServiceError, and MissingExtra without Matplotlib."""

    def __init__(self, link: Any, record: Callable[[], Steps[Record]], analysis: Callable[[], Steps[Analysis]]) -> None:
        require_extra("report", "drawing figures")
        self._link, self._record, self._analysis = link, record, analysis

    @step
    def best(self) -> Steps[Drawing]:
        """Every trial's objective, the best so far, and what failed."""
        from meshtune.tuner.results.figures.progress import best_so_far

        record = yield from self._record()
        return Drawing(best_so_far(record.campaign, record.trials))

    @step
    def timeline(self) -> Steps[Drawing]:
        """When each job waited and ran, and where."""
        from meshtune.tuner.results.figures.progress import timeline

        return Drawing(timeline((yield from self._record()).trials))

    @step
    def second_runs(self) -> Steps[Drawing]:
        """Settings that were measured again: their first and second runs."""
        from meshtune.tuner.results.figures.progress import second_runs

        record = yield from self._record()
        return Drawing(second_runs(rank(record.campaign, record.trials)))

    @step
    def heat_map(self, across: str, up: str) -> Steps[Drawing]:
        """The best first run of every pair of values of two axes or knobs."""
        from meshtune.tuner.results.figures.settings import heat_map

        record = yield from self._record()
        return Drawing(heat_map(record.campaign, record.trials, across, up))

    @step
    def parts(self, top: int = 5) -> Steps[Drawing]:
        """Where the time of a step goes, of the best settings."""
        from meshtune.tuner.results.figures.settings import step_parts

        record = yield from self._record()
        ranking = rank(record.campaign, record.trials)
        return Drawing(step_parts([(one.trial.plan.key, one) for one in ranking[:top]]))

    @step
    def predictions(self) -> Steps[Drawing]:
        """Step times as the search expected them against measured ones."""
        from meshtune.tuner.results.figures.settings import predicted_against_measured

        return Drawing(predicted_against_measured(check_forecasts((yield from self._record()).trials)))

    @step
    def failures(self) -> Steps[Drawing]:
        """The share of trials that failed, over time, by cause."""
        from meshtune.tuner.results.figures.progress import failures_over_time

        return Drawing(failures_over_time((yield from self._analysis()).failures))

    @step
    def effects(self) -> Steps[Drawing]:
        """What a change of one knob is worth, all else equal."""
        from meshtune.tuner.results.figures.settings import knob_effects

        return Drawing(knob_effects((yield from self._analysis()).effects))


class Plots(PlotCalls, Blocking):
    """Figures of a campaign; each asks the service anew."""


class AsyncPlots(PlotCalls, Awaiting):
    """As `Plots`, for asyncio."""
