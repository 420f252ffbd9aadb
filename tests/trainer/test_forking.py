"""A process that forks ranks has imported what they need, has one thread, and says when forks could use no accelerator.

There is none here: a stand-in for torch's own note of it is all that these tests change. Each runs in a process of its
own, as imports cannot be undone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from meshtune.runners.trainer.forking import _unasked
from meshtune.runners.trainer.job import JOB_FILE, render_job
from meshtune.search_spaces.cluster import DeviceKind

pytestmark = pytest.mark.slow

WARM = """
import os, sys
from pathlib import Path
from meshtune.runners.processes.gang import warm_entry
command = (sys.executable, "-m", "meshtune.runners.trainer", "job.json")
entry = warm_entry(command)
import torch
if len(sys.argv) > 2:
    forks, parent = torch.cuda._is_in_bad_fork, os.getpid()
    torch.cuda._is_in_bad_fork = lambda: os.getpid() != parent
entry = warm_entry(command, Path(sys.argv[1]))
children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
print(entry is not None, "torch._inductor.compile_fx" in sys.modules, len(os.listdir("/proc/self/task")), children)
"""


def warmed(folder, text: str, *more: str) -> tuple[str, str]:
    """What is printed by a process that gets ready for the job of this text, and what it complains of."""
    (folder / JOB_FILE).write_text(text)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WARM, folder, *more],
        capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.long)])
def test_the_compiler_is_imported_for_a_job_that_compiles_by_one_thread_and_without_a_pool(device, tmp_path, make_job):
    assert warmed(tmp_path, render_job(make_job(compile=True, device=device))) == ("True True 1 []", "")


def test_other_jobs_do_not_wait_for_the_compiler(tmp_path, make_job):
    assert warmed(tmp_path, render_job(make_job())) == ("True False 1 []", "")


@pytest.mark.long
def test_what_does_not_compile_in_the_end_waits_as_little(tmp_path, make_job):
    plan = {"pp": 2, "vpp": 2, "schedule": "zbv"}
    job = make_job(compile=True, plan=plan, model={"layers": 4})
    assert warmed(tmp_path, render_job(job)) == ("True False 1 []", "")
    assert warmed(tmp_path, "no job") == ("True False 1 []", "")


def test_forks_that_could_use_no_accelerator_are_not_made_and_it_is_said_why(tmp_path, make_job):
    said, complaint = warmed(tmp_path, render_job(make_job()), "used")
    assert said == "False False 1 []"
    assert complaint.splitlines()[-1].startswith("RuntimeError: an accelerator was used in the process that forks")


def test_drivers_are_not_asked_while_the_compiler_is_imported():
    asked = torch.cuda.is_available, torch.xpu.is_available
    with _unasked(DeviceKind.CUDA):
        assert (torch.cuda.is_available(), torch.xpu.is_available()) == (True, False)
    with _unasked(DeviceKind.XPU):
        assert (torch.cuda.is_available(), torch.xpu.is_available()) == (False, True)
    assert (torch.cuda.is_available, torch.xpu.is_available) == asked
