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
spool = Spool(root)
print("ready", flush=True)
for number, _ in enumerate(sys.stdin):
    spec = JobSpec(name=f"job{number}", command=(me,), directory=root, time_limit_s=1)
    print(spool.add(SpooledJob(spec=spec, slots=1)), flush=True)
"""


def test_of_several_processes_exactly_one_puts_a_job_in(spool):
    adders = [
        subprocess.Popen(
            [sys.executable, "-c", ADDER, spool.root, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    try:
        for adder in adders:
            assert adder.stdout.readline() == "ready\n"
        won: list[list[int]] = [[], [], [], []]
        for number in range(100):
            for turn in range(4):  # each is the first in its turn, so that none has to be quick
                adder = adders[(number + turn) % 4]
                adder.stdin.write("go\n")
                adder.stdin.flush()
            for adder, numbers in zip(adders, won, strict=True):
                numbers += [number] if adder.stdout.readline() == "True\n" else []
        for adder in adders:
            adder.communicate(timeout=60)
        assert [adder.returncode for adder in adders] == [0] * 4
    finally:
        for adder in adders:
            adder.kill()
            adder.wait()
    assert sorted(number for numbers in won for number in numbers) == list(range(100))
    assert sum(bool(numbers) for numbers in won) > 1, "one adder was always the first: nothing was tried"
    for me, numbers in enumerate(won):
        assert all(spool.job(f"job{number}").spec.command == (str(me),) for number in numbers)
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
