"""Values from rows and rows from values, one function each way: pure, no queries. Columns are found by their names.

Rows of trials, attempts and measurements come as dictionaries: an attribute of a Row takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache, lru_cache
from math import isfinite
from operator import itemgetter
from types import NoneType
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import JSON, Row, Table, literal, null

from meshtune.runners.base import Cause
from meshtune.runners.documents import read_value
from meshtune.runners.hardware import HardwareKind
from meshtune.runners.outcome import OF_FIRST_STEPS, Measurement, MeasurementSummary, Outcome, Verdict
from meshtune.runners.step_breakdown import Profile
from meshtune.search_spaces.knob_values import KnobValues
from meshtune.search_spaces.plan import PLAN_FIELDS, Plan
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Lesson
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Attempt, Expectation, Origin, Trial, TrialState
from meshtune.tuner.store.errors import reading_row
from meshtune.tuner.store.tables import PlainText, attempts, campaigns, measurements


def _columns_of(kind: type, table: Table, *, json: bool = False, but: Collection[str] = ()) -> tuple[str, ...]:
    """The fields of a value that are columns of the same name: those in JSON, which are converted by hand, or the
    others."""
    names = [each.name for each in fields(kind) if each.name in table.c and each.name not in but]
    return tuple(name for name in names if isinstance(table.c[name].type, JSON) == json)


# The largest integer of a database's column; the values of all ranks, in JSON, are kept exactly.
MAX_BIGINT = 2**63 - 1
# Fields that are columns of the same name and the same value.
_OF_CAMPAIGN = _columns_of(Campaign, campaigns, but=("state",))
_OF_ATTEMPT = _columns_of(Attempt, attempts, but=("state",))
_OF_OUTCOME = _columns_of(Outcome, attempts, but=("verdict", "cause"))
# One more number of a measurement is a field of Measurement or of MeasurementSummary, and a column of its name.
_OF_MEASUREMENT = _columns_of(Measurement, measurements)
_OF_SUMMARY = _columns_of(MeasurementSummary, measurements)
_LISTS = ("first_gradient_norms", "peak_memory_bytes", "peak_held_bytes", "attention_kernels")
# Lists of trials have no steps, values of single ranks, profiles and logs.
LISTED_COLUMNS = (
    *(column for column in attempts.c if column.name not in ("partial", "log_tail")),
    null().label("partial"),
    literal("").label("log_tail"),
    *(measurements.c[name] for name in (*_OF_MEASUREMENT, *_OF_SUMMARY, *OF_FIRST_STEPS, "hardware")),
)
# Fields that are lists in JSON columns of the same name; NULL for none.
_NODES = _columns_of(Attempt, attempts, json=True)
_SPEC = TypeAdapter(CampaignSpec)
_plan_values = itemgetter(*PLAN_FIELDS)


def encode_spec(spec: CampaignSpec) -> dict[str, Any]:
    """Plain JSON values; `decode_spec` makes an equal spec of them, for options that are plain JSON values too."""
    document: dict[str, Any] = _SPEC.dump_python(spec, mode="json")
    return document


def decode_spec(document: object) -> CampaignSpec:
    """The spec that `encode_spec` wrote. Raises ValueError for one that breaks today's rules."""
    return _SPEC.validate_python(document)


def campaign_row(campaign: Campaign) -> dict[str, Any]:
    spec = campaign.spec
    document = encode_spec(spec)
    del document["tags"], document["notes"]
    return {
        **_fields(campaign, _OF_CAMPAIGN),
        "state": str(campaign.state),
        "lessons": [asdict(lesson) for lesson in campaign.lessons],
        "tags": f" {' '.join(spec.tags)} " if spec.tags else "",
        "notes": spec.notes,
        "spec": document,
        # Of the spec, for filters and quotas.
        "name": spec.name,
        "devices": spec.cluster.devices,
        "device": spec.cluster.device.name,
        "workload": spec.workload.kind,
        "model": spec.model.name,
        "cluster": spec.cluster.name,
        "project": spec.project,
    }


def campaign_of(row: Row[Any]) -> Campaign:
    """Raises Unreadable."""
    with reading_row(f"campaign {row.id}"):
        lessons = tuple(Lesson(**lesson) for lesson in row.lessons)
        state = CampaignState(row.state)
        spec = decode_spec({**row.spec, "tags": row.tags.split(), "notes": row.notes})
        own = _stored(row._mapping, _OF_CAMPAIGN, campaigns)
        return Campaign(spec=spec, state=state, lessons=lessons, **own)


def trial_row(trial: Trial) -> dict[str, Any]:
    return {
        "campaign_id": trial.campaign_id,
        "number": trial.number,
        "origin": str(trial.origin),
        "plan_key": trial.plan.key,
        **trial.plan.as_dict(),
        "expectation": null() if trial.expectation is None else asdict(trial.expectation),
        "round": trial.round,
    }


def trial_of(row: Mapping[str, Any], tried: Sequence[Attempt]) -> Trial:
    expected = row["expectation"]
    return Trial(
        campaign_id=row["campaign_id"],
        number=row["number"],
        plan=plan_with(KnobValues(row["knobs"]), *_plan_values(row)),
        origin=Origin(row["origin"]),
        attempts=tuple(tried),
        expectation=None if expected is None else Expectation(**expected),
        round=row["round"],
    )


@lru_cache(maxsize=20_000)
def plan_with(knobs: KnobValues, *values: Any) -> Plan:
    """By the values of its fields. The same few plans are read over and over, and each checks itself when made."""
    return Plan(**dict(zip(PLAN_FIELDS, values, strict=True)), knobs=knobs)


