"""Analyses, recommendations and revalidations on a terminal: Rich tables and lines from values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from meshtune.search_spaces.knob_values import word
from meshtune.tuner.campaign.units import number, percent, seconds
from meshtune.tuner.cli.render.display import shares_text
from meshtune.tuner.cli.render.knobs import scaling_table
from meshtune.tuner.cli.render.predictions import interval_s
from meshtune.tuner.cli.render.terminal import new_table
from meshtune.tuner.cli.render.winners import SIMULATED
from meshtune.tuner.results.analysis.analysis import Analysis, Failures
from meshtune.tuner.results.analysis.forecast_check import FitCheck, ForecastCheck, StepCheck
from meshtune.tuner.results.analysis.knob_effects import signed
from meshtune.tuner.results.analysis.knob_importance import Sensitivity
from meshtune.tuner.results.analysis.why_faster import Winner
from meshtune.tuner.results.handover import HandoverCheck, origin_verb
from meshtune.tuner.results.known_best import BestKnown, Provenance
from meshtune.tuner.results.revalidation import Revalidation

# `--json` has all of them.
MAX_EFFECTS = 20
BAR = 30
NO_FORECASTS = "Expected against what came: the search expected nothing of any trial that has ended"
STANDING = {
    Provenance.MEASURED: "measured",
    Provenance.PROJECTED: "projected, not measured",
    Provenance.SIMULATED: "simulated: made-up numbers",
}


def analysis_parts(found: Analysis) -> list[Table | Text]:
    """Everything of an analysis, from top to bottom."""
    simulated = Text(SIMULATED, style="yellow")
    made = _made(found.simulated)
    title = f"{found.campaign}: {found.trials} trials, {found.sensitivity.plans} plans {made}"
    basis = found.unpredicted if found.basis is None else f"basis of what is predicted: {found.basis.words}"
    return [
        *([simulated] if found.simulated else []),
        Text(title, style="bold"),
        *_winners(found.winners, made),
        *_sensitivity(found.sensitivity),
        *_effects(found),
        *([] if not found.scaling else [scaling_table(found.scaling)]),
        *_failures(found.failures),
        *_hindsight(found.hindsight, made),
        Text(basis),
    ]


def _made(simulated: bool) -> str:
    """What became of plans that ran to their end."""
    return "simulated" if simulated else "measured"


def _winners(winners: Sequence[Winner], made: str) -> list[Table | Text]:
    if not winners:
        return [Text(f"No plan was {made}, so none wins")]
    columns = ("#", "trial", "setting", "step", "time by part, %")
    table = new_table("Why the best plans win", *columns, right=["step"])
    for winner in winners:
        shares = shares_text((part.part, part.share) for part in winner.parts)
        table.add_row(str(winner.rank), str(winner.trial), winner.plan_key, seconds(winner.step_s), shares or "-")
    return [table, *(Text(f"  {winner.rank}: {winner.words}") for winner in winners)]


def _sensitivity(found: Sensitivity) -> list[Table | Text]:
    if found.nothing:
        return [Text(f"Which knobs matter: not known, {found.nothing}")]
    title = f"Which knobs matter ({found.method} on {found.plans} plans)"
    table = new_table(title, "knob", "share of variance", "", right=["share of variance"])
    for one in found.importances:
        table.add_row(one.knob, percent(one.share), "#" * round(BAR * one.share))
    return [table]


def _effects(found: Analysis) -> list[Table | Text]:
    if not found.effects:
        return [Text(f"What a change is worth: no two {_made(found.simulated)} plans differ in one knob alone")]
    lines = ["What a change is worth, all else equal", *(f"  {one.words}" for one in found.effects[:MAX_EFFECTS])]
    if (left := len(found.effects) - MAX_EFFECTS) > 0:
        lines.append(f"  and {left} smaller ones (--json has them)")
    return [*map(Text, lines)]


def _failures_by_value(found: Failures) -> list[Table | Text]:
    """Of the knobs under which some trial failed."""
    failing = {one.knob for one in found.by_value if one.failed}
    if not failing:
        return []
    table = new_table(
        "Failures by value of a knob", "knob", "value", "trials", "failed", "why", right=["trials", "failed"]
    )
    for one in found.by_value:
        if one.knob in failing and one.trials:
            causes = ", ".join(f"{count} {cause}" for cause, count in one.causes.items())
            table.add_row(one.knob, word(one.value), str(one.trials), str(one.failed), causes)
    return [table]


def _failures(found: Failures) -> list[Table | Text]:
    whole = found.all
    if whole is None:
        return [Text("Failures: no trial has ended yet")]
    title = f"Failures: {whole.failed} of {whole.trials} trials ({percent(whole.rate)})"
    table = new_table(title, "trials", "failed", "so far", "ended", right=["trials", "failed", "so far"])
    so_far = {one.trial: one.rate for one in found.so_far}
    for window in found.windows:
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in window.verdicts.items())
        table.add_row(f"{window.first} - {window.last}", percent(window.rate), percent(so_far[window.last]), verdicts)
    return [table, *_failures_by_value(found)]


def _hindsight(found: ForecastCheck, made: str) -> list[Table | Text]:
    parts: list[Table | Text] = []
    if found.steps is not None:
        parts += [Text(forecast_sentence(found.steps, made)), _forecasts(found, made)]
    if found.fits is not None:
        parts += _fits(found.fits)
    return parts or [Text(NO_FORECASTS)]


def forecast_sentence(checked: StepCheck, made: str = "measured") -> str:
    """made: what the times are."""
    ranks = "" if checked.spearman is None else f", rank correlation {checked.spearman:.2f}"
    return (
        f"Expected against {made} step times: {percent(checked.within)} of {checked.trials} within their "
        f"95 % interval, median error {percent(checked.median_error)}{ranks}"
    )


def _forecasts(found: ForecastCheck, made: str) -> Table:
    numbers = ("trial", "expected (95 %)", made, "off by")
    table = new_table("", *numbers, "", "setting", right=numbers)
    for one in found.forecasts:
        outside = "" if one.within else "outside"
        expected, measured = interval_s(one.expected_s), seconds(one.measured_s)
        table.add_row(str(one.trial), expected, measured, signed(one.ratio - 1), outside, one.plan_key)
    return table


def _fits(found: FitCheck) -> list[Table | Text]:
    table = new_table("", right=("P(fits)", "trials", "expected to fit", "fitted"))
    for one in found.classes:
        span = f"{100 * one.low:.0f} - {100 * one.high:.0f} %"
        table.add_row(span, str(one.trials), f"{one.expected:.1f}", str(one.fitted))
    share = percent(found.fitted / found.trials)
    sentence = (
        f"Expected to fit: {found.expected:.1f} of {found.trials} trials, {found.fitted} did; Brier score "
        f"{found.brier:.3f}, against {found.brier_of_share:.3f} of always telling {share}"
    )
    return [Text(sentence), table]


def recommendation_lines(found: BestKnown) -> Iterator[str]:
    """The plan, its speed, the reason, and the sources."""
    speed = found.tokens_per_s
    yield f"{found.model} on {found.nodes} x {found.cluster} ({found.devices} devices): {found.plan_key}"
    fits = "" if found.p_fits is None else f", P(fits) {percent(found.p_fits)}"
    yield (
        f"{STANDING[found.standing]}: {number(speed.value)} tokens/s ({number(speed.low)} to {number(speed.high)}), "
        f"global batch {found.global_batch_size}, {found.workload}{fits}"
    )
    projected = "projected from numbers " if found.standing is Provenance.PROJECTED else ""
    yield f"{projected}{origin_verb(found.measured_with)}: {found.measured_with.words}"
    yield found.reason
    for source in found.sources:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(source.software.items()))
        twice = ", measured twice" if source.confirmed else ""
        notes = "; ".join([versions or "software unknown", *([", ".join(source.differs)] if source.differs else [])])
        speed_text = f"{number(source.tokens_per_s.value)} tokens/s"
        yield f"from {source.campaign}, trial {source.trial}: {source.plan_key}, {speed_text}{twice}; {notes}"


def revalidation_lines(found: Revalidation) -> Iterator[str | Text]:
    """What was recorded and what is measured now, changes of software, and the judgement."""
    for name, one in (("optimum", found.optimum), ("runner-up", found.rival)):
        if one is not None:
            speeds = one.tokens_per_s_per_device
            now = f"{one.verdict}: {one.reason}" if speeds.now is None else number(speeds.now)
            line = f"{one.plan_key}: recorded {number(speeds.recorded)}, now {now} tokens/s/device"
            yield f"{name}, trial {one.trial}: {line}"
    changes = found.optimum.software_changes.items()
    yield f"software: {', '.join(f'{name} {before} -> {now}' for name, (before, now) in changes) or 'as recorded'}"
    yield Text(found.words, style="green" if found.stands else "red")


def handover_lines(found: HandoverCheck) -> Iterator[str | Text]:
    """The two plans, and the finding."""
    yield f"the setting, trial {found.trial} of {found.campaign}: {found.plan_key}"
    yield f"{found.against}: {found.against_key}"
    yield Text(found.words, style="green" if found.confirmed else "red")
