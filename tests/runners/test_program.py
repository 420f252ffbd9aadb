"""The program of a workload: what tells the measurements of one user's script from another's."""

from __future__ import annotations

from typing import Any

import pytest

from meshtune.runners.programs.workloads.command import program_of
from meshtune.runners.registry import create_workload


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["{python}", "train.py", "--tp={tp}"], "train.py"),
        (["python3", "-u", "/runs/0123/train.py"], "train.py"),
        (["torchrun", "--nproc-per-node", "8", "-m", "pkg.train", "conf.py"], "pkg.train"),
        (["python", "-m", "torch.distributed.run", "--nnodes=2", "pretrain_gpt.py"], "pretrain_gpt.py"),
        (["python", "-m", "meshtune.runners.report", "fit.py"], "fit.py"),
        (["python", "-m", "torchtitan.train"], "torchtitan.train"),
        (["python", "deepy.py", "train.py", "neox.yml"], "train.py"),
        (["srun", "--nodes=2", "/opt/bin/my-trainer", "{tp}"], "my-trainer"),
        (["bash", "run.sh", "python", "train.py"], "run.sh"),
        ("case {zero_stage} in 1) z=a;; esac\nexec NCCL_X=1 python3 a/b/train.py --x $z", "train.py"),
        ("OMP_NUM_THREADS=1 composer train/train.py x.yaml", "train.py"),
        ("nemo llm pretrain --factory 'open", "nemo"),
        ("cat {files.x} | fit", "cat"),
        ("--only=options", ""),
    ],
)
def test_a_command_s_program_is_its_first_script_or_module(command: Any, program: str) -> None:
    assert program_of(command) == program


@pytest.mark.parametrize(
    ("kind", "options", "program"),
    [
        ("torch", {"dtype": "float16"}, ""),
        ("simulated", {}, ""),
        ("command", {"command": ["python", "x/train.py", "{tp}"]}, "train.py"),
        ("megatron", {"directory": "/m", "script": "tools/pretrain_mamba.py"}, "pretrain_mamba.py"),
        ("deepspeed", {"directory": "/d", "script": "a/b.py", "arguments": ["--lr 1"]}, "b.py"),
        ("deepspeed", {"directory": "/d", "module": "a.b"}, "a.b"),
        ("torchtitan", {"directory": "/t", "release": "v0.3", "arguments": ["--module mine"]}, "v0.3 mine"),
        ("torchtitan", {"directory": "/t", "release": "v0.2"}, "v0.2"),
    ],
)
def test_the_program_of_a_workload_is_its_script_whatever_its_arguments(kind: str, options: Any, program: str) -> None:
    assert create_workload(kind, options).program == program
