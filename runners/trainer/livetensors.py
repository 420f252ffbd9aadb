"""Counts the bytes of all tensors that live on the CPU, exactly and from the inside, as CUDA's allocator does on a GPU.

Every operator's results pass `__torch_dispatch__`; a storage counts from the first tensor that shows it until it is
freed. It costs about as much as the small steps it watches, so it never runs while steps are timed. Not seen: what
libraries allocate behind torch's back (gloo's buffers), and tensors made before it started.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as are all of the mode's own methods
    """While entered: bytes and peak_bytes of the storages made since. What is made stays known after leaving."""

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
        """Whether its bytes are to be counted."""
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
