"""One of several service processes on one database: `python slurm_service.py URL HOME LEASE_S`, ended by SIGTERM."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.service.loop import Driver
from meshtune.tuner.service.rounds import drive_all
from meshtune.tuner.service.service import Service
from meshtune.tuner.store import Store

if __name__ == "__main__":
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Store.open(sys.argv[1]) as store:
        service = Service(store, Home(Path(sys.argv[2])), lease_s=float(sys.argv[3]))
        drive_all(Driver(service), service, stop)
