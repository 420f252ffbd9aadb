"""The laboratory of the Ray runner: one cluster and one job manager for all tests, told apart by the runners' roots."""

from __future__ import annotations

from pathlib import Path

from jobs import Laboratory

from meshtune.runners.base import JobSpec
from meshtune.runners.schedulers.ray.runner import RayRunner


class RayLaboratory(Laboratory):
    needs = "ray_cluster"
    grows = heals = True

    def __init__(self, folder: Path, place: object = None) -> None:
        self.names: list[str] = []
        super().__init__(folder, place)

    def open(self, *, idle_s: float = 3.0, **options) -> RayRunner:
        runner = self.place.runner(self.folder / "spool", idle_s=idle_s, **options)
        self.opened.append(runner)
        return runner

    def kill_node(self, node: str) -> str:
        self.place.remove_node(node)
        return node

    def lose_node(self, *, first: bool) -> str:
        return self.kill_node("n1" if first else "n2")

    def spec(self, name: str, script: str, **changes) -> JobSpec:
        self.names.append(name)
        return super().spec(name, script, **changes)

    def close(self) -> None:
        for name in self.names:
            if self.runner.find(name) is not None:
                self.runner.cancel(name)
                self.wait(name)
        for runner in self.opened:
            runner.close()
