"""Figures of a campaign, drawn here by Matplotlib (the extra `report`) from its record and analysis. Importing this
without it raises MissingExtra."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshtune.tuner.client.requests import Steps
from meshtune.tuner.client.transport import Awaiting, Blocking, step
from meshtune.tuner.results.analysis.analysis import Analysis
from meshtune.tuner.results.analysis.forecast_check import check_forecasts
from meshtune.tuner.results.figures import canvas, progress, settings
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
        return canvas.svg(self.figure)


class PlotCalls:
    """Methods raise ServiceError."""

    def __init__(self, link: Any, record: Callable[[], Steps[Record]], analysis: Callable[[], Steps[Analysis]]) -> None:
        self._link, self._record, self._analysis = link, record, analysis

    @step
    def best(self) -> Steps[Drawing]:
        """Every trial's objective, the best so far, and what failed."""
        record = yield from self._record()
        return Drawing(progress.best_so_far(record.campaign, record.trials))

    @step
    def timeline(self) -> Steps[Drawing]:
        """When each job waited and ran, and where."""
        record = yield from self._record()
        return Drawing(progress.timeline(record.campaign, record.trials))

    @step
    def second_runs(self) -> Steps[Drawing]:
        """Settings that were measured again: their first and second runs."""
        record = yield from self._record()
        return Drawing(progress.second_runs(rank(record.campaign, record.trials)))

    @step
    def heat_map(self, across: str, up: str) -> Steps[Drawing]:
        """The best setting of every pair of values of two axes or knobs."""
        record = yield from self._record()
        return Drawing(settings.heat_map(record.campaign, record.trials, across, up))

    @step
    def parts(self, top: int = 5) -> Steps[Drawing]:
        """Where the time of a step goes, of the best settings."""
        record = yield from self._record()
        ranking = rank(record.campaign, record.trials)
        return Drawing(settings.step_parts([(one.trial.plan.key, one) for one in ranking[:top]]))

    @step
    def predictions(self) -> Steps[Drawing]:
        """Step times as the search expected them against measured ones."""
        record = yield from self._record()
        return Drawing(settings.predicted_against_measured(record.campaign, check_forecasts(record.trials)))

    @step
    def failures(self) -> Steps[Drawing]:
        """The share of trials that failed, over time, by cause."""
        return Drawing(progress.failures_over_time((yield from self._analysis()).failures))

    @step
    def effects(self) -> Steps[Drawing]:
        """What a change of one knob is worth, all else equal."""
        return Drawing(settings.knob_effects((yield from self._analysis()).effects))


class Plots(PlotCalls, Blocking):
    """Figures of a campaign; each asks the service anew."""


class AsyncPlots(PlotCalls, Awaiting):
    """As `Plots`, for asyncio."""
