"""What verl, NeMo-RL and OpenRLHF say of a step of reinforcement learning, beyond their plainest launches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from rl_stand_in import NEMO_RL

from meshtune.runners.programs.dialects.base import CannotRead, Imported
from meshtune.runners.programs.dialects.sources import read_command
from meshtune.runners.programs.log_patterns import Patterns
from meshtune.tuner.specs.launch_draft import Devices, draft_launch

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
LENGTHS = "data.max_prompt_length=1024 data.max_response_length=3072"
GRPO = (
    f"algorithm.adv_estimator=grpo {LENGTHS} data.train_batch_size=64 {ACTOR}.ppo_mini_batch_size=32 {ROLLOUT}.n=4 "
    "trainer.n_gpus_per_node=8 actor_rollout_ref.model.path=Qwen/Qwen3-8B"
)


def verl(words: str, module: str = "verl.trainer.main_ppo") -> Imported:
    return read_command(f"python3 -m {module} {words}", given={})


def asked(imported: Imported) -> list[str]:
    return [question.path for question in imported.questions if not question.guessed]


@pytest.mark.parametrize(
    ("tokens", "ranks_of_a_row", "rows"),
    # 16 rows are a device's; 5, 3 and 7 of full length share them out as 4, 2 and 4.
    [(5 * 4096, 1, 4), (3 * 4096, 1, 2), (7 * 2048, 2, 4), (3 * 1024, 4, 2), (2**20, 1, 16)],
)
def test_passes_by_tokens_count_rows_that_share_out_a_devices(tokens, ranks_of_a_row, rows):
    words = f"{GRPO} {ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu={tokens}"
    found = verl(f"{words} {ACTOR}.ulysses_sequence_parallel_size={ranks_of_a_row}")
    whole = 32 * 4 // (8 // ranks_of_a_row)
    assert found.plan["micro_batch_size"] <= max(1, tokens * ranks_of_a_row // 4096)
    assert whole % found.plan["micro_batch_size"] == 0
    assert found.plan["micro_batch_size"] == rows
    assert asked(found) == []


def test_the_older_micro_batch_is_of_all_devices_together():
    found = verl(f"{GRPO} {ACTOR}.ppo_micro_batch_size=32")
    assert found.plan["micro_batch_size"] == 4
    assert not any("micro_batch_size_per_gpu" in str(word) for word in found.workload["command"])


def test_engines_that_never_wait_end_by_prompts():
    words = (
        f"{GRPO.replace('train_batch_size=64', 'train_batch_size=0')} {ACTOR}.ppo_micro_batch_size_per_gpu=2 "
        "rollout.nnodes=2 rollout.n_gpus_per_node=4 rollout.total_rollout_steps=51200 rollout.test_freq=10 "
        "async_training.require_batches=2 async_training.trigger_parameter_sync_step=3"
    )
    found = verl(words, "verl.experimental.fully_async_policy.fully_async_main")
    rollout: Any = found.training["rollout"]
    assert (rollout["updates"], rollout["devices"], rollout["behind"]) == (2 * 3, 8, 1)
    # Six steps, each of which is a refit after 32 * 2 * 3 prompts; none of them is a validation.
    trial = found.workload["trial_arguments"]
    assert trial["rollout.total_rollout_steps"] == 6 * 192
    assert trial["rollout.test_freq"] > 6
    assert asked(found) == []


def test_what_a_trial_says_itself_need_not_be_known():
    found = verl(f"{GRPO} {ACTOR}.ppo_micro_batch_size_per_gpu=2 'trainer.experiment_name=run-$(date +%s)'")
    assert asked(found) == []
    found = verl(f"{GRPO} {ACTOR}.ppo_micro_batch_size_per_gpu=2 data.train_files=$ELSEWHERE")
    assert asked(found) == ["workload.command"]


def test_a_command_that_is_asked_for_stays_open_in_a_draft():
    found = verl(f"{GRPO} {ACTOR}.ppo_micro_batch_size_per_gpu=2 data.train_files=$ELSEWHERE")
    assert "workload.command" in [question.path for question in draft(found).open]


def draft(found: Imported) -> Any:
    devices = Devices(accelerators=(), memory_bytes=2**36)
    return draft_launch(found, name="x", here=Path(), devices=devices, answers={"cluster": {"preset": "dgx-h100"}})


def test_a_sweep_is_refused():
    with pytest.raises(CannotRead, match="several trainings"):
        verl(f"--multirun {GRPO} {ACTOR}.ppo_micro_batch_size_per_gpu=1,2")


def test_interpolations_of_words_are_followed():
    found = verl(f"{GRPO} {ACTOR}.ppo_micro_batch_size_per_gpu=2 '{ROLLOUT}.max_num_seqs=${{data.train_batch_size}}'")
    assert found.training["rollout"]["max_rows"] == 64


MEGATRON = f"{GRPO} {ACTOR}.strategy=megatron {ACTOR}.ppo_micro_batch_size_per_gpu=1"
STAGES = f"{ACTOR}.megatron.pipeline_model_parallel_size"
OWN = f"+{ACTOR}.megatron.override_transformer_config"


@pytest.mark.parametrize(
    ("words", "first", "last"),
    [
        # 36 layers over 4 stages, or 6 and 10 at the ends; over 2 stages 38 are counted with embedding and loss.
        (f"{OWN}.num_layers_in_first_pipeline_stage=6 {OWN}.num_layers_in_last_pipeline_stage=10", 4, 0),
        (f"{OWN}.num_layers_in_last_pipeline_stage=6", 0, 4),
    ],
)
def test_uneven_stages_stay_with_their_pipeline(words, first, last):
    found = verl(f"{MEGATRON} {STAGES}=4 {words}")
    assert (found.plan.get("first_stage_less_layers"), found.plan.get("last_stage_less_layers")) == (first, last)
    assert found.workload["fixed"]["pp"] == 4


def test_chunks_of_a_stage_interleave():
    found = verl(f"{MEGATRON} {STAGES}=2 {ACTOR}.megatron.virtual_pipeline_model_parallel_size=3")
    assert (found.plan["vpp"], found.plan["schedule"]) == (3, "interleaved")
    plain = verl(f"{MEGATRON} {STAGES}=2 {ACTOR}.megatron.virtual_pipeline_model_parallel_size=null")
    assert "vpp" not in plain.plan


@pytest.mark.parametrize(("heads", "engines"), [("Qwen/Qwen3-8B", [1, 2, 4, 8]), ("Qwen/Qwen2.5-0.5B", [1, 2])])
def test_engines_are_opened_whose_devices_divide_the_heads(heads, engines):
    found = verl(f"{GRPO.replace('Qwen/Qwen3-8B', heads)} {ACTOR}.ppo_micro_batch_size_per_gpu=2")
    document = draft(found).document
    assert document["knobs"]["verl_tensor_model_parallel_size"]["values"] == engines


def test_the_launchs_own_number_lies_in_order_among_the_opened():
    found = verl(f"{GRPO} {ACTOR}.ppo_micro_batch_size_per_gpu=2 {ROLLOUT}.gpu_memory_utilization=0.55")
    values = draft(found).document["knobs"]["verl_gpu_memory_utilization"]["values"]
    assert 0.55 in values
    assert values == sorted(values)


def test_a_row_that_is_cut_over_ranks_needs_fewer_tokens_of_each():
    words = f"{GRPO} {ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=16384".replace("3072", "15360")
    own = {"1": [16384, 24576, 32768, 65536], "2": [8192, 16384, 24576, 32768, 65536]}
    for ranks, values in own.items():
        found = verl(f"{words} {ACTOR}.ulysses_sequence_parallel_size={ranks}")
        assert draft(found).document["knobs"]["verl_ppo_max_token_len_per_gpu"]["values"] == values


# Numbers as aggregate_logger.py prints them: Python's, and numpy's of release 2; behind Ray's coloured prefix.
LINE = (
    "\x1b[36m(TaskRunner pid=714)\x1b[0m step:12 - actor/loss:np.float64(0.5) - "
    "perf/max_memory_reserved_gb:np.float64(41.5) - training/global_step:12 - timing_s/gen:np.float64(31.25) - "
    "timing_s/ref:2.5 - timing_s/old_log_prob:1e-05 - timing_s/step:np.float64(50.0) - perf/total_num_tokens:812345"
)


def test_numbers_of_verls_log_are_read_as_numpy_prints_them():
    patterns = Patterns(verl(f"{GRPO} {ACTOR}.ppo_micro_batch_size_per_gpu=2").workload["log"])
    names = ("step", "step_time_s", "generation_s", "log_probs_s", "memory_gib", "tokens")
    found = {name: each.value for name in names if (each := patterns.find(name, LINE)) is not None}
    assert found == dict(zip(names, (12, 50.0, 31.25, 2.50001, 41.5, 812345), strict=True))
    # A line of validation, or of a refit alone, is no step.
    assert patterns.find("step", "step:12 - timing_s/param_sync:1.5") is None
    refit = patterns.find("refit_s", "step:12 - timing_s/param_sync:1.5")
    assert refit is not None
    assert refit.value == 1.5


@pytest.mark.parametrize(("tp", "same"), [(1, False), (4, True)])
def test_nemo_rl_has_one_micro_batch_in_both_passes_of_wide_products(tp, same, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(yaml.safe_dump(NEMO_RL))
    words = f"policy.dtensor_cfg.tensor_parallel_size={tp} cluster.gpus_per_node=8"
    found = read_command(f"uv run examples/run_grpo.py --config own.yaml {words}", given={})
    assert ("policy.logprob_batch_size={micro_batch_size}" in found.workload["command"]) is same
