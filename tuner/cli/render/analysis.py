"""Analyses, recommendations and revalidations on a terminal: Rich tables and lines from values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from meshtune.search_spaces.changes import words_of
from meshtune.search_spaces.knob_values import word
from meshtune.tuner.campaign.units import gibibytes, interval_s, measured_word, number, percent, seconds, times_text
from meshtune.tuner.cli.render.display import shares_text
from meshtune.tuner.cli.render.knobs import scaling_table
from meshtune.tuner.cli.render.terminal import new_table
from meshtune.tuner.cli.render.winners import SIMULATED
from meshtune.tuner.results.analysis.analysis import Analysis, Failures
from meshtune.tuner.results.analysis.forecast_check import FitCheck, ForecastCheck
from meshtune.tuner.results.analysis.knob_effects import signed
from meshtune.tuner.results.analysis.knob_importance import Sensitivity
from meshtune.tuner.results.analysis.why_faster import Winner
from meshtune.tuner.results.comparison import Diff
from meshtune.tuner.results.handover import HandoverCheck, origin_verb
from meshtune.tuner.results.known_best import BestKnown, Provenance
from meshtune.tuner.results.quantities import QUANTITIES
from meshtune.tuner.results.revalidation import Revalidation

# `--json` has all of them.
MAX_EFFECTS = 20
BAR = 30
# A quantity by its unit.
SHOWN: dict[str, Callable[[Any], str]] = {"s": seconds, "B": gibibytes, "share": percent, "": number}
NO_FORECASTS = "Expected against what came: the search expected nothing of any trial that has ended"
STANDING = {
    Provenance.MEASURED: "measured",
    Provenance.PROJECTED: "projected, not measured",
    Provenance.SIMULATED: "simulated: made-up numbers",
}


def analysis_parts(analysis: Analysis) -> list[Table | Text]:
    simulated = Text(SIMULATED, style="yellow")
    made = measured_word(analysis.simulated)
    title = f"{analysis.campaign}: {analysis.trials} trials, {analysis.sensitivity.plans} plans {made}"
    basis = analysis.unpredicted if analysis.basis is None else f"basis of what is predicted: {analysis.basis.words}"
    return [
        *([simulated] if analysis.simulated else []),
        Text(title, style="bold"),
        *([Text(analysis.comparable, style="yellow")] if analysis.comparable else []),
        *_winners(analysis.winners, made),
        *_sensitivity(analysis.sensitivity),
        *_effects(analysis),
        *([] if not analysis.scaling else [scaling_table(analysis.scaling)]),
        *_failures(analysis.failures),
        *_hindsight(analysis.hindsight, made),
        Text(basis),
    ]


def _winners(winners: Sequence[Winner], made: str) -> list[Table | Text]:
    if not winners:
        return [Text(f"No plan was {made}, so none wins")]
    columns = ("#", "trial", "plan", "step", "time by part, %")
    table = new_table("Why the best plans win", *columns, right=["step"], spare=columns[3:])
    for winner in winners:
        shares = shares_text((part.part, part.share) for part in winner.parts)
        table.add_row(str(winner.rank), str(winner.trial), winner.plan_key, seconds(winner.step_s), shares or "-")
    return [table, *(Text(f"  {winner.rank}: {winner.words}") for winner in winners)]


def _sensitivity(sensitivity: Sensitivity) -> list[Table | Text]:
    if sensitivity.nothing:
        return [Text(f"Which knobs matter: not known, {sensitivity.nothing}")]
    title = f"Which knobs matter ({sensitivity.method} on {sensitivity.plans} plans)"
    table = new_table(title, "knob", "share of variance", "", right=["share of variance"], spare=[""])
    for one in sensitivity.importances:
        table.add_row(one.knob, percent(one.share), "#" * round(BAR * one.share))
    return [table]


def _effects(analysis: Analysis) -> list[Table | Text]:
    if not analysis.effects:
        return [
            Text(f"What a change is worth: no two {measured_word(analysis.simulated)} plans differ in one knob alone")
        ]
    lines = ["What a change is worth, all else equal", *(f"  {one.words}" for one in analysis.effects[:MAX_EFFECTS])]
    if (left := len(analysis.effects) - MAX_EFFECTS) > 0:
        lines.append(f"  and {left} smaller ones (--json has them)")
    return [*map(Text, lines)]


def _failures_by_value(failures: Failures) -> list[Table | Text]:
    """Of the knobs under which some trial failed."""
    failing = {one.knob for one in failures.by_value if one.failed}
    if not failing:
        return []
    columns = ("knob", "value", "trials", "failed", "why")
    table = new_table("Failures by value of a knob", *columns, right=columns[2:4], spare=["why"])
    for one in failures.by_value:
        if one.knob in failing and one.trials:
            causes = ", ".join(f"{count} {cause}" for cause, count in one.causes.items())
            table.add_row(one.knob, word(one.value), str(one.trials), str(one.failed), causes)
    return [table]


def _failures(failures: Failures) -> list[Table | Text]:
    whole = failures.all
    if whole is None:
        return [Text("Failures: no trial has ended yet")]
    title = f"Failures: {whole.failed} of {whole.trials} trials ({percent(whole.rate)})"
    table = new_table(title, "trials", "failed", "so far", "ended", right=["trials", "failed", "so far"])
    so_far = {one.trial: one.rate for one in failures.so_far}
    for window in failures.windows:
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in window.verdicts.items())
        table.add_row(f"{window.first} - {window.last}", percent(window.rate), percent(so_far[window.last]), verdicts)
    return [table, *_failures_by_value(failures)]


def _hindsight(check: ForecastCheck, made: str) -> list[Table | Text]:
    parts: list[Table | Text] = []
    if check.steps is not None:
        parts += [Text(check.steps.words(made)), _forecasts(check, made)]
    if check.fits is not None:
        parts += _fits(check.fits)
    return parts or [Text(NO_FORECASTS)]


def _forecasts(check: ForecastCheck, made: str) -> Table:
    columns = ("trial", "expected (95 %)", made, "off by", "interval", "plan")
    table = new_table("", *columns, right=("trial", made, "off by"), spare=("interval", made))
    for one in check.forecasts:
        outside = "inside" if one.within else "outside"
        expected, measured = interval_s(one.expected_s), seconds(one.measured_s)
        table.add_row(str(one.trial), expected, measured, signed(one.ratio - 1), outside, one.plan_key)
    return table


def _fits(check: FitCheck) -> list[Table | Text]:
    table = new_table("", right=("P(fits)", "trials", "expected to fit", "fitted"))
    for one in check.classes:
        span = f"{100 * one.low:.0f} - {100 * one.high:.0f} %"
        table.add_row(span, str(one.trials), f"{one.expected:.1f}", str(one.fitted))
    return [Text(str(check)), table]


def recommendation_lines(best: BestKnown) -> Iterator[str]:
    """The plan, its speed, the reason, and the sources."""
    speed = best.tokens_per_s
    yield f"{best.model} on {best.nodes} x {best.cluster} ({best.devices} devices): {best.plan_key}"
    fits = "" if best.p_fits is None else f", P(fits) {percent(best.p_fits)}"
    yield (
        f"{STANDING[best.standing]}: {number(speed.value)} tokens/s ({number(speed.low)} to {number(speed.high)}), "
        f"global batch {best.global_batch_size}, {best.workload}{fits}"
    )
    projected = "projected from numbers " if best.standing is Provenance.PROJECTED else ""
    yield f"{projected}{origin_verb(best.measured_with)}: {best.measured_with.words}"
    yield best.reason
    for source in best.sources:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(source.software.items()))
        twice = ", with a second run" if source.confirmed else ""
        notes = "; ".join([versions or "software unknown", *([", ".join(source.differs)] if source.differs else [])])
        speed_text = f"{number(source.tokens_per_s.value)} tokens/s"
        yield f"from {source.campaign}, trial {source.trial}: {source.plan_key}, {speed_text}{twice}; {notes}"


def revalidation_lines(revalidation: Revalidation, rate: str) -> Iterator[str | Text]:
    """What was recorded and what is measured now, changes of software, and the judgement."""
    for name, one in (("optimum", revalidation.optimum), ("runner-up", revalidation.rival)):
        if one is not None:
            speeds = one.tokens_per_s_per_device
            now = f"{one.verdict}: {one.reason}" if speeds.now is None else number(speeds.now)
            line = f"{one.plan_key}: recorded {number(speeds.recorded)}, now {now} {rate}"
            yield f"{name}, trial {one.trial}: {line}"
    changes = revalidation.optimum.software_changes.items()
    yield f"software: {', '.join(f'{name} {before} -> {now}' for name, (before, now) in changes) or 'as recorded'}"
    yield Text(revalidation.words, style="green" if revalidation.stands else "red")


def handover_lines(check: HandoverCheck) -> Iterator[str | Text]:
    """The two plans, and the finding."""
    yield f"the plan, trial {check.trial} of {check.campaign}: {check.plan_key}"
    yield f"{check.against}: {check.against_key}"
    yield Text(check.words, style="green" if check.confirmed else "red")


def diff_parts(diff: Diff) -> Iterator[Table | Text | str]:
    """What the two and their specs differ in, and their figures side by side."""
    ends = [("none" if end is None else word(end) for end in (one.before, one.after)) for one in diff.spec]
    specs = [f"{one.knob} {' -> '.join(own)}" for one, own in zip(diff.spec, ends, strict=True)]
    yield f"specs: {', '.join(specs) or 'alike'}"
    if None not in diff.trials:
        yield f"plans: {words_of(diff.plan) or 'alike'}"
    pairs = zip(diff.campaigns, diff.trials, strict=True)
    names = [f"{campaign}/{'none' if trial is None else trial.number}" for campaign, trial in pairs]
    table = new_table("", "", f"A: {names[0]}", f"B: {names[1]}")
    rows: list[tuple[str, str, Callable[[Any], str]]] = [("plan", "plan_key", str)]
    rows += [(name, name, str) for name in ("verdict", "failure", "reason")]
    rows += [(one.words, one.name, SHOWN[one.unit]) for one in QUANTITIES if one.words]
    for words, name, shown in rows:
        # Over all runs of its plan, where there are second ones.
        values = [getattr(getattr(one, "setting", None), name, getattr(one, name, None)) for one in diff.trials]
        table.add_row(words, *("-" if value in (None, "") else shown(value) for value in values))
    if all(diff.parts):
        shares = [{part.part: percent(part.share) for part in parts} for parts in diff.parts]
        for part in {**shares[0], **shares[1]}:
            table.add_row(part, *(own.get(part, "-") for own in shares))
    yield table
    if diff.ratio is not None:
        yield f"speed: {names[1]} is {times_text(diff.ratio)} {names[0]}"
    yield from (Text(note, style="yellow") for note in diff.notes)
