"""What a study found: each row with the published figure, our prediction and measurement, and whether they agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isinf
from statistics import median
from typing import Any

from meshtune.tuner.studies.evidence import Evidence, Unanswered
from meshtune.tuner.studies.measures import MEASURED, PREDICTED, read_question
from meshtune.tuner.studies.read import LoadedStudy
from meshtune.tuner.studies.study import Published, StudyRow

UNEXPLAINED = "not explained"


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
    ours = {
        PREDICTED: _ours(row, PREDICTED, row.predicted, evidence),
        MEASURED: _ours(row, MEASURED, row.measured, evidence),
    }
    order = (PREDICTED, MEASURED) if simulated else (MEASURED, PREDICTED)
    compared = next((way for way in order if (one := ours[way]) is not None and one.value is not None), "")
    chosen = ours[compared] if compared else None
    error = missed = None
    if row.published is not None and chosen is not None and chosen.value is not None and row.published.value:
        error = chosen.value / row.published.value - 1
        missed = abs(error) > row.within
    return StudyFinding(
        name=row.name,
        unit=row.unit,
        published=row.published,
        predicted=ours[PREDICTED],
        measured=ours[MEASURED],
        compared=compared,
        error=error,
        missed=missed,
        within=row.within,
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
