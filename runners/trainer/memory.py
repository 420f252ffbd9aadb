"""What one rank's memory peaks at, and the cap that a CPU rank sets on itself.

Two numbers. Tensors: on CUDA what the allocator gave out, on CPU the live tensors of a step (`trainer.livetensors`).
Held: on CUDA what the allocator reserved, on CPU resident memory above what was there at the start, which includes
the allocator's slack, gloo's buffers and libraries' pages; it is far from the first number. CPU: Linux only.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from meshtune.runners.trainer.livetensors import LiveTensors

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


def status_bytes(key: str) -> int:
    """One of this process's sizes in the kernel's book: VmRSS, VmHWM, VmData."""
    for line in STATUS.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise KeyError(f"{STATUS} has no {key}")


class PeakMemory:
    """The peaks since this object was made. live: to be entered while tensors are made; None where CUDA counts."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.live = LiveTensors() if device.type == "cpu" else None
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        with suppress(OSError):  # not allowed everywhere; then an earlier, higher peak would count
            CLEAR.write_text("5", encoding="ascii")  # proc(5): resets the peak resident set size
        self._at_start = status_bytes("VmRSS")

    def tensor_bytes(self) -> int:
        """The most that tensors took. On CPU: in the steps during which `live` was entered."""
        return torch.cuda.max_memory_allocated(self._device) if self.live is None else self.live.peak_bytes

    def held_bytes(self) -> int:
        """The most that this process took for them."""
        if self.live is None:
            return torch.cuda.max_memory_reserved(self._device)
        return max(0, status_bytes("VmHWM") - self._at_start)


@contextmanager
def capped(limit_bytes: int | None) -> Iterator[None]:
    """Let this process allocate `limit_bytes` more than it has now; what goes beyond fails as out of memory.

    RLIMIT_DATA, because it counts private writable memory alone: torch's allocator then fails cleanly, while a cap on
    the address space would count libraries as well. The cap is gone after the block, so that a failure can be told.
    """
    if limit_bytes is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (status_bytes("VmData") + limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
