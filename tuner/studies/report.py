"""The page of a study: what it repeats, the published figures beside ours, why what is off is off, what it draws, and
its files. One HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Iterator

from meshtune.tuner.campaign.units import Estimate, measured_word, number
from meshtune.tuner.results.figures.searches import Beside, published_beside_ours
from meshtune.tuner.results.report.page import PageTable, Section, drawn, page
from meshtune.tuner.studies.drawings import DRAWINGS
from meshtune.tuner.studies.evidence import Evidence, Run, Unanswered, measured_step
from meshtune.tuner.studies.findings import (
    SIMULATED,
    StudyReport,
    cells,
    headings,
    misses,
    sources,
    verdict_text,
)
from meshtune.tuner.studies.read import LoadedStudy


def study_page(loaded: LoadedStudy, report: StudyReport, evidence: Evidence) -> str:
    study, paper = loaded.study, loaded.study.paper
    return page(
        study.title,
        list(_sections(loaded, report, evidence)),
        subtitle=[f"{paper.authors} {paper.year}, {paper.title} ({paper.source})", f"Study {report.study}"],
        notices=[SIMULATED.capitalize() + "."] if report.simulated else [],
    )


def _sections(loaded: LoadedStudy, report: StudyReport, evidence: Evidence) -> Iterator[Section]:
    study = loaded.study
    assumed = [f"Assumed: {study.assumptions}"] if study.assumptions else []
    yield Section(heading="What is repeated", prose=[study.shows, *assumed])
    table = PageTable(
        columns=headings(report), rows=[cells(one) for one in report.findings], numbers=frozenset({2, 3, 4, 5})
    )
    spread = "Ours is the median over the seeds, with the least and the greatest."
    figure = published_beside_ours(list(_beside(report)))
    yield Section(
        heading="Published beside ours",
        prose=[f"{verdict_text(report).capitalize()}. {spread}"],
        tables=[table],
        pictures=[drawn(figure, "Ours over what was published")] if report.compared else [],
    )
    if missed := list(misses(report)):
        yield Section(heading="What is off, and why", tables=[PageTable(columns=["figure", "why"], rows=missed)])
    if study.notes:
        yield Section(heading="Notes", prose=[study.notes])
    for drawing in study.draw:
        chosen = drawing.campaigns or tuple(evidence)
        yield DRAWINGS[drawing.kind]({name: evidence[name] for name in chosen})
    if found_at := list(sources(report)):
        columns = ["published figure", "source", "how sure"]
        yield Section(heading="Sources", tables=[PageTable(columns=columns, rows=found_at)])
    columns = ["campaign", "search", "runner", "trials", "best, by its objective", "plan"]
    rows = [_campaign(run) for runs in evidence.values() for run in runs]
    yield Section(
        heading="Campaigns", tables=[PageTable(columns=columns, rows=rows, numbers=frozenset({3}))], new_page=True
    )
    for name, text in loaded.texts.items():
        yield Section(heading=f"{report.study}/{name}", verbatim=text)


def _campaign(run: Run) -> list[str]:
    spec = run.spec
    about = [run.campaign.id, spec.search.kind, spec.runner.kind, str(len(run.trials))]
    try:
        best = measured_step(run, "best")
    except Unanswered as reason:
        return [*about, "", str(reason)]
    objective = f"{best.tokens_per_s / best.plan.world_size:.4g} tokens/s/device, a step {number(best.step_s)} s"
    return [*about, objective, best.plan.key]


def _beside(report: StudyReport) -> Iterator[Beside]:
    for one in report.findings:
        if one.published is None or one.published.value <= 0:
            continue
        for word, ours in (("predicted", one.predicted), (measured_word(report.simulated), one.measured)):
            if ours is None or ours.value is None or ours.low is None or ours.high is None:
                continue
            ratio = Estimate(ours.value, ours.low, ours.high).times(1 / one.published.value)
            yield Beside(name=one.name, of=word, ratio=ratio, within=one.within)
