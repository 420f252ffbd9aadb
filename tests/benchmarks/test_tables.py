from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tables import CellKey, Status, TableError, cells, read_table

MakeTable = Callable[..., Path]


def test_a_row_holds_what_the_table_states_and_none_where_it_states_nothing(make_table: MakeTable) -> None:
    rows = read_table(make_table({}, {"status": "oom", "step_time_s": None, "sp": 0}))

    assert (rows[0].tp, rows[0].step_time_s, rows[0].mem_gb, rows[0].sp) == (2, 1.5, None, None)
    assert (rows[1].status, rows[1].step_time_s, rows[1].sp) == (Status.OOM, None, 0)
    assert rows[1].place == "table.csv, line 3"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tp": "two"}, "table.csv, line 3, column tp: must be a whole number, at least 1, not 'two'"),
        ({"tp": 0}, "table.csv, line 3, column tp: must be a whole number, at least 1, not '0'"),
        ({"tp": "2.0"}, "table.csv, line 3, column tp: must be a whole number, at least 1, not '2.0'"),
        ({"step_time_s": "nan"}, "table.csv, line 3, column step_time_s: must be a positive number, not 'nan'"),
        ({"step_time_s": 0}, "table.csv, line 3, column step_time_s: must be a positive number, not '0'"),
        ({"mfu": -1}, "table.csv, line 3, column mfu: must be a number, at least 0, not '-1'"),
        ({"status": "fine"}, "table.csv, line 3, column status: must be one of ok, oom, fail, not 'fine'"),
        ({"gpus": None}, "table.csv, line 3, column gpus: must be stated"),
    ],
)
def test_a_wrong_value_is_refused_with_its_file_line_and_column(
    make_table: MakeTable, change: dict[str, object], message: str
) -> None:
    with pytest.raises(TableError) as error:
        read_table(make_table({}, change))
    assert str(error.value) == message


def test_a_missing_column_is_refused_by_its_name(make_table: MakeTable) -> None:
    with pytest.raises(TableError, match=r"^table.csv, line 1: column micro_batch is missing$"):
        read_table(make_table({}, without="micro_batch"))


def test_a_cell_holds_the_rows_of_one_model_size_length_and_batch(make_table: MakeTable) -> None:
    rows = read_table(make_table({}, {"global_batch": 32}, {"tp": 4}))

    found = cells(rows)

    assert {key: [row.line for row in members] for key, members in found.items()} == {
        CellKey("gpt-small", 8, 1024, 16): [2, 4],
        CellKey("gpt-small", 8, 1024, 32): [3],
    }
