"""The road that ZeRO 0 takes on CUDA, torch's replicate(), gives the same losses; driven here over gloo.

Says nothing about its speed, nor about NCCL.
"""

from __future__ import annotations

import pytest

LONG = pytest.mark.long

REPLICATE = """
import meshtune.runners.trainer.train as train
from meshtune.runners.trainer.parallel.sharding import Sharding
train.choose_sharding = lambda job: Sharding.REPLICATE
"""
TIED: dict[str, object] = {"tied_head": True}
DEEP: dict[str, object] = {"layers": 4}
MIXTURE: dict[str, object] = {"experts": 4, "top_k": 2}

CASES = [
    pytest.param(TIED, {"dp": 2}, id="dp2"),
    pytest.param(TIED | DEEP, {"pp": 2, "dp": 2, "vpp": 2, "schedule": "zbv"}, id="zbv", marks=LONG),
    pytest.param(TIED, {"tp": 2, "dp": 2, "micro_batch_size": 2}, id="tp2 dp2"),
    pytest.param(MIXTURE, {"dp": 2, "ep": 2, "recompute": "selective"}, id="moe dp2 ep2 selective"),
    pytest.param(
        MIXTURE | DEEP, {"dp": 2, "ep": 2, "pp": 2, "vpp": 2, "schedule": "zbv"}, id="moe dp2 ep2 zbv", marks=LONG
    ),
]


@pytest.mark.parametrize(("model", "plan"), CASES)
def test_replicate_does_not_change_the_losses(model, plan, run_job, make_job):
    reference = run_job(make_job(plan={"micro_batch_size": 8}, model=model)).losses
    losses = run_job(make_job(plan=plan, model=model), REPLICATE).losses
    assert losses == pytest.approx(reference, abs=1e-4)
