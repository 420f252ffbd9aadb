"""Why two combinations are ruled out: schedules that split the backward pass, with ZeRO 3 and selective recomputation.

These tests run what `require_supported` refuses. When torch learns to do it right they fail, and the rules
split-backward-zero3 and split-backward-selective can go.
"""

from __future__ import annotations

import pytest

SCHEDULES = ["zbv", pytest.param("zero_bubble", marks=pytest.mark.long)]

UNCHECKED = "import meshtune.runners.trainer.main as trainer_main; trainer_main.require_supported = lambda job: None"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_split_backward_passes_train_wrongly_under_zero3(schedule, run_job, make_job):
    model = {"layers": 4}
    plan = {"pp": 2, "dp": 2, "vpp": 2, "schedule": schedule}
    right = run_job(make_job(plan=plan | {"zero_stage": 2}, model=model)).losses
    wrong = run_job(make_job(plan=plan | {"zero_stage": 3}, model=model), UNCHECKED).losses
    assert wrong[0] == pytest.approx(right[0], abs=1e-4)
    assert max(abs(one - other) for one, other in zip(wrong, right, strict=True)) > 1e-3


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_split_backward_passes_refuse_selective_recomputation(schedule, run_job, make_job):
    plan = {"pp": 2, "vpp": 2, "schedule": schedule, "recompute": "selective"}
    finished = run_job(make_job(plan=plan, model={"layers": 4}), UNCHECKED)
    assert finished.status == 1
    assert "only allowed to backward once on any region computed under selective" in finished.output
