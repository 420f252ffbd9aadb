"""One rank's peak memory, and the cap that a CPU rank sets on itself. CPU: Linux only.

Tensors: counted by CUDA's allocator, on CPU by `LiveTensors`. Held: what CUDA's allocator reserved, on CPU resident
memory above what was there at the start, gloo's buffers and libraries' pages included."""

from __future__ import annotations

import resource
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
        """The most that tensors took; on CPU in the steps during which `live` was entered."""
        return torch.cuda.max_memory_allocated(self._device) if self.live is None else self.live.peak_bytes

    def held_bytes(self) -> int:
        """The most that this process took for them."""
        if self.live is None:
            return torch.cuda.max_memory_reserved(self._device)
        return max(0, status_bytes("VmHWM") - self._at_start)


@contextmanager
def capped(limit_bytes: int | None) -> Iterator[None]:
    """Let this process allocate `limit_bytes` more than it has now; what goes beyond fails as out of memory.

    RLIMIT_DATA counts private writable memory alone: torch's allocator then fails cleanly."""
    if limit_bytes is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (status_bytes("VmData") + limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


class LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as are all of the mode's own methods
    """While entered: bytes and peak_bytes of the storages made since, which stay known after leaving."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._watches: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._resize: Callable[..., Any] = torch.UntypedStorage.resize_

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it takes itself apart first; its local tensors and temporaries come by then
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and self._counts(leaf):
                self._see(leaf.untyped_storage())
        return out

    def _counts(self, tensor: Tensor) -> bool:
        # The storage is asked: DTensor plans with fake tensors, which claim to be on the CPU and hold nothing.
        return tensor.untyped_storage().device.type == "cpu"

    def __enter__(self) -> LiveTensors:
        # FSDP2 frees and refills storages in place, past the dispatcher.
        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = self._resize(storage, size)
            if storage._cdata in self._sizes:
                self._count(storage)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            self._watches[key] = weakref.ref(storage, lambda _: self._forget(key))
            self._count(storage)

    def _count(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self.bytes += size - self._sizes[storage._cdata]
        self._sizes[storage._cdata] = size
        self.peak_bytes = max(self.peak_bytes, self.bytes)

    def _forget(self, key: int) -> None:
        self.bytes -= self._sizes.pop(key, 0)
        self._watches.pop(key, None)
