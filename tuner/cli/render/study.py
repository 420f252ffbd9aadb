"""What a study found, on a terminal: one table, published beside ours, then why what is off is off."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from math import floor, log10

from rich.console import RenderableType

from meshtune.tuner.cli.render.tables import new_table
from meshtune.tuner.studies.findings import Finding, Ours, StudyReport
from meshtune.tuner.studies.study import Study

SIMULATED = "simulated: nothing was measured on any device; predictions are of the physics with its default constants"


def study_list(studies: Mapping[str, Study]) -> RenderableType:
    table = new_table("", "study", "what it repeats", "source", "what it shows")
    for name, study in studies.items():
        paper = study.paper
        table.add_row(name, study.title, f"{paper.authors} {paper.year}, {paper.source}", study.shows.split(". ")[0])
    return table


def study_lines(study: Study, report: StudyReport) -> Iterator[RenderableType | str]:
    yield f"{report.study}: {study.title} ({study.paper.authors} {study.paper.year}, {study.paper.source})"
    if report.simulated:
        yield SIMULATED
    ours = "simulated" if report.simulated else "measured"
    table = new_table("", "", "unit", right=("published", "predicted", ours, "difference"))
    table.add_column("published figure is")
    for one in report.findings:
        published = one.published
        table.add_row(
            one.name,
            one.unit,
            "" if published is None else number(published.value),
            ours_text(one.predicted),
            ours_text(one.measured),
            difference_text(one),
            "" if published is None else published.certainty.words,
        )
    yield table
    within = sum(not one.missed for one in report.compared)
    yield f"{within} of {len(report.compared)} published figures are within what their rows allow; * is off by more"
    for one in report.compared:
        if one.missed:
            yield f"* {one.name}: {textwrap.dedent(one.explanation).strip()}"
    for one in report.findings:
        for ours_ in (one.predicted, one.measured):
            if ours_ is not None and ours_.reason:
                yield f"{one.name}: {ours_.reason}"
    sources = dict.fromkeys(one.published.source for one in report.findings if one.published is not None)
    yield "sources: " + "; ".join(sources) if sources else "nothing was published to compare with"


def ours_text(ours: Ours | None) -> str:
    if ours is None:
        return ""
    if ours.value is None:
        return "never" if ours.runs else "none"
    if ours.low is None or ours.low == ours.value == ours.high:
        return number(ours.value)
    return f"{number(ours.value)} ({number(ours.low)} to {'never' if ours.high is None else number(ours.high)})"


def difference_text(one: Finding) -> str:
    return "" if one.error is None else f"{100 * one.error:+.0f} %{' *' * bool(one.missed)}"


def number(value: float) -> str:
    """With three digits that count."""
    if value == 0 or (value == int(value) and abs(value) < 1000):
        return f"{value:g}"
    digits = max(0, 2 - floor(log10(abs(value))))
    return f"{value:,.{digits}f}"
