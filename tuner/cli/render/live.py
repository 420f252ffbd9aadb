"""The screen of `meshtune run` on a terminal: the finished trials, and below them what runs now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.campaign.units import number
from meshtune.tuner.cli.render.display import state_text


@dataclass(frozen=True, slots=True)
class LiveScreen:
    """As many finished trials as the terminal has lines for, the newest last, above `now`."""

    campaign: Campaign
    trials: Sequence[Trial]
    now: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        finished = [trial for trial in self.trials if trial.state.final]
        finished.sort(key=lambda trial: trial.last.finished_at or 0.0)
        # One line stays free for the cursor.
        room = options.size.height - 1 - _height(self.now, console, options)
        shown = min(len(finished), room)
        while shown > 0:
            table = finished_table(self.campaign, finished, shown)
            excess = _height(table, console, options) - room
            if excess <= 0:
                yield table
                break
            shown -= max(1, excess // 2)  # a long setting takes two lines
        yield self.now


def finished_table(campaign: Campaign, finished: Sequence[Trial], newest: int) -> RenderableType:
    """The newest so many of the finished trials: how each ended, the objective of this one run, and its speed against
    the baseline's first run. Without intervals, which the table of the best settings has."""
    yardstick = yardstick_of(campaign.spec)
    base = next((each.measurement for each in finished if each.origin is Origin.BASELINE and each.measurement), None)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("trial", "setting", "ended", yardstick.unit, "to baseline"):
        right = name in ("trial", yardstick.unit, "to baseline")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "setting", overflow="fold")
    for trial in finished[-newest:]:
        measured = trial.measurement
        speed = None if measured is None or base is None else measured.tokens_per_s_per_device
        against = "" if speed is None or base is None else f"{100 * (speed / base.tokens_per_s_per_device - 1):+.1f} %"
        table.add_row(
            str(trial.number),
            f"{trial.plan.key}{' again' if trial.origin is Origin.CONFIRMATION else ''}",
            state_text(trial),
            "" if measured is None else number(yardstick.of(measured, measured.step_time_s)),
            "baseline" if trial.origin is Origin.BASELINE else against,
        )
    earlier = len(finished) - newest
    return Group(Text(f"{earlier} earlier", style="dim"), table) if earlier else table


def _height(part: RenderableType, console: Console, options: ConsoleOptions) -> int:
    return len(console.render_lines(part, options.update(height=None), pad=False))
