"""The Slurm that tests run against ends with all its processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import slurm_lab
from jobs import alive, processes_where, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.slurm]


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from slurm_lab import SlurmLab
print(SlurmLab(nodes=1).__enter__().folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_lab_dies_with_whoever_started_it(slurm):
    laboratories = str(Path(slurm_lab.__file__).parent)
    done = subprocess.run([sys.executable, "-c", KILLED, laboratories], stdout=subprocess.PIPE, text=True, timeout=120)
    folder = done.stdout.strip()
    assert folder.startswith("/tmp/mt-slurm-")
    try:
        wait_for(lambda: not any(map(alive, processes_where(lambda at: folder in (at / "cmdline").read_text()))), 30)
    finally:
        shutil.rmtree(folder)
