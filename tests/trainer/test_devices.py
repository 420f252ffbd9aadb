"""The device of a rank, where this machine can say something about it: torch's CPU build sees no accelerator."""

from __future__ import annotations

import pytest
import torch

from meshtune.runners.trainer.environment import torch_build
from meshtune.runners.trainer.parallel.mesh import choose_device, device_index
from meshtune.runners.trainer.probe import visible_kind
from meshtune.search_spaces.cluster import DeviceKind

without_accelerator = pytest.mark.skipif(
    torch.accelerator.current_accelerator() is not None, reason="torch is built for an accelerator"
)


@without_accelerator
@pytest.mark.parametrize("kind", [DeviceKind.CUDA, DeviceKind.XPU])
def test_an_accelerator_that_is_not_there_is_refused_with_what_torch_is(kind):
    told = rf"the job asks for {kind}, but torch {torch.__version__.replace('+', '.')} is built for the CPU alone"
    with pytest.raises(RuntimeError, match=told):
        choose_device(kind, 0)


@without_accelerator
def test_without_an_accelerator_the_devices_are_the_cpu():
    assert visible_kind() is DeviceKind.CPU
    build = torch_build()
    assert (build.kind, build.devices, build.error) == ("cpu", (), "")


@pytest.mark.parametrize(("local_rank", "visible", "index"), [(0, 4, 0), (3, 4, 3), (0, 1, 0), (3, 1, 0)])
def test_a_rank_takes_its_own_device_or_the_one_that_it_is_shown(local_rank, visible, index):
    assert device_index(local_rank, visible) == index


def test_no_rank_shares_a_device_because_there_are_too_few():
    with pytest.raises(RuntimeError, match="local rank 6 has no device of its own: torch sees 6;"):
        device_index(6, 6)
