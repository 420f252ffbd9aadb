"""Jobs of the simulated runner: each takes 10 s on a clock that waiting turns, one after the other."""

from __future__ import annotations

from jobs import Laboratory
from places import SPEEDS, cluster

from meshtune.runners.base import JobState, JobStatus
from meshtune.runners.programs.workloads.simulated import SimulatedWorkload
from meshtune.runners.schedulers.ground_truth import HiddenClusterOptions
from meshtune.runners.schedulers.simulated import SimulatedRunner
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan

CLUSTER = cluster(1, 1, "cuda", **SPEEDS)
MODEL = ModelSpec(name="m", layers=2, hidden=128, heads=2, ffn=256, vocab=1024, seq_len=128)
SECONDS = 10.0


class SimulatedLaboratory(Laboratory):
    slots = 1
    limit_s = 20 * SECONDS

    def __init__(self, folder, place: object = None) -> None:
        self.now = 1000.0
        super().__init__(folder, place)

    def open(self) -> SimulatedRunner:
        options = HiddenClusterOptions(seconds_per_trial=SECONDS, slots=self.slots)
        return SimulatedRunner(self.folder / "root", options, clock=lambda: self.now)

    def short(self, name: str, *, processes: int = 1) -> str:
        """Every job holds the one slot for the same time."""
        directory = self.folder / "work" / name
        plan = Plan(grad_accum_steps=2)
        return self.runner.submit(
            SimulatedWorkload({}).materialize(name, MODEL, plan, CLUSTER, directory, seed=0, time_limit_s=1e6)
        )

    long = short

    def ran(self, name: str) -> bool:
        return (self.folder / "work" / name / "result.json").exists()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, id: str, *states: JobState, limit_s: float | None = None) -> JobStatus:
        deadline = self.now + (limit_s or self.limit_s)
        while True:
            status = self.status(id)
            if status.state in states or (not states and status.state.final):
                return status
            assert not status.state.final, f"{id} ended unexpectedly: {status}"
            assert self.now < deadline, f"{id} is {status}"
            self.now += 0.5

    def close(self) -> None:
        self.runner.close()
