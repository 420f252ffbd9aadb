"""One of several service processes on one database: `python leased_service.py URL HOME LEASE_S`, ended by SIGTERM.

It drives campaigns on the simulated runner, and notes each job that it really sends in HOME/sent. While HOME/hold
exists, no job ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshtune.runners import registry
from meshtune.runners.base import JobSpec, JobState, JobStatus
from meshtune.runners.schedulers.ground_truth import HiddenClusterOptions
from meshtune.runners.schedulers.simulated import SimulatedRunner
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.service.driving.loop import Driver
from meshtune.tuner.service.driving.rounds import drive_all
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

HOME = Path(sys.argv[2])


class NotingRunner(SimulatedRunner):
    def submit(self, spec: JobSpec) -> str:
        new = self.find(spec.name) is None
        id = super().submit(spec)
        if new:
            log = os.open(HOME / "sent", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(log, f"{os.getpid()} {spec.name}\n".encode())
            os.close(log)
        return id

    def poll(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        found = super().poll(ids)
        if not (HOME / "hold").exists():
            return found
        running = {"state": JobState.RUNNING, "finished_at": None}
        return {id: replace(status, **running) if status.state.final else status for id, status in found.items()}


def create_noting_runner(root: Path, cluster: object, options: Mapping[str, Any]) -> NotingRunner:
    return NotingRunner(root, HiddenClusterOptions(**options))


if __name__ == "__main__":
    registry.RUNNERS["simulated"] = f"{__name__}:create_noting_runner"
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Store.open(sys.argv[1]) as store:
        service = Service(store, Home(HOME), lease_s=float(sys.argv[3]))
        thread = threading.Thread(target=drive_all, args=(Driver(service), service, stop))
        thread.start()
        thread.join()
