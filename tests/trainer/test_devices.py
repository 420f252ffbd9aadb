"""The device of a rank, where this machine can say something about it: torch's CPU build sees no accelerator."""

from __future__ import annotations

import pytest
import torch

from meshtune.runners.trainer.environment import torch_build
from meshtune.runners.trainer.parallel.mesh import choose_device
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
