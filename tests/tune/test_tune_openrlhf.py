"""OpenRLHF's reinforcement learning from its launch to a recommendation, by a stand-in that prints its log: see
laboratories/openrlhf_stand_in.py."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import openrlhf_stand_in
import pytest
from command_lab import run_meshtune

STAND_IN = Path(openrlhf_stand_in.__file__)
DEVICES = 4
LINE = (
    "python3 -m openrlhf.cli.train_ppo_ray --ref.num_gpus_per_node 4 --actor.num_gpus_per_node 4 --vllm.num_engines 4 "
    "--vllm.tensor_parallel_size 1 --train.colocate_all --vllm.gpu_memory_utilization 0.5 --actor.model_name_or_path "
    "Qwen/Qwen3-8B --reward.remote_url reward.py --algo.advantage.estimator group_norm --train.batch_size 128 "
    "--rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --data.max_len 2048 --ds.zero_stage 3 "
    "--actor.gradient_checkpointing_enable --vllm.enforce_eager --vllm.enable_sleep --ds.enable_sleep"
)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The user's, in which `python -m` has the stand-in for the program."""
    (tmp_path / "openrlhf" / "cli").mkdir(parents=True)
    shutil.copy(STAND_IN, tmp_path / "openrlhf" / "cli" / "train_ppo_ray.py")
    monkeypatch.setenv("MESHTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "400")
    return tmp_path


def step_s(words: list[str]) -> float:
    args = vars(openrlhf_stand_in.parsed(words))
    return sum(openrlhf_stand_in.phases_s(args, DEVICES).values())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_better_division_of_memory_and_devices_is_reached_and_the_line_says_it(folder):
    line = shlex.split(LINE)
    (folder / "train.sh").write_text(f"#!/bin/bash\n{LINE}\n")
    done = run_meshtune(folder, "tune", "--yes", "--apply", "new.sh", "--", "bash", "train.sh")
    assert done.code == 0, done.err
    assert "failures: " in done.out, "engine and update that do not fit together are among the trials"
    told = re.search(r"Your launch line, .* faster:\s+(python -m openrlhf\S+ .*)", done.out)
    assert told is not None, done.out
    words = shlex.split(told[1])
    applied = shlex.split((folder / "new.sh").read_text().splitlines()[1])
    assert sorted(applied[3:]) == sorted(words[3:])
    # By the planted seconds, with the words as they are told; what is trained is as it was.
    start = words.index("openrlhf.cli.train_ppo_ray") + 1
    assert step_s(words[start:]) < step_s(line[line.index("openrlhf.cli.train_ppo_ray") + 1 :]) / 1.5
    own = openrlhf_stand_in.parsed(words[start:])
    args = vars(own)
    assert args["vllm.num_engines"] * args["vllm.tensor_parallel_size"] == DEVICES
    assert (args["train.batch_size"], args["rollout.batch_size"], args["rollout.n_samples_per_prompt"]) == (128, 128, 8)
    assert args["data.max_samples"] == 100_000_000
    # Each option once, none of a trial alone.
    names = [word for word in words if word.startswith("--")]
    assert len(names) == len(set(names))
    assert not {"--ckpt.path", "--train.num_episodes"} & set(names)


def test_the_launch_is_understood_and_what_may_change_is_shown(folder):
    done = run_meshtune(folder, "tune", "--dry-run", "--", *shlex.split(LINE))
    assert done.code == 0, done.err
    words = " ".join(done.out.split())
    for told in (
        "as it is tp1 pp1 dp4 mbs1 ga32 zero3 recompute-full",
        "openrlhf_engine_tp=1",
        "openrlhf_gpu_memory_utilization=0.5",
        "openrlhf_rollout_micro_batch_size 1, 2, 4, 8, 16, 32",
        # Six steps of 128 prompts.
        "--data.max_samples 768",
        "--vllm.tensor_parallel_size 1 --vllm.num_engines 4",
    ):
        assert told in words, told
    # Engines of their own devices are as many as the launch says; no dynamic batch, no knob of one.
    assert "max_tokens_per_gpu" not in words
    apart = LINE.replace("--train.colocate_all ", "").replace("--vllm.enable_sleep --ds.enable_sleep", "")
    words = " ".join(run_meshtune(folder, "tune", "--dry-run", "--", *shlex.split(apart)).out.split())
    assert "--vllm.num_engines 4 --vllm.tensor_parallel_size 1" in words
    assert not {"openrlhf_engine_tp", "openrlhf_vllm_enable_sleep"} & set(words.split())
    assert "4 more devices are those of the engines" in words
