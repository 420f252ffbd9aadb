"""Reads what an ended job left in a thread of its own: a file of a dead server keeps its reader for ever, and nothing
can interrupt it; a huge log takes long. Other campaigns, and the jobs of this one that run, go on meanwhile.

A thread that hangs is left behind when its job is given up as lost to its storage, to be tried again."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path

from meshtune.runners.base import Cause, JobStatus, RunnerUnavailable
from meshtune.runners.command import answered
from meshtune.runners.hardware import read_hardware
from meshtune.runners.outcome import Outcome, Verdict
from meshtune.runners.programs.workloads.base import Workload
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind

# How long one look waits, and for how long in all a job's files are tried.
LOOK_S = 0.5
GIVE_UP_S = 300.0


def read_outcome(workload: Workload, directory: Path, status: JobStatus, cluster: ClusterSpec) -> Outcome:
    """What became of an ended job, a measurement with the hardware that the job's nodes recorded; what its result
    says of that counts where they did not. cluster: the job's. Raises as `Workload.read`."""
    outcome = workload.read(directory, status)
    if outcome.measurement is None:
        return outcome
    accelerators = cluster.device.kind is not DeviceKind.CPU
    hardware = read_hardware(directory, cluster.nodes, accelerators=accelerators, nodes=status.nodes)
    return replace(outcome, measurement=replace(outcome.measurement, hardware=hardware)) if hardware else outcome


class JobReading:
    def __init__(self, job_name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds that never go back."""
        self.job_name = job_name
        self._clock = clock
        self._begun = clock()
        self._answer: Future[Outcome] | None = None

    @property
    def age_s(self) -> float:
        return self._clock() - self._begun

    def look(self, read: Callable[[], Outcome], wait_s: float = LOOK_S) -> Outcome | None:
        """The outcome; None while it is being read. Raises what `read` raises, which is called again by the next look.

        After GIVE_UP_S without an answer, or with nothing but RunnerUnavailable, the attempt is lost."""
        if self._answer is None:
            self._answer = answered(read, f"reading {self.job_name}")
        wait([self._answer], wait_s)
        answer, late = self._answer, self.age_s > GIVE_UP_S
        if not answer.done():
            return _lost("there was no answer") if late else None
        try:
            return answer.result()
        except RunnerUnavailable as error:
            if late:
                return _lost(str(error))
            raise
        finally:
            self._answer = None


def _lost(trouble: str) -> Outcome:
    reason = f"what the job left could not be read for {GIVE_UP_S:g} s: {trouble}"
    return Outcome(verdict=Verdict.LOST, cause=Cause.STORAGE, reason=reason)
