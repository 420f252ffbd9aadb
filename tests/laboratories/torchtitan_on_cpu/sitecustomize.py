"""torchtitan on a machine without an accelerator: what must differ before its first module is imported.

torchtitan takes CUDA where torch finds no device (tools/utils.py, get_device_info), asks the device for memory that a
CPU does not count, and imports Triton, Hugging Face's datasets and TensorBoard, of which these tests use nothing."""

from __future__ import annotations

import resource
import sys
import types
from types import SimpleNamespace
from typing import Any

import torch
import torch._utils


class _Unused(types.ModuleType):
    """A module whose names can be imported, and not used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for _name in (
    "torchtitan.models.moe.kernels",  # 0.2
    "torchtitan.distributed.minimal_async_ep.kernels",  # 0.3
    *("datasets", "datasets.distributed", "tokenizers", "tensorboard", "torch.utils.tensorboard"),
):
    sys.modules[_name] = _Unused(_name)

torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.get_device_name = lambda *_: "CPU"
torch.cpu.get_device_properties = lambda *_: SimpleNamespace(total_memory=2**34)
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda *_: None
torch.cpu.memory_stats = lambda *_: {
    "reserved_bytes.all.peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
}
