"""A gang ends as its programs end, the rank to blame is the one that failed first, and marks find a job's processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import wait_for

from meshtune.runners.processes.gang import JOB_MARK, first_death, kill_marked, log_path, minimal_environment

# Runs one gang and tells how it ended: in a process of its own, since pytest catches what forks print.
HOST = """
import sys
from pathlib import Path
from meshtune.runners.base import JobSpec
from meshtune.runners.processes.gang import run_gang
directory, command, processes, source = Path(sys.argv[1]), tuple(sys.argv[2].split()), int(sys.argv[3]), sys.argv[4]
namespace = {}
exec(source, namespace)
limit_s = namespace.get("limit_s", 60)
spec = JobSpec(
    name="job", command=command, directory=directory, devices_per_node=processes, time_limit_s=limit_s, env={"X": "1"}
)
gang = run_gang(spec, namespace.get("entry"))
print(gang.result().reason or gang.result().state)
print(*(code for _, code in sorted(gang.deaths)))
"""


def host(directory: Path, source: str, *, processes: int = 1, command: str = "python -m x a b") -> subprocess.Popen:
    """A gang that runs the function `entry` in `source`, or else the command."""
    arguments = [directory, command, str(processes), source]
    environment = {**os.environ, "MESHTUNE_SECRET": "hush"}
    return subprocess.Popen(
        [sys.executable, "-c", HOST, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )


def gang(directory: Path, source: str, **changes) -> list[str]:
    """How the gang ended, and the exit codes of those that ended by themselves."""
    process = host(directory, source, **changes)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return out.splitlines()


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("return 0", 0, ""),
        ("return 3", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(4)", 4, ""),
        ("sys.exit('no job')", 1, "no job\n"),
        ("raise ValueError('as it is')", 1, "ValueError: as it is\n"),
    ],
)
def test_a_forked_rank_ends_as_its_program_would(body, code, said, tmp_path):
    reason = f"rank 0 exited with code {code}" if code else "succeeded"
    assert gang(tmp_path, f"import sys\ndef entry(arguments):\n    {body}\n") == [reason, str(code)]
    assert log_path(tmp_path, 0).read_text().endswith(said)


def test_a_forked_rank_gets_the_arguments_and_the_environment_of_its_rank(tmp_path):
    source = """
import os
def entry(arguments):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "X", "MESHTUNE_SECRET")
    print(arguments, *(os.environ.get(name) for name in names), os.getcwd(), os.getsid(0) == os.getpid())
    return 0
"""
    assert gang(tmp_path, source, processes=2) == ["succeeded", "0 0"]
    for rank in (0, 1):
        assert log_path(tmp_path, rank).read_text() == f"['a', 'b'] {rank} 2 {rank} 1 None {tmp_path} True\n"


def test_the_record_of_the_hardware_leaves_the_log_to_the_job(tmp_path):
    source = """
import os, time
from meshtune.runners.processes import gang
def recorded(arguments):
    print("recorded", flush=True)
    open("recorded", "w").close()
    return 0
gang._record = recorded
def entry(arguments):
    while not os.path.exists("recorded"):
        time.sleep(0.01)
    return 0
"""
    assert gang(tmp_path, source) == ["succeeded", "0"]
    assert log_path(tmp_path, 0).read_text() == ""


def test_a_supervisor_that_is_told_to_end_leaves_no_rank(tmp_path):
    source = """
import os, time
def entry(arguments):
    open(f"here-{os.environ['RANK']}", "w")
    time.sleep(300)
"""
    process = host(tmp_path, source, processes=2)
    wait_for(lambda: len(list(tmp_path.glob("here-*"))) == 2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("deaths", "blamed"),
    [
        ([], None),
        ([(0, 0), (1, 0)], None),
        ([(2, 0), (1, 3), (0, 5)], (1, 3)),
        ([(1, 3), (0, -9), (2, -11)], (0, -9)),
    ],
)
def test_the_rank_to_blame_failed_first_or_was_killed(deaths, blamed):
    assert first_death(deaths) == blamed


def test_a_mark_finds_all_of_one_job_and_nothing_else(tmp_path):
    jobs = f"{tmp_path}/jobs/"  # of this run alone, whoever else runs this test on this machine

    def start(mark: str, command: str) -> subprocess.Popen:
        return subprocess.Popen(["sh", "-c", command], env={**os.environ, JOB_MARK: mark}, start_new_session=True)

    # A process that forks on and on, each child in a session of its own, and neighbours with names alike.
    chain = "f() { setsid sleep 300 & sleep 0.001; }; while :; do f; done"
    wanted = [start(f"{jobs}a", "sleep 300"), start(f"{jobs}a", chain)]
    others = [start(mark, "exec sleep 300") for mark in (f"{jobs}a1", jobs, f"x{jobs}a")]
    try:
        time.sleep(0.1)
        kill_marked(f"{jobs}a")
        assert [process.wait(60) for process in wanted] == [-9, -9]
        assert [process.poll() for process in others] == [None] * 3
        for folder in Path("/proc").iterdir():
            try:
                marks = (folder / "environ").read_bytes().split(b"\0") if folder.name.isdecimal() else []
            except OSError:
                continue
            assert f"{JOB_MARK}={jobs}a".encode() not in marks
    finally:
        for process in (*wanted, *others):
            process.kill()
            process.wait()


def test_whether_tiles_are_devices_reaches_the_jobs_of_intels_driver(monkeypatch):
    monkeypatch.setenv("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE")
    assert minimal_environment()["ZE_FLAT_DEVICE_HIERARCHY"] == "COMPOSITE"
