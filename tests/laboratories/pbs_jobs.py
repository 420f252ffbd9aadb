"""Jobs of the PBS runner, whose scripts really run, under programs that pretend to be PBS and an MPI launcher."""

from __future__ import annotations

import os

import pytest
from jobs import Laboratory
from pretended_pbs import PretendedPbs

from meshtune.runners.schedulers.pbs.runner import PbsOptions, PbsRunner


class PbsLaboratory(Laboratory):
    pbs: PretendedPbs

    def open(self, *, nodes: int = 1, **options) -> PbsRunner:
        if not self.opened:
            self.pbs = PretendedPbs(self.folder / "pbs", self.slots)
            self.patch = pytest.MonkeyPatch()
            self.patch.setenv("PATH", f"{self.pbs.programs}:{os.environ['PATH']}")
        chosen = PbsOptions(**{"setup": ("export FROM_SETUP=seen",), **options})
        runner = PbsRunner(self.folder / "records", chosen, nodes=nodes, devices_per_node=self.slots)
        self.opened.append(runner)
        return runner

    def wide(self) -> PbsRunner:
        return self.open(nodes=2)

    def close(self) -> None:
        self.pbs.delete_all()
        self.wait_for(self.pbs.idle, self.limit_s)
        self.wait_nothing_left()
        self.patch.undo()
