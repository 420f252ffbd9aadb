"""What is written down for speed alone is written later, by a thread of its own: no request waits for the one writer.

What was not written when the service ends, or could not be, is made again by whoever asks for it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from meshtune.tuner.store import StoreError

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
# So many are written at once.
CHUNK = 50
_log = logging.getLogger(__name__)


class Later(Generic[Key, Value]):
    """write: keeps values by key. `put` is for any thread; the others for the one that starts and stops it."""

    def __init__(self, name: str, write: Callable[[Mapping[Key, Value]], None]) -> None:
        self._name = name
        self._write = write
        self._waiting: queue.SimpleQueue[tuple[Key, Value] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, key: Key, value: Value) -> None:
        self._waiting.put((key, value))

    def start(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self, limit_s: float) -> bool:
        """End the thread; whether it has ended within so long."""
        self._stopping.set()
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(limit_s)
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            entries = [self._waiting.get()]
            while len(entries) < CHUNK and not self._waiting.empty():
                entries.append(self._waiting.get())
            try:
                if made := dict(entry for entry in entries if entry is not None):
                    self._write(made)
            except StoreError as error:
                _log.warning("%s are not kept: %s", self._name, error)
            except Exception:  # the service goes on without
                _log.exception("%s are not kept any more", self._name)
                return
