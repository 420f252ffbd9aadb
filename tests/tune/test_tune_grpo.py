"""TRL's GRPO from its own command to a recommendation: the real program, whose model generates by itself."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from command_lab import run_meshtune
from tiny_models import save_dataset, save_model

from meshtune.runners.outcome import parse_result
from meshtune.tuner.specs.document import parse_yaml

LINE = (
    "trl grpo --model_name_or_path model --dataset_name data --reward_funcs own_rewards.short --num_generations 4 "
    "--max_completion_length 16 --bf16 false --gradient_checkpointing false --per_device_train_batch_size 1 "
    "--gradient_accumulation_steps 32 --use_cpu --dataloader_num_workers 0 --learning_rate 1e-4 --output_dir out"
)
REWARDS = """
def short(completions, **_):
    return [-float(len(each)) for each in completions]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The user's, with a tiny model, prompts and a reward."""
    pytest.importorskip("trl")
    save_model(tmp_path / "model")
    save_dataset(tmp_path / "data", rows=400, words=24, pairs=True)
    (tmp_path / "own_rewards.py").write_text(REWARDS)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MESHTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path


def imported(folder: Path, line: str) -> dict[str, Any]:
    """The spec of a launch line."""
    done = run_meshtune(folder, "import", "--command", line)
    assert done.code == 0, done.err
    return parse_yaml(done.out)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_rollouts_of_a_tiny_model_are_tuned_from_their_own_command(folder):
    """32 passes of an update of one short row each: fewer and larger ones are several times as fast."""
    quiet = os.getloadavg()[0] < 1
    few = ["--trials", "3", "--answer", "space.micro_batch_size=[1, 8, 32]", "--answer", "space.recompute=[none]"]
    # Steps of a fraction of a second, of which the few that are timed by default tell little.
    few += ["--answer", "confirm_rounds=3", "--answer", "confirm=1", "--answer", "workload.steps=14"]
    done = run_meshtune(folder, "tune", "--yes", *few, "--", *shlex.split(LINE))
    told = done.out + done.err
    assert done.code == 0, told
    one_line = " ".join(done.out.split())
    assert "as it is tp1 pp1 dp1 mbs1 ga32" in one_line, told
    assert "guess: training.rollout.prompt_tokens 512" in one_line, told
    assert len(re.findall(r"^trial \d: .*: ok, step ", done.out, re.MULTILINE)) == 3, told
    # Tokens are those that were generated, 32 rows of some 24 + 16, and not of rows that all have 528.
    outcomes = [parse_result(path.read_text()) for path in (folder / "home").rglob("result.json")]
    tokens = [one.measurement.tokens_per_step for one in outcomes]
    assert len(tokens) > 3
    assert all(32 * 16 < count < 32 * 100 for count in tokens), tokens
    line = re.search(r"Your launch line, .* faster:\s+(trl grpo .*)", done.out)
    # On a machine that others use as well second runs may tell no gain from noise.
    assert line or not quiet, told
    if line:
        words = shlex.split(line[1])
        batch, passes = (
            int(words[words.index(name) + 1])
            for name in ("--per_device_train_batch_size", "--gradient_accumulation_steps")
        )
        assert (batch * passes, batch > 1) == (32, True)
        # The rows of a generation follow from both, and are as many.
        assert "--generation_batch_size" not in words
        assert words[words.index("--num_generations") + 1] == "4"


@pytest.mark.parametrize(
    ("words", "rollout", "steps"),
    [
        ("", {"updates": 1, "max_rows": 32, "graphs": False, "sleeps": True}, (6, 2)),
        # A generation is for four updates, each of which is taken three times: its steps are timed whole.
        ("--generation_batch_size 128 --num_iterations 3", {"updates": 12, "max_rows": 128}, (24, 12)),
        ("--use_vllm --vllm_gpu_memory_utilization 0.4", {"share": 0.4, "graphs": True, "sleeps": False}, (6, 2)),
        ("--use_vllm true --vllm_enable_sleep_mode true", {"share": 0.3, "sleeps": True}, (6, 2)),
        ("--max_prompt_length 100", {"prompt_tokens": 100, "answer_tokens": 16}, (6, 2)),
    ],
)
def test_what_generates_and_how_many_updates_are_one_generation_is_read(folder, words, rollout, steps):
    document = imported(folder, f"{LINE} {words}")
    assert document["training"]["rollout"].items() >= rollout.items()
    assert (document["workload"]["steps"], document["workload"]["warmup_steps"]) == steps
    assert "beside" not in document["training"]


def test_a_reference_is_there_where_its_distance_counts(folder):
    assert imported(folder, f"{LINE} --beta 0.04")["training"]["beside"] == [{"role": "reference"}]
    assert "beside" not in imported(folder, f"{LINE} --beta 0.0")["training"]
    assert imported(folder, LINE.replace("trl grpo", "trl rloo"))["training"]["beside"] == [{"role": "reference"}]


def test_a_micro_batch_stays_that_steps_of_a_generation_count(folder):
    document = imported(folder, f"{LINE} --steps_per_generation 64")
    assert document["space"]["micro_batch_size"] == [1]
    assert document["training"]["rollout"]["updates"] == 2
