"""The table of a campaign's trials: the same in every format, and as `show` and `best` have the numbers."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from datetime import datetime

import pyarrow.parquet
import pytest
from simulated_lab import HOSTILE, failing

from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knob_values import KnobValues
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.results.record import read_record
from meshtune.tuner.results.table import Table, TableFormat, csv_of, data_of, parquet_of, table_of

CAMPAIGN, TRIALS = failing()


def cells(table: Table) -> list[dict[str, object]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def read_back(text: str, kind: type) -> object:
    if text == "":
        return None
    if kind is bool:
        return text == "True"
    return datetime.fromisoformat(text) if kind is datetime else kind(text)


def test_every_trial_is_a_row_with_its_plan_its_numbers_and_what_was_expected():
    rows = cells(table_of(CAMPAIGN, TRIALS))
    assert [row["number"] for row in rows] == [trial.number for trial in TRIALS]
    for row, trial in zip(rows, TRIALS, strict=True):
        assert (row["tp"], row["recompute"], row["plan"]) == (trial.plan.tp, str(trial.plan.recompute), trial.plan.key)
        measured, expected = trial.measurement, trial.expectation
        assert (row["step_time_s"] is None) == (measured is None)
        if measured is not None:
            assert row["objective"] == yardstick_of(CAMPAIGN.spec).of(measured, measured.step_time_s)
            assert row["headroom_bytes"] == CAMPAIGN.spec.cluster.device.memory_bytes - measured.fullest_rank_bytes
        assert row["p_fits"] == (None if expected is None else expected.p_fits)


def test_csv_parquet_and_json_say_the_same():
    table = table_of(CAMPAIGN, TRIALS)
    written = list(csv.reader(io.StringIO(csv_of(table).decode())))
    assert written[0] == list(table.columns)
    kinds = list(table.columns.values())
    plain = [row for row, trial in zip(written[1:], TRIALS, strict=True) if trial.verdict is not Verdict.CRASHED]
    same = [row for row, trial in zip(table.rows, TRIALS, strict=True) if trial.verdict is not Verdict.CRASHED]
    assert [tuple(map(read_back, row, kinds)) for row in plain] == [
        tuple(cell or None if cell == "" else cell for cell in row) for row in same
    ]
    parquet = pyarrow.parquet.read_table(io.BytesIO(parquet_of(table, {"campaign": CAMPAIGN.label})))
    assert parquet.to_pylist() == cells(table)
    assert parquet.schema.metadata[b"campaign"] == f"{CAMPAIGN.id} (simulated)".encode()
    record = read_record(data_of(CAMPAIGN, TRIALS, TableFormat.JSON))
    assert table_of(record.campaign, record.trials) == table


@pytest.mark.parametrize("begin", ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1"])
def test_a_text_that_a_spreadsheet_would_compute_is_a_text_there(begin):
    table = Table(columns={"reason": str, "number": int}, rows=((begin, -1),))
    read = list(csv.reader(io.StringIO(csv_of(table).decode(), newline="")))
    assert read[1] == [f"'{begin}", "-1"]


def test_the_words_of_a_job_are_no_formula_in_a_spreadsheet():
    crashed = next(
        row
        for row in csv.DictReader(io.StringIO(csv_of(table_of(CAMPAIGN, TRIALS)).decode()))
        if row["verdict"] == "crashed"
    )
    assert crashed["reason"] == f"'{HOSTILE}"


@pytest.mark.parametrize(
    ("values", "kind", "shown"),
    [
        ((1, 2), int, [1, 2]),
        ((1, 2.5), float, [1.0, 2.5]),
        ((1, "auto"), str, ["1", "auto"]),
        ((True, 3), str, ["true", "3"]),
    ],
)
def test_a_knob_is_a_column_and_one_of_several_types_is_text(values, kind, shown):
    spec = replace(CAMPAIGN.spec, knobs=(Knob(name="own", values=values),))
    trials = [replace(TRIALS[0], plan=replace(TRIALS[0].plan, knobs=KnobValues({"own": value}))) for value in values]
    table = table_of(replace(CAMPAIGN, spec=spec), [*trials, TRIALS[1]])
    assert table.columns["knob_own"] is kind
    assert [row["knob_own"] for row in cells(table)] == [*shown, None]
