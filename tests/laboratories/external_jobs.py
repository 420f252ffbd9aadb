"""Jobs of the external runner, and a program that works on them: it claims one at a time, takes 10 s for it on a clock
that waiting turns, and tells its result."""

from __future__ import annotations

import os

from jobs import Laboratory

from meshtune.runners.base import JobSpec, JobState, JobStatus
from meshtune.runners.outcome import RESULT_FILE, Measurement, Outcome, Verdict, write_result
from meshtune.runners.schedulers.external import ExternalRunner

SECONDS = 10.0
MEASURED = Outcome(verdict=Verdict.OK, measurement=Measurement(step_times_s=(1.0, 1.1), tokens_per_step=64, devices=1))


class ExternalLaboratory(Laboratory):
    slots = 1
    limit_s = 20 * SECONDS

    def __init__(self, folder, place: object = None) -> None:
        self.now = 1000.0
        self.names: list[str] = []
        # The job that the program works on, and when it will have done.
        self.work: tuple[str, float] | None = None
        super().__init__(folder, place)

    def open(self) -> ExternalRunner:
        return ExternalRunner(self.folder / "root", clock=lambda: self.now)

    def spec_of(self, name: str, **changes) -> JobSpec:
        values = {"command": ("train", "--tp", "2"), "directory": self.folder / "work" / name, "time_limit_s": 60.0}
        return JobSpec(name=name, **values | changes)

    def short(self, name: str, *, processes: int = 1) -> str:
        id = self.runner.submit(self.spec_of(name))
        self.names.append(id)
        return id

    long = short

    def ran(self, name: str) -> bool:
        return (self.folder / "work" / name / RESULT_FILE).exists()

    def tell(self, name: str) -> None:
        written = write_result(self.folder / "work" / name, MEASURED)
        os.utime(written, (self.now, self.now))

    def go_on(self) -> None:
        """The program does what it can do now."""
        if self.work is not None:
            name, ends_at = self.work
            over = self.runner.poll([name])[name].state.final
            if not over and self.now >= ends_at:
                self.tell(name)
            if over or self.now >= ends_at:
                self.work = None
        if self.work is None and (claimed := self.runner.claim(self.names, 1)):
            self.work = (claimed[0].name, self.now + SECONDS)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.go_on()

    def wait(self, id: str, *states: JobState, limit_s: float | None = None) -> JobStatus:
        deadline = self.now + (limit_s or self.limit_s)
        while True:
            self.go_on()
            status = self.status(id)
            if status.state in states or (not states and status.state.final):
                return status
            assert not status.state.final, f"{id} ended unexpectedly: {status}"
            assert self.now < deadline, f"{id} is {status}"
            self.now += 0.5

    def close(self) -> None:
        self.runner.close()
