"""What was read or rendered last is kept until it changes; of what nobody asks for, the oldest goes first.

Each thing is kept with its version: what the store says cheaply of whether it is still so. Keeping is for speed alone;
an answer is the same whether it was kept or made.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")
# Of several requests for one thing, one makes it and the others wait; of different things, so many are made at once.
TURNS = 8


class Kept(Generic[Value]):
    """Thread-safe. weigh: what a value counts for; all together weigh `most` at the most."""

    def __init__(self, most: int, weigh: Callable[[Value], int] = lambda value: 1) -> None:
        self._most = most
        self._weigh = weigh
        self._weight = 0
        self._entries: OrderedDict[Hashable, tuple[Hashable, Value]] = OrderedDict()
        self._lock = threading.Lock()
        self._turns = [threading.Lock() for _ in range(TURNS)]

    def get(self, key: Hashable, version: Hashable) -> Value | None:
        """What is kept of this version, None where there is none."""
        with self._lock:
            found = self._entries.get(key)
            if found is None or found[0] != version:
                return None
            self._entries.move_to_end(key)
            return found[1]

    def put(self, key: Hashable, version: Hashable, value: Value) -> None:
        """Keep this in place of any other version."""
        with self._lock:
            self._drop(key)
            self._entries[key] = (version, value)
            self._weight += self._weigh(value)
            while self._weight > self._most:
                self._drop(next(iter(self._entries)))

    def get_or_make(self, key: Hashable, version: Hashable, make: Callable[[], Value]) -> Value:
        """What is kept, made first where it is not. What `make` raises is raised, and nothing is kept."""
        found = self.get(key, version)
        if found is not None:
            return found
        with self._turns[hash(key) % TURNS]:
            found = self.get(key, version)
            if found is None:
                found = make()
                self.put(key, version, found)
            return found

    def _drop(self, key: Hashable) -> None:
        if key in self._entries:
            self._weight -= self._weigh(self._entries.pop(key)[1])
