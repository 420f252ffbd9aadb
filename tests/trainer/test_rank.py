"""A runner starts each rank as a process of its own, with RANK, WORLD_SIZE and LOCAL_RANK; that is what runs here."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from service_process import free_port

from meshtune.runners.base import Cause, JobState, JobStatus
from meshtune.runners.outcome import Verdict, read_result
from meshtune.runners.programs.workloads.torch import TorchWorkload
from meshtune.runners.trainer.failure import Phase, read_failures
from meshtune.runners.trainer.job import render_job

SLOW = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LIMIT_S = 180  # for a machine that is busy with other things


def start_ranks(directory: Path, world_size: int, ranks: int, **env: str) -> list[subprocess.Popen[bytes]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "GLOO_"))}
    own = {"WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"} | env
    return [
        subprocess.Popen(
            [sys.executable, "-m", "meshtune.runners.trainer", "job.json"],
            cwd=directory,
            env=clean | own | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]


def wait(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    try:
        return [process.wait(timeout=LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


# By address the ranks of test_slurm_cluster.py meet as well.
@pytest.mark.parametrize("meeting", [pytest.param("file", marks=SLOW), pytest.param("address", marks=pytest.mark.long)])
def test_ranks_meet_and_leave_a_result_in_their_directory(meeting, tmp_path, make_job):
    job = make_job(plan={"dp": 2})
    (tmp_path / "job.json").write_text(render_job(job), encoding="utf-8")
    address = {"MASTER_ADDR": "127.0.0.2", "MASTER_PORT": str(free_port())} if meeting == "address" else {}
    assert wait(start_ranks(tmp_path, 2, 2, **address)) == [0, 0]
    outcome = read_result(tmp_path)
    assert outcome.verdict is Verdict.OK
    assert outcome.measurement is not None
    assert outcome.measurement.software == {
        "torch": version("torch"),
        "python": platform.python_version(),
        "backend": "gloo_in_order",
    }
    assert outcome.measurement.devices == 2
    assert (tmp_path / "rendezvous").exists() == (meeting == "file")


@SLOW
def test_a_rank_that_is_asked_for_the_unsupported_leaves_a_failure(tmp_path, make_job):
    (tmp_path / "job.json").write_text(render_job(make_job(plan={"dp": 2}, async_tp=True)), encoding="utf-8")
    assert wait(start_ranks(tmp_path, 2, 1)) == [2]
    (failure,) = read_failures(tmp_path)
    assert (failure.rank, failure.phase, failure.verdict) == (0, Phase.INIT, Verdict.CRASHED)
    assert "async_tp: async_tp needs compile" in failure.reason


@SLOW
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
def test_a_rank_whose_disk_is_full_tells_it_by_its_exit_code(tmp_path, make_job):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "none", disk], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (disk / "job.json").write_text(render_job(make_job(plan={"dp": 1})), encoding="utf-8")
        with pytest.raises(OSError, match="No space left"):
            (disk / "rest").write_bytes(b"x" * (64 << 10))
        (code,) = wait(start_ranks(disk, 1, 1))
        died = JobStatus(state=JobState.FAILED, reason=f"rank 0 exited with code {code}", exit_code=code)
        (disk / "rest").unlink()  # there is space again
        outcome = TorchWorkload({}).read(disk, died)
        assert (code, outcome.verdict, outcome.cause) == (os.EX_IOERR, Verdict.LOST, Cause.STORAGE)
    finally:
        subprocess.run(["umount", disk], check=True)


@SLOW
def test_importing_the_trainer_starts_nothing():
    code = """
import meshtune.runners.trainer.main, torch
threads = next(line for line in open("/proc/self/status") if line.startswith("Threads:"))
assert threads.split()[1] == "1", threads
assert not torch.cuda.is_initialized()
assert not torch.distributed.is_initialized()
"""
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, check=True, timeout=LIMIT_S)
