"""The trials of a campaign as one flat table, a row for each, for spreadsheets and data frames: CSV, Parquet, or JSON.

A number that was not measured is empty; nothing predicted stands in a measured column. Of a trial with several attempts
the last one counts, as everywhere; device-hours are of all. JSON is the record (`tuner.results.record`), with more.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from io import BytesIO, StringIO
from typing import Any

from meshtune.runners.extras import require_extra
from meshtune.search_spaces.knob_values import word
from meshtune.search_spaces.plan import AXES, PLAN_FIELDS
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.objective import Yardstick, yardstick_of
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.results.quantities import QUANTITIES, TIMES, numbers_of, times_of
from meshtune.tuner.results.record import record_of

KNOB = "knob_"
Cell = bool | int | float | str | datetime | None
# What a spreadsheet takes for a formula at the beginning of a cell (OWASP, "CSV Injection").
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class TableFormat(StrEnum):
    """json: the record of the campaign, of which csv and parquet are the rows."""

    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"

    @property
    def media_type(self) -> str:
        return {"csv": "text/csv", "parquet": "application/vnd.apache.parquet", "json": "application/json"}[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """columns: names with the type of their cells, of which each may be None. rows: in the order of planning."""

    columns: Mapping[str, type]
    rows: tuple[tuple[Cell, ...], ...]


def table_of(campaign: Campaign, trials: Sequence[Trial]) -> Table:
    """Columns are the same for all campaigns, but for those of the knobs."""
    knobs = [knob.name for knob in campaign.spec.knobs]
    by_name = [_row(campaign, yardstick_of(campaign.spec), trial, knobs) for trial in trials]
    kinds = {**_KINDS, **{f"{KNOB}{name}": _kind([row[f"{KNOB}{name}"] for row in by_name]) for name in knobs}}
    columns = {name: kinds[name] for name in (*_ABOUT, *PLAN_FIELDS, *(KNOB + name for name in knobs), *_NUMBERS)}
    rows = tuple(tuple(_cell(row[name], kind) for name, kind in columns.items()) for row in by_name)
    return Table(columns=columns, rows=rows)


def data_of(campaign: Campaign, trials: Sequence[Trial], format: TableFormat) -> bytes:
    """The trials in a format. Raises MissingExtra for Parquet without its library."""
    if format is TableFormat.JSON:
        return record_of(campaign, trials)
    table = table_of(campaign, trials)
    return csv_of(table) if format is TableFormat.CSV else parquet_of(table, {"campaign": campaign.label})


def csv_of(table: Table) -> bytes:
    """UTF-8 with a line of names. A text that a spreadsheet would take for a formula has an apostrophe before it."""
    written = StringIO()
    writer = csv.writer(written, lineterminator="\r\n")  # RFC 4180; a text with either is quoted
    writer.writerow(table.columns)
    writer.writerows(map(_written, row) for row in table.rows)
    return written.getvalue().encode()


def parquet_of(table: Table, metadata: Mapping[str, str]) -> bytes:
    """Raises MissingExtra."""
    require_extra("parquet", "writing Parquet")
    import pyarrow
    import pyarrow.parquet

    types: Mapping[type, Any] = {
        bool: pyarrow.bool_(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        str: pyarrow.string(),
        datetime: pyarrow.timestamp("us", tz="UTC"),
    }
    schema = pyarrow.schema([(name, types[kind]) for name, kind in table.columns.items()], metadata=dict(metadata))
    columns = [[row[place] for row in table.rows] for place in range(len(table.columns))]
    written = BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), written)
    return written.getvalue()


def _row(campaign: Campaign, yardstick: Yardstick, trial: Trial, knobs: Sequence[str]) -> dict[str, Any]:
    last, expected = trial.last, trial.expectation
    return {
        "campaign": campaign.id,
        "simulated": campaign.simulated,
        **{name: getattr(trial, name) for name in ("number", "origin", "round", "state")},
        **{name: getattr(trial.outcome, name, None) for name in ("verdict", "failure", "reason")},
        "plan": trial.plan.key,
        **trial.plan.axes_as_dict(),
        **{KNOB + name: trial.plan.knobs.get(name) for name in knobs},
        **numbers_of(yardstick, trial.measurement, QUANTITIES),
        "objective_unit": yardstick.unit,
        **{name: getattr(expected, name.removeprefix("predicted_"), None) for name in _EXPECTED},
        **times_of(last),
        "nodes": " ".join(last.nodes) or None,
        "attempts": len(trial.attempts),
        "device_hours": trial.device_s / 3600,
    }


_ABOUT = ("campaign", "simulated", "number", "origin", "round", "state", "verdict", "failure", "reason", "plan")
_EXPECTED = ("predicted_step_time_s", "predicted_step_time_low_s", "predicted_step_time_high_s", "p_fits")
_NUMBERS: Mapping[str, type] = {
    **{one.name: one.kind for one in QUANTITIES},
    "objective_unit": str,
    **dict.fromkeys(_EXPECTED, float),
    **dict.fromkeys(TIMES, datetime),
    "nodes": str,
    "attempts": int,
    "device_hours": float,
}
_KINDS: Mapping[str, type] = {
    **dict.fromkeys(_ABOUT, str),
    **dict.fromkeys(("number", "round"), int),
    **_NUMBERS,
    "simulated": bool,
    # A member of an enumeration is a word.
    **{axis.name: axis.kind if axis.kind in (bool, int) else str for axis in AXES},
}


def _kind(values: Sequence[Cell]) -> type:
    """The type of a knob's column: text where its values are of several types."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return float
    return kinds.pop() if len(kinds) == 1 else str


def _cell(value: Any, kind: type) -> Cell:
    if value is None:
        return None
    typed: Any = value if isinstance(value, kind) else word(value) if kind is str else kind(value)
    # What jobs write may hold halves of characters, which no file can.
    cell: Cell = typed.encode("utf-8", "replace").decode() if isinstance(typed, str) else typed
    return cell


def _written(cell: Cell) -> Cell:
    if isinstance(cell, datetime):
        return cell.isoformat().replace("+00:00", "Z")
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
