"""Runs a program that insists on CUDA on CPUs: `python cuda_on_cpu.py PROGRAM ARGUMENTS`. A stand-in, for tests alone.

Megatron-Core names the device "cuda" for its buffers, whatever its process groups are made of. Here that name means the
host's memory, waits for the device and its random states do nothing, and a tensor says that it is one of CUDA's where
it is asked for its type's name. Arithmetic, groups and messages (gloo) are real.
"""

from __future__ import annotations

import functools
import runpy
import sys
from typing import Any

import torch

CPU = torch.device("cpu")


def install() -> None:
    """Before the program is imported, which takes some of these by name."""
    for name in ("empty", "zeros", "ones", "full", "tensor", "arange"):
        setattr(torch, name, _factory(getattr(torch, name)))
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *_args, **_more: self
    tensor.type = _type_of(tensor.type)
    cuda: Any = torch.cuda
    cuda.current_device = lambda: CPU
    cuda.synchronize = lambda *_: None
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *_args, **_more: torch.get_rng_state()
    cuda._lazy_call = lambda *_args, **_more: None


def _factory(make: Any) -> Any:
    @functools.wraps(make)
    def made(*args: Any, device: Any = None, **more: Any) -> Any:
        on_cuda = device is not None and torch.device(device).type == "cuda"
        return make(*args, device=CPU if on_cuda else device, **more)

    return made


def _type_of(type_of: Any) -> Any:
    @functools.wraps(type_of)
    def said(self: torch.Tensor, *args: Any, **more: Any) -> Any:
        answer = type_of(self, *args, **more)
        return answer.replace("torch.", "torch.cuda.", 1) if isinstance(answer, str) else answer

    return said


if __name__ == "__main__":
    install()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
