from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from published import flops_per_token, main, predict
from published_rows import Published, Reading, rows

from meshtune.search_spaces.plan import Plan, Schedule

ROWS = rows()
BY_NAME = {(row.group, row.name, row.reading): row for row in ROWS}
README = BY_NAME["Megatron 2021", "175B, README", Reading.HARDWARE]


def named(row: Published) -> str:
    return f"{row.group} {row.name}, {row.reading}"


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_every_setting_occupies_the_published_devices(row: Published) -> None:
    assert {plan.tp * plan.pp * plan.cp * plan.dp for plan in row.plans} == {row.devices}
    assert row.training.cluster.devices == row.devices


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_the_settings_of_one_row_train_the_same_batch(row: Published) -> None:
    assert len({plan.global_batch_size for plan in row.plans}) == 1


@pytest.mark.parametrize("row", [row for row in ROWS if "Llama" not in row.group], ids=named)
def test_stages_and_chunks_have_whole_layers_and_interleaving_whole_rounds(row: Published) -> None:
    for plan in row.plans:
        assert row.training.model.layers % (plan.pp * plan.vpp) == 0
        assert (plan.vpp > 1) == (plan.schedule is Schedule.INTERLEAVED)
        assert plan.vpp == 1 or plan.grad_accum_steps % plan.pp == 0


def test_models_have_the_published_number_of_weights() -> None:
    for row in ROWS:
        if row.group == "Megatron-Core r0.8":
            assert row.training.model.parameters / 1e9 == pytest.approx(float(row.name.removesuffix("B")), rel=0.03)


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_a_prediction_accounts_for_the_whole_step(row: Published) -> None:
    prediction = predict(row)
    assert sum(prediction.shares.values()) == pytest.approx(1)
    if row.reading in (Reading.MODEL, Reading.CAUSAL, Reading.HARDWARE):
        tokens = prediction.plan.global_batch_size * row.training.model.seq_len
        work = flops_per_token(row.training, row.reading) * tokens
        assert prediction.value * 1e12 * row.devices * prediction.step_s == pytest.approx(work)


def test_where_no_setting_should_fit_the_fastest_of_all_is_taken() -> None:
    huge = replace(README, plans=(Plan(dp=1024, micro_batch_size=64), Plan(dp=1024, micro_batch_size=32)))
    prediction = predict(huge)
    assert prediction.fits < 0.5
    assert prediction.value > prediction.other


def test_the_file_holds_every_row_and_a_constant_moves_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    assert main(["--json", str(before)]) == 0
    assert main(["--constant", "matmul_efficiency=0.5", "--json", str(after)]) == 0
    slow, fast = (json.loads(path.read_text(encoding="utf-8"))["rows"] for path in (after, before))
    assert len(fast) == len(slow) == len(ROWS)
    assert all(one["step_s"] > other["step_s"] for one, other in zip(slow, fast, strict=True))
    assert "175B, README" in capsys.readouterr().out


def test_an_unknown_constant_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--constant", "luck=2"])
    assert exit_.value.code == 2
    assert "no constant 'luck'" in capsys.readouterr().err
