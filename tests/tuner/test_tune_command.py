"""`meshtune tune` before anything runs: what it shows, writes and refuses. Whole campaigns: tests/tune."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from command_lab import run_meshtune

from meshtune.tuner.specs.document import parse_yaml

TRAIN = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4, help="samples per process")
parser.add_argument("--grad-accum", type=int, default=8)
parser.add_argument("--save-dir", default="checkpoints")
"""
LINE = ["torchrun", "--nproc-per-node", "2", "train.py", "--batch-size", "2"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    # torchrun is installed beside the interpreter.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def tune(folder, *words: str):
    return run_meshtune(folder, "tune", *words)


def test_a_dry_run_shows_what_was_understood_and_the_first_job(folder):
    done = tune(folder, "--dry-run", "--", *LINE)
    assert done.code == 0, done.err
    words = " ".join(done.out.split())
    for told in (
        "launch torchrun --nproc-per-node 2 train.py --batch-size 2",
        "program train.py",
        "devices 1 x 2 cpu-process, runner local",
        "model is not named: speed and memory are learnt from trials alone",
        "global batch 32, and stays",
        "as it is tp1 pp1 dp2 mbs2 ga8 zero0",
        "tried micro_batch_size 1, 2, 4, 8, 16",
        "ends when its steps are measured",
        'guess: micro_batch_size 2 by --batch-size 2 ("samples per process")',
        "meshtune.runners.watch -- ",
    ):
        assert told in words, told
    assert not (folder / ".meshtune").exists()


def test_the_words_of_the_launch_are_its_own_without_dashes_before_them(folder):
    assert tune(folder, "--dry-run", *LINE).out == tune(folder, "--dry-run", "--", *LINE).out


def test_without_a_terminal_nothing_starts_unless_it_is_said(folder):
    done = tune(folder, "--", *LINE)
    assert done.code == 2
    assert "there is no terminal to ask on: --yes goes on so" in done.err
    assert not (folder / ".meshtune").exists()


def test_the_spec_is_written_and_read_as_one(folder):
    done = tune(folder, "--spec", "spec.yaml", "--trials", "5", "--answer", "trial.time_limit_s=99", "--", *LINE)
    assert done.code == 0, done.err
    spec = parse_yaml((folder / "spec.yaml").read_text())
    assert (spec["budget"], spec["trial"]) == ({"trials": 5}, {"time_limit_s": 99})
    assert "{micro_batch_size}" in spec["workload"]["command"]
    counted = run_meshtune(folder, "spaces", "spec.yaml")
    assert counted.code == 0, counted.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--", "torchrun", "--nnodes", "2", "--nproc-per-node", "8", "train.py"],
            "open: cluster: the launch starts on 2 x 8",
        ),
        (["--", "python", "empty.py"], "there is one plan, the present one"),
        (["--", "ls"], "no line starts a Python program"),
        (["--apply", "train.py", "--", *LINE], "--apply train.py: is there already"),
        (["--answer", "batch", "--", *LINE], "--answer batch: must be name=value"),
        (["--answer", "global_batch_size=7", "--", *LINE], "global"),
    ],
)
def test_what_cannot_be_tuned_is_told_with_its_cause(folder, words, told):
    (folder / "empty.py").write_text("")
    done = tune(folder, "--yes", *words)
    assert done.code == 2
    assert told in done.err
    assert not (folder / ".meshtune").exists()


def test_a_job_script_without_a_known_device_asks_for_the_cluster_and_takes_the_answer(folder):
    (folder / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n"
        "srun torchrun --nnodes 2 --nproc-per-node 8 train.py --batch-size 4\n"
    )
    done = tune(folder, "--yes", "--dry-run", "--", "sbatch", "job.sbatch")
    assert (done.code, "open: cluster: which devices the job has is not said" in done.err) == (2, True), done.err
    answers = ["--answer", "cluster={preset: dgx-h100, nodes: 2}"]
    done = tune(folder, "--yes", "--spec", "spec.yaml", *answers, "--", "sbatch", "job.sbatch")
    assert done.code == 0, done.err
    spec = parse_yaml((folder / "spec.yaml").read_text())
    assert (spec["runner"]["kind"], spec["cluster"]["preset"], spec["global_batch_size"]) == ("slurm", "dgx-h100", 512)
