"""Jobs as steps inside an allocation of the session's real Slurm: 4 processes on one node, or two nodes of two."""

from __future__ import annotations

from typing import ClassVar

from jobs import Laboratory
from slurm_lab import SlurmLab, wait_for

from meshtune.runners.schedulers.slurm.allocation import Allocation, AllocationRunner
from meshtune.runners.schedulers.slurm.script import SlurmOptions


class AllocationLaboratory(Laboratory):
    needs: ClassVar[str | None] = "slurm"
    period_s = 0.1  # each look starts a squeue
    place: SlurmLab

    def open(self, *, nodes: int = 1, minutes: int = 60, **options) -> AllocationRunner:
        allocation = self.allocate(nodes, minutes)
        runner = AllocationRunner(self.folder / "steps", SlurmOptions(gres="", **options), allocation)
        self.opened.append(runner)
        return runner

    def allocate(self, nodes: int, minutes: int = 60) -> Allocation:
        """The allocation of that many nodes, which all runners of this laboratory share."""
        cpus = self.slots // nodes
        if (id := self.allocations.get(nodes)) is None:
            size = (f"--nodes={nodes}", f"--ntasks-per-node={cpus}", f"--time={minutes}")
            partition = "--partition=one" if nodes == 1 else "--partition=main"
            id = self.place.run("sbatch", "--parsable", *size, partition, "--output=/dev/null", "--wrap=sleep 3600")
            id = self.allocations[nodes] = id.strip()
            wait_for(lambda: self.place.run("squeue", "-h", "-j", id, "-o", "%T").strip() == "RUNNING", f"{id} waits")
        return Allocation(id=id, nodes=nodes, devices_per_node=cpus, cpus_per_node=cpus)

    @property
    def allocations(self) -> dict[int, str]:
        """Slurm's number of the allocation by its nodes."""
        return self.__dict__.setdefault("_allocations", {})

    def wide(self) -> AllocationRunner:
        return self.open(nodes=2)

    def kill_node(self, node: str) -> str:
        return self.place.kill_node(node)

    def lose_node(self, *, first: bool) -> str:
        """On n0 is the allocation that `open` took."""
        return self.kill_node("n1" if first else "n2")

    def close(self) -> None:
        for runner in self.opened:
            server = runner._local._server
            if server is not None:
                server.terminate()
                server.wait(self.limit_s)
            runner.close()
        self.place.cancel_all()
        self.wait_nothing_left()
