"""A job gets into the spool whole and once, whoever else puts jobs there, and the spool knows the order."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from meshtune.runners.base import JobSpec, JobState
from meshtune.runners.schedulers.local.spool import Spool, SpooledJob


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path)
    spool.create()
    return spool


ADDER = """
import sys
from pathlib import Path
from meshtune.runners.base import JobSpec
from meshtune.runners.schedulers.local.spool import Spool, SpooledJob
root, me = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    spec = JobSpec(name=f"job{number}", command=(me,), directory=root, time_limit_s=1)
    if Spool(root).add(SpooledJob(spec=spec, slots=1)):
        print(spec.name)
"""


def test_of_several_processes_exactly_one_puts_a_job_in(spool):
    commands = [[sys.executable, "-c", ADDER, spool.root, str(me)] for me in range(4)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    adders = [subprocess.Popen(command, **pipes) for command in commands]
    assert [adder.stdout.readline() for adder in adders] == ["ready\n"] * 4
    for adder in adders:
        adder.stdin.write("go\n")
        adder.stdin.flush()
    won = [adder.communicate(timeout=60)[0].split() for adder in adders]
    assert sorted(name for added in won for name in added) == sorted(f"job{number}" for number in range(100))
    assert all(spool.job(name).spec.command == (str(me),) for me, added in enumerate(won) for name in added)
    assert [path.name for path in spool.root.iterdir()] == ["jobs"]


def test_a_state_that_the_server_never_wrote_is_that_job_s_loss_alone(spool):
    for name in ("good", "bad"):
        spool.add(SpooledJob(spec=JobSpec(name=name, command=("x",), directory=spool.root, time_limit_s=1), slots=1))
    os.mkfifo(spool.jobs / "bad" / "status.json")
    assert spool.status("good").state is JobState.QUEUED
    lost = spool.status("bad")
    assert (lost.state, "status.json is a pipe, not a regular file" in lost.reason) == (JobState.LOST, True)
