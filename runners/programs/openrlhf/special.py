"""What no row of OpenRLHF's table can say: the release, and what a step of reinforcement learning is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshtune.runners.programs.reading import Reading, truth
from meshtune.runners.programs.recipes import packed

_ROLLOUT = "training.rollout"
_ANSWERS = ("rollout.max_new_tokens", "max_new_tokens", "generate_max_len")


def kind(reading: Reading) -> str:
    """Of 0.10 and later the flags have dots."""
    dotted = any(isinstance(value, Mapping) for value in reading.given.values())
    return ("ppo_" if reading.script.endswith("ppo_ray") else "") + ("dotted" if dotted else "flat")


def _whole(reading: Reading, otherwise: int, *names: str) -> int:
    """A count, by one of its names."""
    return reading.whole(reading.first(names)) or otherwise


def lengths(reading: Reading) -> None:
    """Of a prompt, its answer and both: until 0.9.0 by the two, 1,024 tokens each unless said; since by their sum,
    which an answer may fill up, and half of which is taken for the prompt."""
    prompt, answer = _whole(reading, 0, "prompt_max_len"), _whole(reading, 0, *_ANSWERS)
    both = _whole(reading, (prompt or 1024) + (answer or 1024), "data.max_len", "max_len")
    answer = min(answer or both - (prompt or both // 2), both - 1)
    reading.fields |= {"model.seq_len": both, f"{_ROLLOUT}.prompt_tokens": both - answer}
    reading.fields[f"{_ROLLOUT}.answer_tokens"] = answer


def dynamic(reading: Reading) -> None:
    """Passes of so many tokens of a device (utils/seqlen_balancing.py), whatever a micro-batch's rows."""
    if truth(reading.get(reading.first(("train.dynamic_batch_enable", "use_dynamic_batch")))):
        tokens = _whole(reading, 16192, "train.max_tokens_per_gpu", "train_max_tokens_per_gpu")
        scored = _whole(reading, tokens, "rollout.max_tokens_per_gpu", "rollout_max_tokens_per_gpu")
        tp, cp = (reading.fields.get(name) or 1 for name in ("tp", "cp"))
        reading.fields |= {f"{_ROLLOUT}.update_tokens": tokens * tp, f"{_ROLLOUT}.log_prob_tokens": scored * tp}
        packed(reading, tokens * tp * cp)


def rollout(reading: Reading) -> None:
    """Devices of engines that do not share those of the training."""
    fields = reading.fields
    if fields.get(f"{_ROLLOUT}.behind") or not truth(
        reading.get(reading.first(("train.colocate_all", "colocate_all_models")))
    ):
        engines = _whole(reading, 1, "vllm.num_engines", "vllm_num_engines")
        fields[f"{_ROLLOUT}.devices"] = devices = engines * (fields.get(f"{_ROLLOUT}.tp") or 1)
        reading.note(f"{devices} more devices are those of the engines: the cluster here has the actor's alone")


def samples(reading: Reading) -> dict[str, Any]:
    """Prompts of a trial: of the steps that the table says; where some are left out, four times as many."""
    drawn = 4 if truth(reading.get(reading.first(("algo.dynamic_filtering_enable", "dynamic_filtering")))) else 1
    name = "data.max_samples" if kind(reading) == "ppo_dotted" else "max_samples"
    return {name: 6 * drawn * (reading.fields.get("prompts") or 1)}
