"""A launch of NeMo-RL is tuned from its own command, with a file that inherits another. A stand-in prints the log
(tests/laboratories/rl_stand_in.py)."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command_lab import run_meshtune
from rl_stand_in import NEMO_RL

STAND_IN = Path(__file__).parents[1] / "laboratories" / "rl_stand_in.py"
OWN = {
    "defaults": "base.yaml",
    "grpo": {"num_prompts_per_step": 64},
    "policy": {
        "max_total_sequence_length": 4096,
        "dtensor_cfg": {"activation_checkpointing": True},
        "generation": {
            "max_new_tokens": 3072,
            "vllm_cfg": {"tensor_parallel_size": 4, "gpu_memory_utilization": 0.5, "enforce_eager": True},
        },
    },
    "cluster": {"gpus_per_node": 8},
}
LINE = ["examples/run_grpo.py", "--config", "configs/own.yaml", "policy.logprob_batch_size=2"]


def placed(folder: Path) -> Path:
    """The user's folder, with an executable `uv` that stands for it."""
    user = folder / "user"
    for inner in ("examples", "configs", "bin"):
        (user / inner).mkdir(parents=True)
    shutil.copy(STAND_IN, user / "examples" / "run_grpo.py")
    (user / "configs" / "base.yaml").write_text(yaml.safe_dump(NEMO_RL))
    (user / "configs" / "own.yaml").write_text(yaml.safe_dump(OWN))
    (user / "bin" / "uv").write_text(f'#!/bin/sh\nshift\n[ "$1" = python ] && shift\nexec {sys.executable} "$@"\n')
    (user / "bin" / "uv").chmod(0o755)
    return user


def step_s(user: Path, words: list[str]) -> float:
    """The mean over three steps that the stand-in prints for these words."""
    command = [sys.executable, *words, "grpo.max_num_steps=3"]
    done = subprocess.run(command, cwd=user, capture_output=True, text=True, timeout=60, check=False)
    times = [float(each) for each in re.findall(r"Total step time: ([\d.]+)s", done.stdout)]
    assert len(times) == 3, (words, done.stdout, done.stderr)
    return sum(times) / 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nemo_rl_is_tuned_from_its_launch_to_other_words(tmp_path, monkeypatch):
    user = placed(tmp_path)
    monkeypatch.setenv(
        "PATH", os.pathsep.join((str(user / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
    )
    monkeypatch.setenv("MESHTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    options = ["--yes", "--trials", "16", "--answer", "cluster={preset: dgx-h100}", "--answer", "confirm_rounds=1"]
    done = run_meshtune(user, "tune", *options, "--", "uv", "run", *LINE)
    told = done.out + done.err
    assert done.code == 0, told
    assert re.search(r"(?m)^trial 0: .*: ok, step ", done.out), told
    assert "nemo_rl_enforce_eager=true" in " ".join(done.out.split()), told
    (line,) = re.findall(r"(?m)^Your launch line, .* faster:\n +(.*)$", done.out)
    words = shlex.split(line)
    assert words[:2] == ["uv", "run"]
    words = words[words.index("examples/run_grpo.py") :]
    assert words[1:3] == ["--config", "configs/own.yaml"]
    # Nothing of trials alone.
    assert not [word for word in words if word.startswith(("grpo.max_num_steps", "checkpointing", "logger"))]
    assert step_s(user, words) < 0.9 * step_s(user, LINE)


def test_the_stand_in_takes_no_key_that_the_file_has_not(tmp_path):
    command = [sys.executable, *LINE, "policy.generation.vllm_kwargs.max_num_seqs=512"]
    done = subprocess.run(command, cwd=placed(tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert "Could not override 'policy.generation.vllm_kwargs.max_num_seqs'" in done.stderr
