"""What no row of verl's table can say: which of its trainings is started, what an update is made of, and generation."""

from __future__ import annotations

from math import prod

from meshtune.runners.programs.reading import Reading, truth
from meshtune.runners.programs.recipes import packed

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def _started(reading: Reading, *names: str) -> bool:
    words = " ".join(map(str, reading.get("words") or ()))
    return any(name in words for name in names)


def kind(reading: Reading) -> str:
    if _started(reading, "sft"):
        return "sft"
    engines = (reading.get(f"{_ACTOR}.strategy"), reading.get("model_engine"))
    return "megatron" if _started(reading, "megatron") or "megatron" in engines else "fsdp"


def group(reading: Reading) -> None:
    """One of all ranks where a size is negative, or no fewer than those (create_device_mesh)."""
    name, fields = f"{_ACTOR}.fsdp_config.fsdp_size", reading.fields
    ranks = None if str(reading.get(name)).startswith("-") else reading.whole(name, "baseline.zero_group")
    devices = (fields.get("nodes") or 0) * (fields.get("devices_per_node") or 0)
    if ranks and not 0 < devices <= ranks:
        reading.put("zero_ranks", ranks, name)


def batch(reading: Reading) -> None:
    """An update takes a mini-batch of prompts, with rollout.n answers of each."""
    fields, mini = reading.fields, f"{_ACTOR}.ppo_mini_batch_size"
    prompts = reading.whole(mini, "global_batch_size") or 256
    reading.put("global_batch_size", prompts * (fields.get("answers") or 1), mini, f"{_ROLLOUT}.n")
    each = reading.whole(f"{_ACTOR}.ppo_micro_batch_size")
    if each and "nodes" in fields and "devices_per_node" in fields:
        # An older word, of all devices together (workers/fsdp_workers.py).
        ranks = fields["nodes"] * fields["devices_per_node"] // (fields.get("cp") or 1)
        fields["micro_batch_size"] = reading.kept["micro_batch_size"] = max(1, each // ranks)
    if truth(reading.get(f"{_ACTOR}.use_dynamic_bsz")):
        tokens = reading.whole(f"{_ACTOR}.ppo_max_token_len_per_gpu") or 16384
        packed(reading, tokens * (fields.get("cp") or 1))


def rollout(reading: Reading) -> None:
    """Engines with devices of their own."""
    fields = reading.fields
    fields["prompts"] = _streamed(reading) or fields.get("prompts")
    if _started(reading, "one_step_off", "fully_async"):
        nodes, each = reading.whole("rollout.nnodes") or 1, reading.whole("rollout.n_gpus_per_node") or 8
        fields |= {"training.rollout.devices": nodes * each, "training.rollout.behind": 1}
        reading.note(f"{nodes} x {each} devices generate, beside those of the training, which the cluster here has")


def _streamed(reading: Reading) -> int:
    """Prompts between two refits of engines that never wait (fully_async_rollouter.py); 0: they do."""
    names = {f"{_ACTOR}.ppo_mini_batch_size": 256}
    names |= {"async_training.require_batches": 1, "async_training.trigger_parameter_sync_step": 4}
    counts = (reading.whole(name) or otherwise for name, otherwise in names.items())
    return prod(counts) if _started(reading, "fully_async") else 0


def length(reading: Reading) -> dict[str, int]:
    """The end of a trial by prompts, in place of steps: of the steps that the table says."""
    prompts = _streamed(reading)
    return {"rollout.total_rollout_steps": 6 * prompts, "rollout.test_freq": 10**9} if prompts else {}
