"""What a process held of an accelerator: the allocator's reserve and what is beside it, without other processes' use.

The numbers stand for what `torch.cuda.mem_get_info` would tell; nothing here runs on one."""

from __future__ import annotations

import pytest
from places import TINY, cluster

from meshtune.runners.trainer.timing.measure import CONTEXT_BYTES, held_on_device
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
