"""What no row of verl's table can say: which of its trainings is started, and what an update is made of."""

from __future__ import annotations

from meshtune.runners.programs.reading import Reading

_ACTOR = "actor_rollout_ref.actor"


def kind(reading: Reading) -> str:
    words = " ".join(map(str, reading.get("words") or ()))
    if "sft" in words:
        return "sft"
    megatron = "megatron" in words or "megatron" in (reading.get(f"{_ACTOR}.strategy"), reading.get("model_engine"))
    return "megatron" if megatron else "fsdp"


def rows(reading: Reading) -> None:
    """A sequence is a prompt and its answer; both have 512 tokens unless said: trainer/config/data/legacy_data.yaml."""
    parts = [reading.whole(f"data.{name}", "model.seq_len") for name in ("max_prompt_length", "max_response_length")]
    if not reading.is_asked("model.seq_len"):
        reading.fields["model.seq_len"] = sum(part or 512 for part in parts)


def group(reading: Reading) -> None:
    """One of all ranks where a size is negative, or no fewer than those (create_device_mesh)."""
    name, fields = f"{_ACTOR}.fsdp_config.fsdp_size", reading.fields
    ranks = None if str(reading.get(name)).startswith("-") else reading.whole(name, "baseline.zero_group")
    devices = (fields.get("nodes") or 0) * (fields.get("devices_per_node") or 0)
    if ranks and not 0 < devices <= ranks:
        reading.put("zero_ranks", ranks, name)


def batch(reading: Reading) -> None:
    """An update takes a mini-batch of prompts, with rollout.n answers of each."""
    answers, mini = reading.whole("actor_rollout_ref.rollout.n") or 1, f"{_ACTOR}.ppo_mini_batch_size"
    prompts = reading.whole(mini, "global_batch_size") or 256
    reading.put("global_batch_size", prompts * answers, mini, "actor_rollout_ref.rollout.n")
    updates = (reading.whole("data.train_batch_size") or 1024) / prompts
    generated = "generation, rewards and a reference are not predicted, and their memory is not counted"
    times = f"timing_s/update_actor, by which trials are timed, is of {updates:g} updates"
    reading.ask("", f"reinforcement learning: {generated}; {times}. Is that meant?")
    micro = f"{_ACTOR}.ppo_micro_batch_size_per_gpu"
    if reading.get(f"{_ACTOR}.use_dynamic_bsz") is True:
        tokens = reading.whole(f"{_ACTOR}.ppo_max_token_len_per_gpu") or 16384
        of = reading.fields.get("model.seq_len") or tokens
        rows_ = max(1, tokens // of)
        reading.fields["micro_batch_size"] = reading.kept["micro_batch_size"] = rows_
        told = f"a pass takes {tokens} tokens (use_dynamic_bsz), however many rows: {rows_} of full length are counted"
        reading.note(f"{told}, and {micro} counts for nothing")
