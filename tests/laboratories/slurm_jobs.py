"""Jobs of the Slurm runner on the session's real cluster: partition `one` holds 4 processes, `main` several nodes."""

from __future__ import annotations

from typing import ClassVar

from jobs import Laboratory
from slurm_lab import SlurmLab

from meshtune.runners.schedulers.slurm.runner import SlurmRunner
from meshtune.runners.schedulers.slurm.script import SlurmOptions


class SlurmLaboratory(Laboratory):
    needs: ClassVar[str | None] = "slurm"
    period_s = 0.1  # each look starts a squeue
    place: SlurmLab

    def open(self, *, partition: str = "one", nodes: int = 1, **options) -> SlurmRunner:
        chosen = SlurmOptions(partition=partition, gres="", **options)
        runner = SlurmRunner(self.folder / "records", chosen, nodes=nodes, devices_per_node=self.slots)
        self.opened.append(runner)
        return runner

    def wide(self) -> SlurmRunner:
        return self.open(partition="main", nodes=len(self.place.nodes))

    def kill_node(self, node: str) -> str:
        return self.place.kill_node(node)

    def lose_node(self, *, first: bool) -> str:
        return self.kill_node("n0" if first else "n1")

    def close(self) -> None:
        self.place.cancel_all()
        self.wait_nothing_left()
