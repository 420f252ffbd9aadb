"""Our trainer and the scripts beside it run the same plans of the same model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import representative
from representative import REFERENCES, Run

from meshtune.search_spaces.plan import Plan

SIZES = ["--hidden=128", "--layers=2", "--seq-len=32", "--steps=3", "--rounds=1"]
PIPELINE = Run("pipeline", Plan(pp=2, micro_batch_size=4, grad_accum_steps=4))
ZERO = Run("zero", Plan(dp=2, micro_batch_size=8, zero_stage=2))
ALONE = Run("production", Plan(micro_batch_size=8, grad_accum_steps=2))
LLAMA = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 64, "seq_len": 32}
GPT = LLAMA | {"kv_heads": 4, "norm": "layernorm", "activation": "gelu", "position": "learned", "tied_head": True}


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "runs"), [(4, [PIPELINE, ZERO]), (1, [ALONE, Run("production", ALONE.plan, compiled=True)])]
)
def test_plans_are_timed_by_both_and_one_that_cannot_run_is_named(monkeypatch, capsys, ranks, runs):
    monkeypatch.setattr(representative, "runs_of", lambda ranks: [*runs, Run("absent", runs[1].plan)])
    assert representative.main([f"--ranks={ranks}", *SIZES]) == 1
    said = capsys.readouterr().out
    rows = [line.split("|")[1:-1] for line in said.splitlines() if line.startswith("| tp")]
    assert [(row[0].strip(), row[1].strip()) for row in rows] == [(run.label, run.script) for run in runs]
    assert all(float(row[2]) > 0 and float(row[3]) > 0 for row in rows)
    assert "absent.py" in said
    last = said.splitlines()[-1]
    assert last.startswith("spearman ")
    assert last.endswith(" over 2 plans")


def test_one_device_needs_no_deepspeed_and_each_plan_runs_with_and_without_the_compiler():
    runs = representative.runs_of(1)
    assert len({run.label for run in runs}) == 12
    assert {run.script for run in runs} == {"production"}
    assert {run.compiled for run in runs} == {False, True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "dtype"),
    [pytest.param(LLAMA, "float32", id="llama", marks=pytest.mark.long), pytest.param(GPT, "bfloat16", id="gpt")],
)
def test_the_reference_learns_with_float32_weights_and_needs_no_launcher(tmp_path, model, dtype):
    plan = {"micro_batch_size": 4, "grad_accum_steps": 2, "recompute": "full"}
    job = {"model": model, "plan": plan, "dtype": dtype, "warmup_steps": 1, "steps": 3}
    (tmp_path / "reference.json").write_text(json.dumps(job), encoding="utf-8")
    command = [sys.executable, str(REFERENCES / "production.py"), "reference.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=True)
    record = json.loads(done.stdout.splitlines()[-1])
    assert len(record["step_times_s"]) == 3
    assert record["peak_held_bytes"] > 0
    # ln 64 = 4.16 at the start; tokens are random, so there is nothing to learn but their even distribution.
    assert record["first_losses"] == pytest.approx([4.16] * 4, abs=0.1)