def attempt_row(attempt: Attempt, trial_id: int) -> dict[str, Any]:
    """The row of an attempt that is just planned."""
    row = {"trial_id": trial_id, "state": str(attempt.state), "reason": "", "log_tail": ""}
    return row | _fields(attempt, ("number", "job_name", "planned_at", "wait", "running_s"))


def node_columns(**nodes: Sequence[str]) -> dict[str, Any]:
    """Columns that list nodes, by their names; none for an empty list: that column stays as it is."""
    return {name: list(names) for name, names in nodes.items() if names}


def outcome_columns(outcome: Outcome) -> dict[str, Any]:
    """The columns of an attempt's row that hold its outcome; the measurement has rows of its own."""
    return {
        **_fields(outcome, _OF_OUTCOME),
        "verdict": str(outcome.verdict),
        "cause": None if outcome.cause is None else str(outcome.cause),
        "partial": null() if (part := outcome.partial) is None else {**asdict(part), "first_losses": _losses(part)},
    }


def attempt_of(row: Mapping[str, Any], measurement: Measurement | None) -> Attempt:
    outcome = None
    if row["verdict"] is not None:
        outcome = Outcome(
            verdict=Verdict(row["verdict"]),
            measurement=measurement,
            partial=None if row["partial"] is None else read_value(Measurement, row["partial"]),
            cause=None if row["cause"] is None else Cause(row["cause"]),
            **_stored(row, _OF_OUTCOME, attempts),
        )
    nodes: dict[str, Any] = {name: tuple(row[name] or ()) for name in _NODES}
    return Attempt(
        state=TrialState(row["state"]),
        outcome=outcome,
        **nodes,
        **_stored(row, _OF_ATTEMPT, attempts),
    )


def measurement_row(measurement: Measurement, attempt_id: int) -> dict[str, Any]:
    summary = _fields(measurement.summary, _OF_SUMMARY).items()
    return {
        "attempt_id": attempt_id,
        **_fields(measurement, _OF_MEASUREMENT),
        **{name: min(value, MAX_BIGINT) if isinstance(value, int) else value for name, value in summary},
        **{name: list(getattr(measurement, name)) for name in _LISTS},
        "first_losses": _losses(measurement),
        "profile": null() if measurement.profile is None else asdict(measurement.profile),
        "software": dict(measurement.software),
        "knobs": dict(measurement.knobs),
        "hardware": [asdict(kind) for kind in measurement.hardware],
    }


def step_rows(measurement: Measurement, attempt_id: int) -> list[dict[str, Any]]:
    seconds = (*measurement.warmup_times_s, *measurement.step_times_s)
    warmups = len(measurement.warmup_times_s)
    return [
        {"attempt_id": attempt_id, "number": number, "warmup": number < warmups, "seconds": value}
        for number, value in enumerate(seconds)
    ]


def measurement_of(row: Mapping[str, Any], times: Sequence[tuple[bool, float]]) -> Measurement:
    """times: whether a step was one of warm-up, and its seconds."""
    whole: dict[str, Any] = {name: tuple(row[name]) for name in _LISTS} | _in_lists(row)
    return Measurement(
        **whole,
        step_times_s=tuple(seconds for warmup, seconds in times if not warmup),
        warmup_times_s=tuple(seconds for warmup, seconds in times if warmup),
        profile=None if row["profile"] is None else read_value(Profile, row["profile"]),
        software=row["software"],
        knobs=row["knobs"],
    )


def listed_measurement_of(row: Mapping[str, Any]) -> Measurement | None:
    """From a row of LISTED_COLUMNS; None for an attempt without."""
    if row["mean_step_time_s"] is None:
        return None
    summary = MeasurementSummary(**_stored(row, _OF_SUMMARY, measurements))
    return Measurement(**_in_lists(row), step_times_s=(), stored_summary=summary)


def _in_lists(row: Mapping[str, Any]) -> dict[str, Any]:
    """What lists have of a measurement."""
    kinds = (HardwareKind(**{**kind, "nodes": tuple(kind["nodes"])}) for kind in row["hardware"])
    first = {name: tuple(map(float, row[name])) for name in OF_FIRST_STEPS}
    return {**_stored(row, _OF_MEASUREMENT, measurements), **first, "hardware": tuple(kinds)}


def _stored(row: Mapping[Any, Any], names: tuple[str, ...], table: Table) -> dict[str, Any]:
    """Fields of a row by their names. SQLite keeps in any column whatever it is given. Raises ValueError."""
    values = {name: row[name] for name in names}
    for name, kinds in _kinds_of(names, table):
        value = values[name]
        if not isinstance(value, kinds) or (isinstance(value, float) and not isfinite(value)):
            raise ValueError(f"{name} is {value!r}"[:100])
    return values


@cache
def _kinds_of(names: tuple[str, ...], table: Table) -> list[tuple[str, tuple[type, ...]]]:
    """The types that each field may have."""
    columns = [table.c[name] for name in names]
    kinds = [(str if isinstance(one.type, PlainText) else one.type.python_type, int) for one in columns]
    return [(one.name, (*kind, NoneType) if one.nullable else kind) for one, kind in zip(columns, kinds, strict=True)]


def _fields(source: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _losses(measurement: Measurement) -> list[float | str]:
    # A diverged loss is NaN or infinite, which JSON cannot say; float() reads their names.
    return [loss if isfinite(loss) else str(loss) for loss in measurement.first_losses]
