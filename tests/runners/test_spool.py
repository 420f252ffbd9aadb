"""A job gets into the spool whole and once, whoever else puts jobs there, and the spool knows the order."""

from __future__ import annotations

import subprocess
import sys

import pytest

from meshtune.runners.local.spool import Spool


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path)
    spool.create()
    return spool


ADDER = """
import sys
from pathlib import Path
from meshtune.runners.base import JobSpec
from meshtune.runners.local.spool import Spool, SpooledJob
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
