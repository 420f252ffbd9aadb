"""Measurements as rows, and back. One more number is a field of `Measurement` and a column of the same name."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from operator import attrgetter
from typing import Any

from sqlalchemy import JSON, Row, null

from meshtune.runners.documents import read_value
from meshtune.runners.measuring.step_breakdown import Profile
from meshtune.runners.outcome import Measurement, MeasurementSummary
from meshtune.tuner.store.tables import measurements

# The limit of the database's largest integer column; the values of all ranks, in JSON, are kept exactly.
MAX_BIGINT = 2**63 - 1


def _columns_of(kind: type) -> tuple[str, ...]:
    """The fields that are columns of the same name; those in JSON are converted by hand."""
    named = (each.name for each in fields(kind) if each.name in measurements.c)
    return tuple(name for name in named if not isinstance(measurements.c[name].type, JSON))


SCALARS = _columns_of(Measurement)
SUMMARY = _columns_of(MeasurementSummary)
# What is read for lists and rankings: no steps, ranks and profiles.
LISTED = tuple(measurements.c[name] for name in (*SCALARS, *SUMMARY, "first_losses"))
WHOLE = tuple(column for column in measurements.columns if not column.primary_key)
_scalars, _summary = attrgetter(*SCALARS), attrgetter(*SUMMARY)


@dataclass(slots=True)
class StepTimes:
    """The steps of one attempt while they are gathered from their rows."""

    warmup: list[float] = field(default_factory=list)
    timed: list[float] = field(default_factory=list)


def measurement_row(measurement: Measurement, attempt_id: int) -> dict[str, Any]:
    return {
        "attempt_id": attempt_id,
        **dict(zip(SCALARS, _scalars(measurement), strict=True)),
        **dict(zip(SUMMARY, map(_stored, _summary(measurement.summary)), strict=True)),
        "first_losses": losses_document(measurement),
        "peak_memory_bytes": list(measurement.peak_memory_bytes),
        "peak_held_bytes": list(measurement.peak_held_bytes),
        "profile": null() if measurement.profile is None else asdict(measurement.profile),
        "software": dict(measurement.software),
    }


def step_rows(measurement: Measurement, attempt_id: int) -> list[dict[str, Any]]:
    seconds = (*measurement.warmup_times_s, *measurement.step_times_s)
    warmups = len(measurement.warmup_times_s)
    return [
        {"attempt_id": attempt_id, "number": number, "warmup": number < warmups, "seconds": value}
        for number, value in enumerate(seconds)
    ]


def measurement_of(row: Row[Any], times: StepTimes) -> Measurement:
    """From a row with the columns WHOLE, and the steps."""
    return Measurement(
        **dict(zip(SCALARS, _scalars(row), strict=True)),
        step_times_s=tuple(times.timed),
        warmup_times_s=tuple(times.warmup),
        first_losses=_losses(row),
        peak_memory_bytes=tuple(row.peak_memory_bytes),
        peak_held_bytes=tuple(row.peak_held_bytes),
        profile=None if row.profile is None else read_value(Profile, row.profile),
        software=row.software,
    )


def listed_measurement_of(row: Row[Any]) -> Measurement | None:
    """From a row with the columns LISTED; None where an outer join found no measurement."""
    if row.median_step_time_s is None:
        return None
    return Measurement(
        **dict(zip(SCALARS, _scalars(row), strict=True)),
        step_times_s=(),
        first_losses=_losses(row),
        stored_summary=MeasurementSummary(**dict(zip(SUMMARY, _summary(row), strict=True))),
    )


def losses_document(measurement: Measurement) -> list[float | str]:
    """A diverged loss is NaN or infinite, which JSON cannot say; float() reads their names."""
    return [loss if isfinite(loss) else str(loss) for loss in measurement.first_losses]


def partial_document(partial: Measurement) -> dict[str, Any]:
    return {**asdict(partial), "first_losses": losses_document(partial)}


def _losses(row: Row[Any]) -> tuple[float, ...]:
    return tuple(map(float, row.first_losses))


def _stored(value: float | None) -> float | None:
    return min(value, MAX_BIGINT) if isinstance(value, int) else value
