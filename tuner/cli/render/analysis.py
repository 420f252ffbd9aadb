"""An analysis on a terminal: Rich tables and lines from values."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from meshtune.tuner.campaign.units import percent, seconds
from meshtune.tuner.cli.render.display import LEAST_SHARE, new_table
from meshtune.tuner.cli.render.quote import interval_s
from meshtune.tuner.results.analysis.analysis import Analysis, Failures
from meshtune.tuner.results.analysis.forecast_check import FitCheck, ForecastCheck
from meshtune.tuner.results.analysis.knob_effects import signed
from meshtune.tuner.results.analysis.knob_importance import Sensitivity
from meshtune.tuner.results.analysis.why_faster import Winner

# The JSON has all of them.
MAX_EFFECTS = 20
BAR = 30
NO_FORECASTS = "Expected against what came: the search expected nothing of any trial that has ended"


def analysis_parts(found: Analysis) -> list[Table | Text]:
    """Everything of an analysis, from top to bottom."""
    parts: list[Table | Text] = []
    if found.simulated:
        parts.append(Text("simulated: nothing below was measured on any device", style="yellow"))
    parts.append(
        Text(f"{found.campaign}: {found.trials} trials, {found.sensitivity.plans} plans measured", style="bold")
    )
    parts += _winners(found.winners)
    parts += _sensitivity(found.sensitivity)
    parts += _effects(found)
    parts += _failures(found.failures)
    parts += _hindsight(found.hindsight)
    parts.append(Text(found.unpredicted if found.basis is None else f"basis of what is predicted: {found.basis.words}"))
    return parts


def _winners(winners: Sequence[Winner]) -> list[Table | Text]:
    if not winners:
        return [Text("No plan was measured, so none wins")]
    table = new_table("Why the best plans win", "#", "trial", "setting")
    table.add_column("step", justify="right")
    table.add_column("time by part, %", overflow="fold")
    for winner in winners:
        parts = sorted(winner.parts, key=lambda part: -part.share)
        shares = ", ".join(f"{part.part} {100 * part.share:.0f}" for part in parts if part.share >= LEAST_SHARE)
        table.add_row(str(winner.rank), str(winner.trial), winner.plan_key, seconds(winner.step_s), shares or "-")
    return [table, *(Text(f"  {winner.rank}: {winner.words}") for winner in winners)]


def _sensitivity(found: Sensitivity) -> list[Table | Text]:
    if found.nothing:
        return [Text(f"Which knobs matter: not known, {found.nothing}")]
    table = new_table(f"Which knobs matter ({found.method} on {found.plans} plans)")
    table.add_column("knob")
    table.add_column("share of variance", justify="right")
    table.add_column("")
    for one in found.importances:
        table.add_row(one.knob, percent(one.share), "#" * round(BAR * one.share))
    return [table]


def _effects(found: Analysis) -> list[Table | Text]:
    if not found.effects:
        return [Text("What a change is worth: no two measured plans differ in one knob alone")]
    lines = [Text(f"  {effect.words}") for effect in found.effects[:MAX_EFFECTS]]
    left = len(found.effects) - len(lines)
    return [
        Text("What a change is worth, all else equal"),
        *lines,
        *([Text(f"  and {left} smaller ones (--json has them)")] if left else []),
    ]


def _failures(found: Failures) -> list[Table | Text]:
    whole = found.all
    if whole is None:
        return [Text("Failures: no trial has ended yet")]
    table = new_table(f"Failures: {whole.failed} of {whole.trials} trials ({percent(whole.rate)})")
    for name in ("trials", "failed", "so far"):
        table.add_column(name, justify="right")
    table.add_column("ended", overflow="fold")
    so_far = {one.trial: one.rate for one in found.so_far}
    for window in found.windows:
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in window.verdicts.items())
        table.add_row(f"{window.first} - {window.last}", percent(window.rate), percent(so_far[window.last]), verdicts)
    return [table]


def _hindsight(found: ForecastCheck) -> list[Table | Text]:
    parts: list[Table | Text] = []
    if found.steps is not None:
        checked = found.steps
        ranks = "" if checked.spearman is None else f", rank correlation {checked.spearman:.2f}"
        parts.append(
            Text(
                f"Expected against measured step times: {percent(checked.within)} of {checked.trials} within their "
                f"95 % interval, median error {percent(checked.median_error)}{ranks}"
            )
        )
        parts.append(_forecasts(found))
    if found.fits is not None:
        parts += _fits(found.fits)
    return parts or [Text(NO_FORECASTS)]


def _forecasts(found: ForecastCheck) -> Table:
    table = new_table("")
    for name in ("trial", "expected (95 %)", "measured", "off by"):
        table.add_column(name, justify="right")
    table.add_column("")
    table.add_column("setting", overflow="fold")
    for one in found.forecasts:
        outside = "" if one.within else "outside"
        expected, measured = interval_s(one.expected_s), seconds(one.measured_s)
        table.add_row(str(one.trial), expected, measured, signed(one.ratio - 1), outside, one.plan_key)
    return table


def _fits(found: FitCheck) -> list[Table | Text]:
    table = new_table("")
    for name in ("P(fits)", "trials", "expected to fit", "fitted"):
        table.add_column(name, justify="right")
    for one in found.classes:
        span = f"{100 * one.low:.0f} - {100 * one.high:.0f} %"
        table.add_row(span, str(one.trials), f"{one.expected:.1f}", str(one.fitted))
    share = percent(found.fitted / found.trials)
    sentence = (
        f"Expected to fit: {found.expected:.1f} of {found.trials} trials, {found.fitted} did; Brier score "
        f"{found.brier:.3f}, against {found.brier_of_share:.3f} of always telling {share}"
    )
    return [Text(sentence), table]
