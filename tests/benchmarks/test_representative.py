"""Our trainer and the scripts beside it run the same plans of the same model."""

from __future__ import annotations

import pytest
import representative

from meshtune.search_spaces.plan import Plan

pytestmark = pytest.mark.long

SMALL = ["--ranks=4", "--hidden=128", "--layers=2", "--seq-len=32", "--steps=3", "--rounds=1"]
RUNS = [
    ("pipeline", Plan(pp=2, micro_batch_size=4, grad_accum_steps=4)),
    ("zero", Plan(dp=2, micro_batch_size=8, zero_stage=2)),
]


def test_plans_are_timed_by_both_and_one_that_cannot_run_is_told(monkeypatch, capsys):
    monkeypatch.setattr(representative, "plans", lambda ranks: [*RUNS, ("absent", RUNS[1][1])])
    assert representative.main(SMALL) == 1
    told = capsys.readouterr().out
    rows = [line.split("|")[1:-1] for line in told.splitlines() if line.startswith("| tp")]
    assert [(row[0].strip(), row[1].strip()) for row in rows] == [(plan.key, script) for script, plan in RUNS]
    assert all(float(row[2]) > 0 and float(row[3]) > 0 for row in rows)
    assert "absent.py" in told
    last = told.splitlines()[-1]
    assert last.startswith("spearman ")
    assert last.endswith(" over 2 plans")
