"""What no row of OpenRLHF's table can say: the release, and what a step of reinforcement learning is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshtune.runners.programs.reading import Reading, truth
from meshtune.runners.programs.recipes import companion
from meshtune.runners.programs.table import table_of

_ROLLOUT = "training.rollout"
# Of dynamic filtering: prompts that are drawn for each that is kept.
_FILTERED = 4


def kind(reading: Reading) -> str:
    """Of 0.10 and later the flags have dots."""
    dotted = any(isinstance(value, Mapping) for value in reading.given.values())
    if reading.script.endswith("ppo_ray"):
        return "ppo" if dotted else "ppo_flat"
    return "dotted" if dotted else "flat"


def _on(reading: Reading, *names: str) -> bool:
    return truth(reading.get(reading.first(names)) or False) is not False


def _whole(reading: Reading, otherwise: int, *names: str) -> int:
    """A count by one of the names, of this release or before."""
    return reading.whole(reading.first(names) or names[0]) or otherwise


def lengths(reading: Reading) -> None:
    """Of a prompt and its answer in all, and of each: until 0.9.0 by the two, 1,024 tokens unless said, and since by their
    sum, 2,048 unless said, which an answer may fill up."""
    prompt, answer = (reading.whole(name) for name in ("prompt_max_len", "generate_max_len"))
    said = _whole(reading, (prompt or 1024) + (answer or 1024), "data.max_len", "max_len")
    answer = answer or reading.whole(reading.first(("rollout.max_new_tokens", "max_new_tokens")))
    answer = min(answer or said - (prompt or said // 2), said - 1)
    reading.fields |= {
        "model.seq_len": said,
        f"{_ROLLOUT}.prompt_tokens": said - answer,
        f"{_ROLLOUT}.answer_tokens": answer,
    }


def dynamic(reading: Reading) -> None:
    """Passes of so many tokens, in which rows of a micro-batch count for nothing."""
    if not _on(reading, "train.dynamic_batch_enable", "use_dynamic_batch"):
        return
    update = _whole(reading, 16192, "train.max_tokens_per_gpu", "train_max_tokens_per_gpu")
    scored = _whole(reading, update, "rollout.max_tokens_per_gpu", "rollout_max_tokens_per_gpu")
    reading.fields |= {f"{_ROLLOUT}.update_tokens": update, f"{_ROLLOUT}.log_prob_tokens": scored}
    rows = max(1, update // reading.fields["model.seq_len"])
    reading.fields["micro_batch_size"] = reading.kept["micro_batch_size"] = rows
    reading.note(f"a pass takes {update} tokens, however many rows: {rows} of full length are counted")


def _rows(reading: Reading) -> int:
    """Of a rollout."""
    answers = _whole(reading, 1, "rollout.n_samples_per_prompt", "n_samples_per_prompt")
    return _whole(reading, 1024, "rollout.batch_size", "rollout_batch_size") * answers


def updates(reading: Reading) -> None:
    """Optimizer steps of a rollout; the devices of its engines, where they are not those of the training; and how far it
    runs ahead (ppo_trainer_async.py: as many batches as the queue holds)."""
    epochs, batch = _whole(reading, 1, "train.max_epochs", "max_epochs"), reading.fields.get("global_batch_size") or 1
    reading.fields[f"{_ROLLOUT}.updates"] = max(1, _rows(reading) // batch) * epochs
    ahead = _on(reading, "train.async_enable", "async_train")
    together = _on(reading, "train.colocate_all", "colocate_all_models")
    reading.fields[f"{_ROLLOUT}.behind"] = ahead * _whole(reading, 1, "train.async_queue_size", "async_queue_size")
    if together and not ahead:
        return
    engines = _whole(reading, 1, "vllm.num_engines", "vllm_num_engines")
    of_engines = engines * _whole(reading, 1, "vllm.tensor_parallel_size", "vllm_tensor_parallel_size")
    reading.fields[f"{_ROLLOUT}.devices"] = of_engines
    told = "" if together else ", and other models where no flag colocates them"
    reading.note(f"{of_engines} more devices are those of the engines{told}; the cluster's are the actor's")


def beside(reading: Reading) -> None:
    """A reference unless the coefficient of its distance is 0, a reward model unless it is remote, and a value model where
    advantages are estimated by one."""
    by = reading.get(reading.first(("algo.advantage.estimator", "advantage_estimator"))) or "gae"
    remote = ("reward.remote_url", "remote_rm_url", "train.agent_func_path", "agent_func_path")
    reward = reading.first(("reward.model_name_or_path", "reward_pretrain"))
    critic = reading.first(("critic.model_name_or_path", "critic_pretrain"))
    base = reading.fields.get("method") == "lora"
    coefficient = reading.get(reading.first(("algo.kl.init_coef", "init_kl_coef")))
    found: list[dict[str, Any]] = []
    if coefficient is None or float(coefficient) > 0:
        found.append({"role": "reference", **({"bits": 0} if base else {})})
    if reward and not reading.has(*remote):
        found.append(companion(reading, "reward", reward))
    if by == "gae":
        found.append(companion(reading, "value", critic or ("" if reading.has(*remote) else reward)))
    reading.fields["training.beside"] = found


def samples(reading: Reading) -> dict[str, Any]:
    """Prompts of a trial: those of its steps."""
    steps = table_of(__package__).lists["variants"][kind(reading)]["command"]["steps"]
    drawn = _FILTERED if _on(reading, "algo.dynamic_filtering_enable", "dynamic_filtering") else 1
    name = "data.max_samples" if kind(reading) == "ppo" else "max_samples"
    return {name: steps * drawn * _whole(reading, 1024, "rollout.batch_size", "rollout_batch_size")}
