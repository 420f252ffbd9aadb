from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from replay_cells import Cell, TableCells, read_cells, read_past, smaller
from reported import GB

from meshtune.runners.outcome import Verdict
from meshtune.tuner.search.base import Observation

MakeTable = Callable[..., Path]
Settings = list[dict[str, object]]
BATCH_TOKENS = 16 * 1024


def only(table: TableCells) -> Cell:
    (cell,) = table.cells
    return cell


def outcome(make_table: MakeTable, settings: Settings, repeats: Sequence[Mapping[str, object]]) -> Observation:
    """What became of the first setting, measured as the repeats say."""
    first = settings[0] | {"step_time_s": None}
    table = read_cells(make_table(*(first | dict(one) for one in repeats), *settings[1:]))
    assert only(table).merged == len(repeats) - 1
    return next(iter(only(table).outcomes.values()))


def test_a_cell_holds_every_setting_with_what_became_of_it(make_table: MakeTable, settings: Settings) -> None:
    settings[1] |= {"status": "oom", "step_time_s": None}
    settings[2] |= {"status": "fail", "step_time_s": None}
    settings[3] |= {"mem_gb": 30}

    cell = only(read_cells(make_table(*settings)))

    found = list(cell.outcomes.values())
    assert [seen.plan for seen in found] == list(cell.outcomes)
    assert [seen.verdict for seen in found] == [Verdict.OK, Verdict.OOM, Verdict.CRASHED] + [Verdict.OK] * 17
    assert found[3] == Observation(
        plan=found[3].plan,
        verdict=Verdict.OK,
        score=BATCH_TOKENS / 1.3,
        step_time_s=1.3,
        peak_bytes=30 * GB,
    )
    assert (cell.ok, cell.best) == (18, BATCH_TOKENS / 1.0)
    assert (found[1].peak_bytes, found[0].peak_bytes) == (None, None)


def test_a_setting_that_ran_out_of_memory_once_and_never_ran_is_out_of_memory(
    make_table: MakeTable, settings: Settings
) -> None:
    seen = outcome(make_table, settings, [{"status": "fail"}, {"status": "oom"}])
    assert (seen.verdict, seen.score, seen.step_time_s) == (Verdict.OOM, None, None)


def test_a_search_is_told_the_settings_and_the_training_but_no_outcome(
    make_table: MakeTable, settings: Settings
) -> None:
    cell = only(read_cells(make_table(*settings)))
    slower = [row | {"step_time_s": 99.0 - at, "status": "ok"} for at, row in enumerate(settings)]
    other = only(read_cells(make_table(*slower[::-1])))

    task, same = cell.task(0.05), other.task(0.05)

    assert set(task.space) == set(cell.outcomes)
    assert list(task.space) == list(same.space)
    assert (task.training, task.tolerance, task.past) == (cell.training, 0.05, ())
    assert task.training.cluster == task.space.context.cluster
    assert task.space.context.global_batch_size == 16


def test_the_past_is_every_smaller_training_on_the_same_kind_of_cluster(
    make_table: MakeTable, settings: Settings
) -> None:
    half = {"gpus": 4, "gpus_per_node": 4, "tp": 1, "pp": 2, "dp": 2}
    two = {"gpus": 16, "nodes": 2, "tp": 2, "pp": 2, "dp": 4, "grad_accum": 2}
    other = half | {"gpu_mem_gb": 40, "hardware": "A100-40GB (8/node)"}
    path = make_table(*settings, half, half | {"step_time_s": 2.5}, half | {"seq_len": 2048}, two, other)
    cell = only(read_cells(path))

    past = read_past(path)

    assert sorted(len(one.seen) for one in past) == [1, 1, 1, 1, 20]
    known = smaller(past, cell)
    assert [(one.training.cluster.devices, one.training.model.seq_len) for one in known] == [(4, 1024), (4, 2048)]
    assert [[seen.step_time_s for seen in one.seen] for one in known] == [[2.0], [1.5]]
    assert replace(cell, past=known).task(0.05).past == known
