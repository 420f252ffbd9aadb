"""Which attention kernels run: seen by torch's profiler in one forward pass, since torch chooses by device, number
format and shapes, and falls back on a slow one silently.

A compiled layer is looked at compiled. torch chose when it was traced: a fused kernel is an operator of the graph and
called by the same name, cuDNN's too (torch 2.9 to 2.13); the one without (math) was taken apart and has no name left.
Inductor may have put a fused one in its place, which then is what ran."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.autograd.profiler import profile

MATH = "math"
# The operators that torch's scaled_dot_product_attention chooses from.
_PREFIX = "aten::_scaled_dot_product_"
_KERNELS: Mapping[str, str] = {
    f"{_PREFIX}flash_attention": "flash",
    f"{_PREFIX}flash_attention_for_cpu": "flash_for_cpu",
    f"{_PREFIX}efficient_attention": "efficient",
    f"{_PREFIX}cudnn_attention": "cudnn",
    f"{_PREFIX}fused_attention_overrideable": "overrideable",
    f"{_PREFIX}attention_math": MATH,
}


@contextmanager
def noting_attention(model: nn.Module, compiled: bool = False) -> Iterator[set[str]]:
    """The kernels of the model's first forward pass inside, in a set that has them when it is over. compiled: its
    layers run compiled, and have been before."""
    kernels: set[str] = set()
    running: list[profile] = []

    def start(*_: Any) -> None:
        first.remove()
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # its starts and stops are no news for the log
        running.append(profile(use_kineto=True))
        running[0].__enter__()  # type: ignore[no-untyped-call]

    def stop(*_: Any) -> None:
        last.remove()
        running[0].__exit__(None, None, None)  # type: ignore[no-untyped-call]
        results: Any = running[0].kineto_results
        names = {event.name() for event in results.events()}
        kernels.update(kernel for operator, kernel in _KERNELS.items() if operator in names)
        if compiled and not kernels:
            kernels.add(MATH)

    first, last = model.register_forward_pre_hook(start), model.register_forward_hook(stop)
    yield kernels
