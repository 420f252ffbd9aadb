"""Ring attention gives the losses of one process: torch's ring, over gloo, with a CPU kernel under the CUDA one's name.

So places, balance, heads and the ring's own sums are checked; CUDA's kernels and NCCL are not. The trainer itself
refuses the ring on CPU, where torch calls its attention kernel by a name that the ring does not know.
"""

from __future__ import annotations

import pytest

SLOW, LONG = pytest.mark.slow, pytest.mark.long

UNCHECKED = "import meshtune.runners.trainer.main as trainer_main; trainer_main.require_supported = lambda job: None\n"
STAND_IN = (
    UNCHECKED
    + """
import torch
import meshtune.runners.trainer.parallel.tensor as ring

aten = torch.ops.aten
kernels = torch.library.Library("aten", "IMPL")

def forward(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, scale=scale
    )
    seed = torch.empty((), dtype=torch.int64)
    return out, logsumexp, None, None, query.shape[2], key.shape[2], seed, seed, torch.empty(0)

def backward(grad, query, key, value, out, logsumexp, _cum_q, _cum_k, _max_q, _max_k, dropout_p, is_causal, _seed,
             _offset, *, scale=None):
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, out, logsumexp, dropout_p, is_causal, scale=scale
    )

kernels.impl("_scaled_dot_product_flash_attention", forward, "CPU")
kernels.impl("_scaled_dot_product_flash_attention_backward", backward, "CPU")
ring.attend_causally = lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
"""
)
ALONE = """
from meshtune.runners.trainer.model import attend_causally
ring.RingAttention.__call__ = lambda self, query, key, value: attend_causally(query, key, value)
"""

PLANS = [
    pytest.param({"cp": 2}, marks=SLOW),
    pytest.param({"cp": 2, "tp": 2, "micro_batch_size": 8}, marks=LONG),
    pytest.param({"cp": 2, "dp": 2, "zero_stage": 3, "recompute": "full"}, marks=LONG),
    pytest.param({"cp": 2, "pp": 2, "vpp": 2, "schedule": "zbv"}, marks=LONG),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_ring_does_not_change_the_losses(plan, run_job, make_job):
    model = {"layers": 4}
    reference = run_job(make_job(plan={"micro_batch_size": 8}, model=model)).losses
    losses = run_job(make_job(plan=plan | {"context": "ring"}, model=model), STAND_IN).losses
    assert losses == pytest.approx(reference, abs=1e-4)


@SLOW
def test_without_the_ring_the_losses_differ(run_job, make_job):
    reference = run_job(make_job(plan={"micro_batch_size": 8})).losses
    alone = run_job(make_job(plan={"cp": 2, "context": "ring"}), STAND_IN + ALONE).losses
    assert max(abs(one - other) for one, other in zip(alone, reference, strict=True)) > 1e-4


@SLOW
def test_torch_has_no_ring_over_its_cpu_kernel(run_job, make_job):
    finished = run_job(make_job(plan={"cp": 2, "context": "ring"}), UNCHECKED)
    assert finished.status == 1
    assert "_scaled_dot_product_flash_attention_for_cpu" in finished.output
