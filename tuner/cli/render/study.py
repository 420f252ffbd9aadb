"""What a study found, on a terminal: one table, published beside ours, then why what is off is off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType

from meshtune.tuner.cli.render.tables import new_table
from meshtune.tuner.studies.findings import StudyReport
from meshtune.tuner.studies.study import Study
from meshtune.tuner.studies.words import SIMULATED, cells, headings, misses, verdict_text


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
    names = headings(report)
    table = new_table("", *names, right=names[2:6])
    for one in report.findings:
        table.add_row(*cells(one))
    yield table
    yield verdict_text(report)
    for name, why in misses(report):
        yield f"* {name}: {why}"
