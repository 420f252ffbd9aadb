"""What a study found: each row with the published figure, our prediction and measurement, and whether they agree;
as numbers, and in the words that terminal and page have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import floor, inf, isinf, log10
from statistics import median
from typing import Any

from meshtune.tuner.campaign.units import measured_word
from meshtune.tuner.results.views import view_of
from meshtune.tuner.studies.evidence import Evidence, Unanswered
from meshtune.tuner.studies.measures import MEASURED, PREDICTED, read_question
from meshtune.tuner.studies.read import LoadedStudy
from meshtune.tuner.studies.study import Published, StudyRow

UNEXPLAINED = "not explained"
SIMULATED = "simulated: nothing was measured on any device; predictions are of the physics with its default constants"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """One of our numbers. value: the median over seeds; None where there is none, for the reason, and where it never
    happened in most of them. low, high: over the seeds. runs: how many had a number."""

    value: float | None
    low: float | None = None
    high: float | None = None
    runs: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFinding:
    """A row answered. error: of the one that is compared, relative to the published value. missed: it is off by more
    than the row allows; None where there is nothing to compare. explanation: of a miss."""

    name: str
    unit: str
    published: Published | None
    predicted: Ours | None
    measured: Ours | None
    compared: str
    error: float | None
    missed: bool | None
    within: float
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReport:
    """What `study.json` holds. campaigns: their ids by name. simulated: nothing was measured on any device."""

    study: str
    title: str
    simulated: bool
    campaigns: Mapping[str, tuple[str, ...]]
    findings: tuple[StudyFinding, ...]

    @property
    def compared(self) -> list[StudyFinding]:
        return [one for one in self.findings if one.missed is not None]


def find(loaded: LoadedStudy, evidence: Evidence) -> StudyReport:
    runs = [run for name in evidence for run in evidence[name]]
    simulated = all(run.campaign.simulated for run in runs)
    return StudyReport(
        study=loaded.folder,
        title=loaded.study.title,
        simulated=simulated,
        campaigns={name: tuple(run.campaign.id for run in evidence[name]) for name in evidence},
        findings=tuple(_finding(row, evidence, simulated=simulated) for row in loaded.study.rows),
    )


def _finding(row: StudyRow, evidence: Evidence, *, simulated: bool) -> StudyFinding:
    """A simulated cluster is one of many that the physics allows: there the prediction is compared, else what was
    measured."""
    ways = {PREDICTED: row.predicted, MEASURED: row.measured}
    ours = {way: _ours(row, way, asked, evidence) for way, asked in ways.items()}
    order = (PREDICTED, MEASURED) if simulated else (MEASURED, PREDICTED)
    known = ((way, one.value) for way in order if (one := ours[way]) is not None and one.value is not None)
    compared, value = next(known, ("", None))
    error = missed = None
    if row.published is not None and value is not None and row.published.value:
        error = value / row.published.value - 1
        missed = abs(error) > row.within
    return view_of(
        StudyFinding,
        row,
        predicted=ours[PREDICTED],
        measured=ours[MEASURED],
        compared=compared,
        error=error,
        missed=missed,
        explanation=(row.explanation or UNEXPLAINED) if missed else "",
    )


def _ours(row: StudyRow, way: str, asked: Mapping[str, Any] | None, evidence: Evidence) -> Ours | None:
    if asked is None:
        return None
    try:
        answers = read_question(asked).answer(way, row.unit, evidence)
    except Unanswered as unanswered:
        return Ours(value=None, reason=str(unanswered))
    middle, low, high = median(answers), min(answers), max(answers)
    never = sum(map(isinf, answers))
    reason = f"never in {never} of {len(answers)} runs" if never else ""
    ends = [None if one == inf else one for one in (middle, low, high)]
    return Ours(value=ends[0], low=ends[1], high=ends[2], runs=len(answers), reason=reason)


def cells(one: StudyFinding) -> list[str]:
    """Of a row of the table: its name, unit, published, predicted, measured, difference, and how sure the source is."""
    published = one.published
    return [
        one.name,
        one.unit,
        "" if published is None else number(published.value),
        _ours_word(one.predicted),
        _ours_word(one.measured),
        "" if one.error is None else f"{_signed(one.error)}{' *' * bool(one.missed)}",
        "" if published is None else published.certainty.words,
    ]


def headings(report: StudyReport) -> list[str]:
    return [
        "figure",
        "unit",
        "published",
        "predicted",
        measured_word(report.simulated),
        "difference",
        "the published one is",
    ]


def verdict_text(report: StudyReport) -> str:
    if not report.compared:
        return "nothing was published to compare with"
    within = sum(not one.missed for one in report.compared)
    return f"{within} of {len(report.compared)} published figures are within what their rows allow; * is off by more"


def misses(report: StudyReport) -> Iterator[tuple[str, str]]:
    """What is off by more than its row allows, and why; then what has no number, and why."""
    for one in report.findings:
        if one.missed:
            yield one.name, " ".join(one.explanation.split())
    for one in report.findings:
        reasons = [ours.reason for ours in (one.predicted, one.measured) if ours is not None and ours.reason]
        if reasons:
            yield one.name, "; ".join(dict.fromkeys(reasons))


def sources(report: StudyReport) -> Iterator[tuple[str, str, str]]:
    """Each published figure with its source and how sure it is."""
    for one in report.findings:
        if one.published is not None:
            yield one.name, one.published.source, one.published.certainty.words


def _signed(share: float) -> str:
    percent = round(100 * share)
    return f"{percent:+d} %" if percent else "0 %"


def _ours_word(ours: Ours | None) -> str:
    if ours is None:
        return ""
    if ours.value is None:
        return "never" if ours.runs else "none"
    if ours.low is None or ours.low == ours.value == ours.high:
        return number(ours.value)
    return f"{number(ours.value)} ({number(ours.low)} to {'never' if ours.high is None else number(ours.high)})"


def number(value: float) -> str:
    """With three digits that count."""
    if value == round(value) and abs(value) < 1000:
        return f"{value:g}"
    digits = max(0, 2 - floor(log10(abs(value))))
    return f"{value:,.{digits}f}"
