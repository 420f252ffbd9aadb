from __future__ import annotations

import json
from pathlib import Path

import pytest
from published import flops_per_token, main, predict
from published_rows import Published, Reading, rows

ROWS = rows()
BY_NAME = {(row.group, row.name, row.reading): row for row in ROWS}
README = BY_NAME["Megatron 2021", "175B, README", Reading.HARDWARE]


def named(row: Published) -> str:
    return f"{row.group} {row.name}, {row.reading}"


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_every_setting_occupies_the_published_devices(row: Published) -> None:
    assert {plan.tp * plan.pp * plan.cp * plan.dp for plan in row.plans} == {row.devices}
    assert row.training.cluster.devices == row.devices


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
