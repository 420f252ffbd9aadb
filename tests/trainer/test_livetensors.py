"""Live tensors are counted to the byte, sub-classes and resized storages included, and watching leaves no trace."""

from __future__ import annotations

from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from meshtune.runners.trainer.timing.measure import LiveTensors

KIB = 1024
ROOT = Path(__file__).parents[2]


def test_a_tensor_counts_until_it_is_gone_and_views_count_once():
    with LiveTensors() as live:
        one = torch.zeros(KIB, dtype=torch.uint8)
        other = torch.zeros(2 * KIB, dtype=torch.uint8)
        view = one[10:]
        assert (live.bytes, live.peak_bytes) == (3 * KIB, 3 * KIB)
        del one, other
        assert (live.bytes, live.peak_bytes) == (KIB, 3 * KIB)
        del view
    assert (live.bytes, live.peak_bytes) == (0, 3 * KIB)


def test_temporaries_of_the_backward_pass_count():
    weight = torch.zeros(64, 64, requires_grad=True)
    with LiveTensors() as live:
        (weight.exp() * 2).sum().backward()
    # exp, its product, the sum, two gradients on the way and the one that stays: at least the last in any case.
    assert live.bytes >= 64 * 64 * 4
    assert live.peak_bytes >= 3 * 64 * 64 * 4


def test_a_resized_storage_counts_with_its_size():
    with LiveTensors() as live:
        tensor = torch.zeros(KIB, dtype=torch.uint8)
        tensor.untyped_storage().resize_(0)
        assert live.bytes == 0
        tensor.untyped_storage().resize_(4 * KIB)
        assert (live.bytes, live.peak_bytes) == (4 * KIB, 4 * KIB)


def test_tensors_without_memory_do_not_count():
    with LiveTensors() as live, torch.device("meta"):
        kept = torch.zeros(KIB)
    with live, FakeTensorMode():
        planned = torch.zeros(KIB)
    assert (live.peak_bytes, kept.device.type, planned.device.type) == (0, "meta", "cpu")


def test_weights_gradients_and_the_optimizers_state_are_all_counted(run_job, make_job):
    job = make_job(plan={"micro_batch_size": 1}, model={"vocab": 40_000, "seq_len": 4})
    (peak,) = run_job(job).measurement.peak_memory_bytes
    states = 16 * job.model.parameters  # fp32 weights, gradients and two moments
    assert states < peak < 1.6 * states
