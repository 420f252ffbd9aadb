"""The numbers of a study in words, as its terminal table and its page have them."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, log10

from meshtune.tuner.studies.findings import Ours, StudyFinding, StudyReport

SIMULATED = "simulated: nothing was measured on any device; predictions are of the physics with its default constants"


def measured_word(report: StudyReport) -> str:
    return "simulated" if report.simulated else "measured"


def cells(one: StudyFinding) -> list[str]:
    """Of a row of the table: its name, unit, published, predicted, measured, difference, and how sure the source is."""
    published = one.published
    return [
        one.name,
        one.unit,
        "" if published is None else number(published.value),
        _ours(one.predicted),
        _ours(one.measured),
        "" if one.error is None else f"{_signed(one.error)}{' *' * bool(one.missed)}",
        "" if published is None else published.certainty.words,
    ]


def headings(report: StudyReport) -> list[str]:
    return ["figure", "unit", "published", "predicted", measured_word(report), "difference", "the published one is"]


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


def _ours(ours: Ours | None) -> str:
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
