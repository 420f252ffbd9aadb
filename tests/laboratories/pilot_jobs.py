"""Jobs as steps inside allocations that the runner submits itself, on the session's real Slurm."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from jobs import Laboratory
from places import cluster
from slurm_lab import SlurmLab

from meshtune.runners.schedulers.slurm.pilot import PilotRunner, create_pilots
from meshtune.runners.schedulers.slurm.script import Mode, SlurmOptions

OPTIONS = SlurmOptions(mode=Mode.PILOT, gres="", partition="one", pilot_s=600.0, pilot_idle_s=20.0)


class PilotLaboratory(Laboratory):
    needs: ClassVar[str | None] = "slurm"
    period_s = 0.1  # each look starts a squeue
    place: SlurmLab

    def open(self, *, nodes: int = 1, devices: int | None = None, **options) -> PilotRunner:
        partition = {} if nodes == 1 else {"partition": "main"}
        place = cluster(nodes, devices or self.slots // nodes)
        runner = create_pilots(self.folder / "pilots", place, replace(OPTIONS, **partition, **options))
        self.opened.append(runner)
        return runner

    def wide(self) -> PilotRunner:
        return self.open(nodes=2)

    def pilots(self) -> list[tuple[str, str, str]]:
        """Number, name and state of this laboratory's."""
        paths = self.place.run("squeue", "-h", "--states=all", "-o", "%i %Z").splitlines()
        own = {line.split()[0] for line in paths if line.split()[1].startswith(str(self.folder))}
        return [job for job in self.place.jobs() if job[0] in own]

    def kill_node(self, node: str) -> str:
        return self.place.kill_node(node)

    def lose_node(self, *, first: bool) -> str:
        """The first, where a pilot has its server, before there is one."""
        if not first:
            self.wait(self.short("warm-up", nodes=2))
        return self.kill_node("n0" if first else "n1")

    def close(self) -> None:
        self.place.cancel_all()
        for runner in self.opened:
            runner.close()
        self.wait_nothing_left()
