"""Cuts a rank's step into spans: every moment belongs to exactly one, the rank's own work or one blocking call into a
process group. On CPU overlapping communication is seen only as far as the rank waited for it. On CUDA the device is
synchronised where spans meet: exact, but nothing overlaps in such a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from meshtune.runners.measuring.step_breakdown import Part
from meshtune.runners.trainer.failure import Phase
from meshtune.runners.trainer.parallel.mesh import synchronize

# What a call into a process group is known by on all of its members: the ranks, the direction ("", or "source>target"
# within the group) and a number that counts such calls.
Key = tuple[tuple[int, ...], str, int]


@dataclass(frozen=True, slots=True)
class Call:
    """One communication, and which part its time belongs to. Its start is when this rank arrived at it."""

    key: Key
    part: Part


@dataclass(frozen=True, slots=True)
class Span:
    start_s: float
    end_s: float
    what: Part | Call


@dataclass(slots=True)
class Stopwatch:
    """One step's spans. now: seconds, on the same clock for all ranks of a machine."""

    device: torch.device
    now: Callable[[], float] = time.perf_counter
    spans: list[Span] = field(default_factory=list)
    arrivals: dict[Key, float] = field(default_factory=dict)
    _work: Part = Part.COMPUTE
    _since: float = 0.0
    _inside: bool = False

    def start(self) -> None:
        self.spans, self.arrivals, self._work = [], {}, Part.COMPUTE
        self._since = self._settled_now()

    def stop(self) -> None:
        self._close(self._work)

    def enter_phase(self, phase: Phase) -> None:
        """The rank goes on to other work of its own."""
        self._close(self._work)
        self._work = Part.OPTIMIZER if phase is Phase.OPTIMIZER else Part.COMPUTE

    @contextmanager
    def blocked(self, call: Call) -> Iterator[None]:
        """The time inside belongs to `call`; a call inside a call belongs to the outer one."""
        if self._inside:
            yield
            return
        self._close(self._work)
        self.arrivals.setdefault(call.key, self._since)
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            self._close(call)

    def _close(self, what: Part | Call) -> None:
        now = self._settled_now()
        self.spans.append(Span(self._since, now, what))
        self._since = now

    def _settled_now(self) -> float:
        synchronize(self.device)
        return self.now()
