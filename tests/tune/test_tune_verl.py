"""A launch of verl is tuned from its own command: what generates and what trains divide a device's memory. A stand-in
prints the log (tests/laboratories/rl_stand_in.py)."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_lab import run_meshtune

STAND_IN = Path(__file__).parents[1] / "laboratories" / "rl_stand_in.py"
WORDS = (
    "algorithm.adv_estimator=grpo data.train_batch_size=512 data.max_prompt_length=1024 data.max_response_length=3072 "
    "actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.actor.ppo_mini_batch_size=128 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.actor.use_kl_loss=True "
    "actor_rollout_ref.actor.fsdp_config.param_offload=True actor_rollout_ref.actor.fsdp_config.optimizer_offload=True "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 actor_rollout_ref.rollout.name=vllm "
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1 actor_rollout_ref.rollout.gpu_memory_utilization=0.4 "
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.n=5 trainer.n_gpus_per_node=8 "
    "trainer.nnodes=1"
)


def placed(folder: Path) -> Path:
    """The user's folder, from which Python starts the stand-in as verl.trainer.main_ppo."""
    package = folder / "user" / "verl" / "trainer"
    package.mkdir(parents=True)
    for inner in (package, package.parent):
        (inner / "__init__.py").touch()
    shutil.copy(STAND_IN, package / "main_ppo.py")
    return folder / "user"


def step_s(user: Path, words: list[str]) -> float:
    """The mean over three steps that the stand-in prints for these words."""
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *words, "trainer.total_training_steps=3"]
    done = subprocess.run(command, cwd=user, capture_output=True, text=True, timeout=60, check=True)
    times = [float(each) for each in re.findall(r"timing_s/step:(\S+)", done.stdout)]
    assert len(times) == 3, done.stdout
    return sum(times) / 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_verl_is_tuned_from_its_launch_to_other_words(tmp_path, monkeypatch):
    user = placed(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MESHTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    options = ["--yes", "--trials", "16", "--answer", "cluster={preset: dgx-h100}", "--answer", "confirm_rounds=1"]
    done = run_meshtune(user, "tune", *options, "--", "python3", "-m", "verl.trainer.main_ppo", *WORDS.split())
    told = done.out + done.err
    assert done.code == 0, told
    assert re.search(r"(?m)^trial 0: .*: ok, step ", done.out), told
    assert "global batch 640, and stays" in " ".join(done.out.split()), told
    (line,) = re.findall(r"(?m)^Your launch line, .* faster:\n +(.*)$", done.out)
    assert "changed: actor_rollout_ref." in done.out, told
    words = shlex.split(line)[3:]
    for kept in ("actor_rollout_ref.rollout.n=5", "data.train_batch_size=512", "trainer.nnodes=1"):
        assert kept in words
    # Nothing of trials alone.
    assert not [word for word in words if word.startswith(("trainer.total_training_steps", "trainer.logger"))]
    assert step_s(user, words) < 0.9 * step_s(user, WORDS.split())


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("actor_rollout_ref.rollout.gpu_memory_utilization=0.1", "No available memory for the cache blocks"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32", "in update_actor"),
        (
            "actor_rollout_ref.rollout.gpu_memory_utilization=0.9 "
            "actor_rollout_ref.actor.fsdp_config.optimizer_offload=False",
            "in wake_up",
        ),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=16", "is not divisible by infer_world_size: 16"),
        ("trainers.nnodes=1", "Could not override 'trainers.nnodes'"),
    ],
)
def test_the_stand_in_fails_where_verl_does(tmp_path, words, error):
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *WORDS.split(), *words.split()]
    done = subprocess.run(command, cwd=placed(tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert error in done.stderr
