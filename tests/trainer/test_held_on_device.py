"""Memory as it is counted: what a process held of an accelerator, and live tensors to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from places import TINY, cluster
from torch._subclasses.fake_tensor import FakeTensorMode

from meshtune.runners.trainer.timing.measure import CONTEXT_BYTES, LiveTensors, held_on_device
from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.physics.framework_profiles import MEGATRON_CORE, TRAINER_BFLOAT16
from meshtune.search_spaces.physics.training import USABLE_SHARE, Training, outside_bytes, usable_bytes

MIB, GIB = 2**20, 2**30
WHOLE = 80 * GIB


def test_the_context_and_what_libraries_take_later_are_held_too():
    assert held_on_device(40 * GIB, 500 * MIB, 900 * MIB, WHOLE) == 40 * GIB + 900 * MIB


def test_what_others_used_from_the_start_is_not_held():
    alone = held_on_device(40 * GIB, CONTEXT_BYTES, CONTEXT_BYTES + 300 * MIB, WHOLE)
    beside = held_on_device(40 * GIB, 9 * GIB + CONTEXT_BYTES, 9 * GIB + CONTEXT_BYTES + 300 * MIB, WHOLE)
    assert beside == alone


@pytest.mark.parametrize(
    ("at_start", "at_end", "whole"),
    [
        (20 * GIB, 500 * MIB, WHOLE),  # others have ended meanwhile
        (0, -5 * MIB, WHOLE),  # the reserve was read after it had grown
        (0, 0, 0),  # the device does not say
    ],
)
def test_no_less_is_held_than_the_allocator_reserved(at_start, at_end, whole):
    assert held_on_device(40 * GIB, at_start, at_end, whole) == 40 * GIB


def test_no_more_is_held_than_the_device_has():
    assert held_on_device(79 * GIB, 500 * MIB, 2 * GIB, WHOLE) == WHOLE


def training(kind: DeviceKind, memory_bytes: int = WHOLE, framework=TRAINER_BFLOAT16) -> Training:
    return Training(TINY, cluster(kind=kind, memory_bytes=memory_bytes), framework)


def test_what_is_predicted_and_may_be_used_counts_what_is_measured():
    ours, others = training(DeviceKind.CUDA), training(DeviceKind.CUDA, framework=MEGATRON_CORE["bfloat16"])
    assert outside_bytes(others) == 0 < outside_bytes(ours) < CONTEXT_BYTES
    assert usable_bytes(ours) - outside_bytes(ours) == pytest.approx(usable_bytes(others))
    assert usable_bytes(others) == USABLE_SHARE[DeviceKind.CUDA] * WHOLE
    assert usable_bytes(training(DeviceKind.CPU)) == WHOLE
    assert usable_bytes(training(DeviceKind.CUDA, memory_bytes=GIB)) == GIB


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
