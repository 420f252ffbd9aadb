"""Jobs of the Kubernetes runner under the tests' own API server: the label `lab: one` chooses one node of 4 devices."""

from __future__ import annotations

import sys
from typing import ClassVar

from jobs import Laboratory
from kubernetes_controllers import DEVICE
from kubernetes_lab import NAMESPACE, KubernetesLab

from meshtune.runners.schedulers.kubernetes.options import KubernetesOptions
from meshtune.runners.schedulers.kubernetes.runner import KubernetesRunner

IMAGE = "registry.example.org/train:1"


class KubernetesLaboratory(Laboratory):
    needs: ClassVar[str | None] = "kubernetes"
    period_s = 0.02
    place: KubernetesLab

    def open(self, *, nodes: int = 1, **options) -> KubernetesRunner:
        given = {
            "image": IMAGE,
            "python": sys.executable,
            "namespace": NAMESPACE,
            "device": DEVICE,
            "host_paths": (str(self.folder),),
            "node_selector": {"lab": "one"} if nodes == 1 else {},
        }
        chosen = KubernetesOptions(**given | options)
        runner = KubernetesRunner(self.folder / "records", chosen, nodes=nodes, devices_per_node=self.slots)
        self.opened.append(runner)
        return runner

    def wide(self) -> KubernetesRunner:
        return self.open(nodes=2)

    def kill_node(self, node: str) -> str:
        self.place.controllers.kill_node(node)
        return node

    def lose_node(self, *, first: bool) -> str:
        return self.kill_node("node-a" if first else "node-b")

    def close(self) -> None:
        for runner in self.opened:
            runner.close()
        self.place.reset()
        self.wait_nothing_left()
