"""A job gets into the spool whole and once, whoever else puts jobs there, and the spool knows the order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from meshtune.runners.base import InvalidJob, JobSpec, JobState, JobStatus
from meshtune.runners.local.spool import Spool, SpooledJob


def job(name: str, **changes) -> SpooledJob:
    fields = {"name": name, "command": ("true",), "directory": Path("/work"), "time_limit_s": 1.5}
    return SpooledJob(spec=JobSpec(**fields | changes), slots=4)


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path)
    spool.create()
    return spool


def test_an_order_comes_back_as_it_was_but_for_its_files(spool):
    given = job("job", command=("a", "b c"), env={"X": "1"}, nodes=2, devices_per_node=3, files={"big": "text"})
    assert spool.add(given)
    found = spool.job("job")
    assert found.slots == 4
    assert found.spec == job("job", command=("a", "b c"), env={"X": "1"}, nodes=2, devices_per_node=3).spec


def test_adding_a_name_twice_changes_nothing(spool):
    assert spool.add(job("job", command=("first",)))
    assert not spool.add(job("job", command=("second",)))
    assert spool.job("job").spec.command == ("first",)
    assert [path.name for path in spool.root.iterdir()] == ["jobs"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/a", "../a", ".a", "-a", "_a", "a b", "a\n", "\u00e4", "a\0", "x" * 201]
)
def test_a_name_unfit_for_a_file_is_refused(name, spool):
    with pytest.raises(InvalidJob, match=r"^job name "):
        spool.add(job(name))
    assert spool.names() == []
    assert not spool.has(name)
    assert spool.status(name).state is JobState.LOST


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


def test_a_status_is_queued_then_what_was_last_set(spool):
    assert spool.status("job").state is JobState.LOST
    spool.add(job("job"))
    assert spool.status("job") == JobStatus(state=JobState.QUEUED)
    for status in (
        JobStatus(state=JobState.RUNNING, started_at=1.25),
        JobStatus(state=JobState.FAILED, reason="rank 0 \u00e9", exit_code=-9, started_at=1.25, finished_at=2.5),
    ):
        spool.set_status("job", status)
        assert spool.status("job") == status
