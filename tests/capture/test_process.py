"""`meshtune import --pid`: real processes, a real torchrun among them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from command_lab import run_meshtune
from jobs import processes_where

from meshtune.runners.programs.capture.process import process_call
from meshtune.runners.programs.dialects.call import launch_of
from meshtune.tuner.specs.document import parse_yaml

SHAPES = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --vocab-size 51200"
REST = "--micro-batch-size 2 --global-batch-size 64 --bf16 --tensor-model-parallel-size 2"
# Tells when it is there, and ends by itself.
PROGRAM = "import os, time\nopen('ready-' + os.environ.get('RANK', '0'), 'w').close()\ntime.sleep(60)\n"


@contextmanager
def started(folder: Path, *command: str, ready: int = 1, **variables: str) -> Iterator[subprocess.Popen]:
    (folder / "pretrain_gpt.py").write_text(PROGRAM)
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, **variables}, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while len(list(folder.glob("ready-*"))) < ready:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
    finally:
        os.killpg(process.pid, 9)
        for found in processes_where(lambda one: str(folder) in os.readlink(one / "cwd")):
            os.kill(found, 9)
        process.wait()


def test_a_process_is_read_by_its_words_its_environment_and_its_folder(tmp_path):
    words = (sys.executable, "-u", "pretrain_gpt.py", *SHAPES.split(), *REST.split())
    ranks = {"RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "n1", "NCCL_IB_HCA": "mlx5"}
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_ACCOUNT": "phys"}
    with started(tmp_path, *words, **ranks, **slurm, MY_TOKEN="hush") as process:
        done = run_meshtune(tmp_path, "import", "--pid", str(process.pid), "--cluster", "dgx-h100")
    assert done.code == 0, done.err
    document = parse_yaml(done.out)
    assert document["cluster"] == {"preset": "dgx-h100", "nodes": 2}
    assert document["workload"]["env"] == {"NCCL_IB_HCA": "mlx5"}
    assert document["workload"]["directory"] == str(tmp_path)
    assert document["baseline"]["tp"] == 2
    assert document["runner"] == {"kind": "slurm", "partition": "gpu", "account": "phys"}
    assert "the value of MY_TOKEN is not copied" in done.err
    assert "hush" not in done.out


def test_options_of_the_srun_above_a_process_are_kept(tmp_path):
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nshift 3\n"$@" &\nwait\n')
    srun.chmod(0o700)
    words = (str(srun), "--mpi=pmix", "-N2", "--network=job_vni", sys.executable, "pretrain_gpt.py")
    with started(tmp_path, *words, *SHAPES.split(), *REST.split(), SLURM_JOB_ID="7") as process:
        done = run_meshtune(tmp_path, "import", "--pid", str(process.pid), "--cluster", "dgx-h100")
    runner = parse_yaml(done.out)["runner"]
    assert runner == {"kind": "slurm", "mpi": "pmix", "srun_arguments": ["--network=job_vni"]}


@pytest.mark.slow
def test_a_rank_its_launcher_and_the_shell_around_them_are_the_same_training(tmp_path):
    script = (
        f"{sys.executable} -m torch.distributed.run --standalone --nproc_per_node 2 pretrain_gpt.py {SHAPES} {REST}"
    )
    (tmp_path / "ds.json").write_text("{}")
    (tmp_path / "launch.sh").write_text(f"export NCCL_DEBUG=WARN\n{script} --deepspeed_config ds.json\ntrue\n")
    with started(tmp_path, "bash", "launch.sh", ready=2) as process:
        pids = processes_where(lambda one: str(tmp_path) in os.readlink(one / "cwd"))
        calls = [process_call(pid) for pid in pids]
    # The shell, torchrun and its two ranks.
    assert len(pids) == 4
    assert process.pid in pids
    for call in calls:
        launch = launch_of(call, "")
        assert (launch.script, launch.nodes, launch.devices_per_node) == ("pretrain_gpt.py", 1, 2)
        assert launch.launcher[:3] == ("python", "-m", "torch.distributed.run")
        assert launch.env["NCCL_DEBUG"] == "WARN"
        assert not any(name.startswith(("TORCHELASTIC", "ROLE", "GROUP")) for name in launch.env)
        assert launch.files == {"ds.json": "{}"}


def test_a_process_that_is_gone_or_is_no_training_is_said_so(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    run = partial(run_meshtune, tmp_path, "import", "--pid")
    assert f"there is no process {gone.pid} on this machine" in run(str(gone.pid)).err
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as sleeping:
        done = run(str(sleeping.pid))
        sleeping.kill()
    assert done.code == 2
    assert "is no Python program and no launcher of one" in done.err


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_the_process_of_another_user_is_not_read(tmp_path):
    """Who may not read it is `nobody`, in a process of its own."""
    code = (
        "import os, json\nfrom meshtune.runners.programs.capture.process import process_call\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n    process_call(int(os.environ['OF']))\nexcept Exception as error:\n    print(json.dumps(str(error)))\n"
    )
    with started(tmp_path, sys.executable, "pretrain_gpt.py", "--num-layers", "2") as process:
        environment = {**os.environ, "OF": str(process.pid)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert json.loads(done.stdout).startswith(f"process {process.pid} belongs to root, and nobody may not read its env")
