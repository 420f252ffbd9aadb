"""Why two combinations are ruled out: schedules that split the backward pass, with ZeRO 3 and selective recomputation.

These tests run what `require_supported` refuses. When torch learns to do it right they fail, and the rules
split-backward-zero3 and split-backward-selective can go.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runners.outcome import read_result
from runners.trainer.job import Job, render_job

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
from pathlib import Path
from runners.trainer import main
main.require_supported = lambda job: None
for name in sys.argv[1:]:
    main.main([name + "/job.json", "--directory", name])
"""


@pytest.mark.parametrize("schedule", ["zbv", "zero_bubble"])
def test_split_backward_passes_train_wrongly_under_zero3(schedule, tmp_path, run_job, make_job):
    model = {"layers": 4}
    plan = {"pp": 2, "dp": 2, "vpp": 2, "schedule": schedule}
    right = run_job(make_job(plan=plan | {"zero_stage": 2}, model=model)).losses
    run_unchecked(make_job(plan=plan | {"zero_stage": 3}, model=model), tmp_path)
    measurement = read_result(tmp_path).measurement
    assert measurement is not None
    wrong = measurement.first_losses
    assert wrong[0] == pytest.approx(right[0], abs=1e-4)
    assert max(abs(one - other) for one, other in zip(wrong, right, strict=True)) > 1e-3


def test_split_backward_passes_refuse_selective_recomputation(tmp_path, make_job):
    plan = {"pp": 2, "vpp": 2, "schedule": "zbv", "recompute": "selective"}
    output = run_unchecked(make_job(plan=plan, model={"layers": 4}), tmp_path)
    assert (
        "You are only allowed to backward once on any region computed under selective activation checkpoint" in output
    )


def run_unchecked(job: Job, directory: Path) -> str:
    (directory / "job.json").write_text(render_job(job), encoding="utf-8")
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(directory)]
    finished = subprocess.run(command, cwd=ROOT, check=True, timeout=120, capture_output=True, text=True)
    return finished.stdout
