"""Stands in for verl's main_ppo.py and NeMo-RL's run_grpo.py, as whose file of that name a test copies it: the same
words in, a log in the form of the real one out, with a planted cost in place of devices, models and data.

It does not train, and waits for none of the seconds that it prints: what reads its log believes the printed numbers.
The form of verl's log: verl/utils/logger/aggregate_logger.py (concat_dict_to_str), verl/trainer/ppo/metric_utils.py and
ray_trainer.py at b178a3cd, behind Ray's name of a process. Of NeMo-RL's: nemo_rl/algorithms/grpo.py and utils.py
(print_performance_metrics) at 7ea279ab. vLLM's error: vllm/v1/core/kv_cache_utils.py.

The planted device has 80 GB; the model has the sizes of Qwen2-7B. Each phase's seconds follow from how much it reads or
computes; an engine has as many answers in flight as its part of the memory holds, and computes again what it puts off.
"""

from __future__ import annotations

import math
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

GB = 1e9
DEVICE = 80 * GB
WEIGHTS, LAYERS, KV_VALUES, VOCABULARY = 7.6e9, 28, 2 * 4 * 128, 152_000
# Bytes of keys and values of a token; of a layer's inputs that recomputation keeps, and all that it does not.
KV, KEPT, WHOLE = LAYERS * KV_VALUES * 2, LAYERS * 3584 * 2, LAYERS * 3584 * 34
# Bytes a second from memory, products a second, both as they are reached; bytes a second to the host.
READ, PRODUCTS, TO_HOST = 2.2e12, 4.5e14, 40e9
# What graphs, contexts and libraries take.
ASIDE = 4 * GB
# Of the keys of examples/configs/grpo_math_1B.yaml at 7ea279ab those that are read or set.
NEMO_RL = {
    "grpo": {
        "num_prompts_per_step": 32, "num_generations_per_prompt": 16, "max_num_steps": 1000, "val_period": 10,
        "val_at_start": False, "async_grpo": {"enabled": False, "max_trajectory_age_steps": 1},
    },
    "loss_fn": {"reference_policy_kl_penalty": 0.01},
    "checkpointing": {"enabled": True, "checkpoint_dir": "results/grpo"},
    "policy": {
        "model_name": "Qwen/Qwen3-8B", "train_global_batch_size": 512, "train_micro_batch_size": 1,
        "logprob_batch_size": 1, "max_total_sequence_length": 512, "precision": "bfloat16",
        "dtensor_cfg": {
            "enabled": True, "activation_checkpointing": False, "tensor_parallel_size": 1, "context_parallel_size": 1,
        },
        "megatron_cfg": {"enabled": False},
        "sequence_packing": {"enabled": False},
        "generation": {
            "backend": "vllm", "max_new_tokens": 256, "colocated": {"enabled": True}, "vllm_kwargs": {},
            "vllm_cfg": {"tensor_parallel_size": 1, "gpu_memory_utilization": 0.6, "enforce_eager": False},
        },
    },
    "logger": {"log_dir": "logs", "wandb_enabled": True, "tensorboard_enabled": False},
    "cluster": {"gpus_per_node": 1, "num_nodes": 1},
}  # fmt: skip


class OutOfMemory(Exception):
    """phase: of the step."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """devices: of the training, which an engine shares. rows: of a step. share: of the device's memory. micro,
    log_prob_rows: rows of a pass on one device. pass_tokens: of an update's pass, where rows are packed; 0: by rows.
    split: the training's tensor-parallel devices."""

    devices: int
    rows: int
    prompt: int
    answer: int
    tp: int
    share: float
    max_rows: int
    eager: bool
    micro: int
    log_prob_rows: int
    pass_tokens: int = 0
    log_prob_tokens: int = 0
    recompute: bool = True
    weights_leave: bool = False
    optimizer_leaves: bool = False
    sleeps: bool = True
    fused: bool = False
    reference: bool = False
    split: int = 1

    @property
    def state(self) -> float:
        """Bytes of weights in float32, on each device."""
        return 4 * WEIGHTS / self.devices

    def held(self) -> int:
        """Answers whose keys and values an engine holds. Raises ValueError where it holds not one."""
        room = self.share * DEVICE - 2 * WEIGHTS / self.tp - (0 if self.eager else 1 * GB)
        if (held := int(room * self.tp / (KV * (self.prompt + self.answer)))) < 1:
            raise ValueError(
                "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
                "the engine."
            )
        # Most answers are shorter than the longest.
        return 2 * held

    def check_generation(self) -> None:
        stays = (0 if self.weights_leave else self.state) + (0 if self.optimizer_leaves else 2 * self.state)
        if self.share * DEVICE + stays + ASIDE > DEVICE:
            raise OutOfMemory("rollout")

    def check_update(self) -> float:
        """The peak of the training's process, in bytes."""
        tokens = (self.pass_tokens or self.micro * (self.prompt + self.answer)) / self.split
        kept = (KEPT + WHOLE / LAYERS) if self.recompute else WHOLE
        peak = 4 * self.state + tokens * (kept + (8 * 3584 if self.fused else 8 * VOCABULARY))
        if peak + ASIDE + (0 if self.sleeps else self.share * DEVICE) > DEVICE:
            raise OutOfMemory("update_actor")
        tokens = self.log_prob_tokens or self.log_prob_rows * (self.prompt + self.answer)
        if self.state + tokens * (8 * 3584 if self.fused else 6 * VOCABULARY) + ASIDE > DEVICE:
            raise OutOfMemory("compute_log_prob")
        return peak

    def seconds(self, step: int) -> tuple[dict[str, float], int]:
        """Of each phase of a step, and the step's tokens. Lengths differ by step, and not between settings."""
        mean = 0.5 * (1 + 0.1 * random.Random(step).uniform(-1, 1)) * self.answer
        tokens = int(self.rows * (self.prompt + mean))
        each, held = math.ceil(self.rows * self.tp / self.devices), self.held()
        flight = min(self.max_rows, held, each)
        decode = 2 * WEIGHTS / self.tp / READ + flight * KV * (self.prompt + mean) / self.tp / READ
        decode += (0.02 if self.eager else 0.004) + 0.0015 * math.log2(self.tp) * LAYERS / 28
        wanted = min(self.max_rows, each)
        again = 1 + 0.5 * (1 - held / wanted) if wanted > held else 1.0
        generation = math.ceil(each / flight) * mean * decode * again

        def passes(products: float, of: float) -> float:
            sent = 1 + 0.1 * math.log2(self.split)
            return sent * products * WEIGHTS * tokens / (self.devices * PRODUCTS) * (1 + 3000 / of)

        log_prob = passes(2, self.log_prob_tokens or self.log_prob_rows * (self.prompt + mean))
        update = passes(8 if self.recompute else 6, self.pass_tokens or self.micro * (self.prompt + mean))
        moved = (2 * self.state if self.weights_leave else 0) + (4 * self.state if self.optimizer_leaves else 0)
        found = {"gen": generation, "reward": 0.3, "old_log_prob": log_prob}
        found |= {"ref": log_prob} if self.reference else {}
        found |= {"adv": 0.1, "update_actor": update + moved / TO_HOST, "update_weights": 2 * WEIGHTS / TO_HOST}
        return found, tokens


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def truth(text: str) -> bool:
    return text.lower() == "true"


def verl(words: list[str]) -> None:
    """`python3 -m verl.trainer.main_ppo a.b=value ...`: an unknown key is hydra's error."""
    given = {name.lstrip("+"): value for name, _, value in (word.partition("=") for word in words)}
    given = {name: value.strip("'\"") for name, value in given.items()}
    known = ("data.", "algorithm.", "actor_rollout_ref.", "trainer.", "critic.", "reward_model.", "custom_reward_")
    for name in given:
        if not name.startswith(known):
            sys.exit(f"Could not override '{name}'.\nKey '{name.partition('.')[0]}' is not in struct")

    def number(name: str, default: str) -> int:
        return int(given.get(name, default))

    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    answers, devices = (
        number(f"{rollout}.n", "1"),
        number("trainer.nnodes", "1") * number("trainer.n_gpus_per_node", "8"),
    )
    dynamic = truth(given.get(f"{actor}.use_dynamic_bsz", "False"))
    update_tokens = number(f"{actor}.ppo_max_token_len_per_gpu", "16384") if dynamic else 0
    tokens = number(f"{rollout}.log_prob_max_token_len_per_gpu", str(update_tokens)) if dynamic else 0
    if not dynamic and f"{rollout}.log_prob_micro_batch_size_per_gpu" not in given:
        raise ValueError(f"[{rollout}] Please set at least one of '{rollout}.log_prob_micro_batch_size' or "
                         f"'{rollout}.log_prob_micro_batch_size_per_gpu'.")  # fmt: skip
    tp = number(f"{rollout}.tensor_model_parallel_size", "2")
    assert devices % tp == 0, f"rollout world_size: {devices} is not divisible by infer_world_size: {tp}"
    prompts = number("data.train_batch_size", "1024")
    longest = number("data.max_prompt_length", "512") + number("data.max_response_length", "512")
    setting = Setting(
        devices=devices,
        rows=prompts * answers,
        prompt=number("data.max_prompt_length", "512"),
        answer=number("data.max_response_length", "512"),
        tp=tp,
        share=float(given.get(f"{rollout}.gpu_memory_utilization", "0.5")),
        max_rows=number(f"{rollout}.max_num_seqs", "256"),
        eager=truth(given.get(f"{rollout}.enforce_eager", "False")),
        micro=number(f"{actor}.ppo_micro_batch_size_per_gpu", "1"),
        log_prob_rows=number(f"{rollout}.log_prob_micro_batch_size_per_gpu", "1"),
        pass_tokens=update_tokens,
        log_prob_tokens=tokens,
        recompute=truth(given.get("actor_rollout_ref.model.enable_gradient_checkpointing", "True")),
        weights_leave=truth(given.get(f"{actor}.fsdp_config.param_offload", "False")),
        optimizer_leaves=truth(given.get(f"{actor}.fsdp_config.optimizer_offload", "False")),
        sleeps=truth(given.get(f"{rollout}.free_cache_engine", "True")),
        fused=truth(given.get("actor_rollout_ref.model.use_fused_kernels", "False")),
        reference=any(truth(given.get(name, "")) for name in (f"{actor}.use_kl_loss", "algorithm.use_kl_in_reward")),
    )
    assert not dynamic or min(update_tokens, tokens) >= longest, (
        f"max_token_len must be greater than the sequence length. Got max_token_len={update_tokens} and "
        f"max_seq_len=tensor({longest})"
    )
    process = "(TaskRunner pid=4242)"
    write(f"{process} Total training steps: {given.get('trainer.total_training_steps')}")
    setting.held()
    for step in range(1, number("trainer.total_training_steps", "4") + 1):
        setting.check_generation()
        peak = setting.check_update()
        seconds, tokens = setting.seconds(step)
        whole = sum(seconds.values())
        metrics: dict[str, object] = {
            "global_seqlen/min": tokens // devices - 200,
            "global_seqlen/mean": tokens / devices,
            "actor/entropy": 0.41,
            "actor/pg_loss": "np.float64(-0.0031)",
            "actor/grad_norm": "np.float64(0.27)",
            "perf/mfu/actor": "np.float64(0.31)",
            "perf/max_memory_allocated_gb": f"np.float64({peak / 2**30})",
            "perf/max_memory_reserved_gb": f"np.float64({peak / 2**30 + 1})",
            "perf/cpu_memory_used_gb": "np.float64(211.4)",
            "actor/lr": "np.float64(1e-06)",
            "training/global_step": step,
            "training/epoch": 0,
            "critic/score/mean": 0.52,
            "response_length/mean": tokens / setting.rows - setting.prompt,
            "response_length/clip_ratio": 0.03,
            "prompt_length/mean": float(setting.prompt),
            "timing_s/generate_sequences": 0.9 * seconds["gen"],
            **{f"timing_s/{name}": value for name, value in seconds.items()},
            "timing_s/step": whole,
            "timing_s/stop_profile": 9.5e-05,
            "timing_per_token_ms/update_actor": seconds["update_actor"] * 1000 / tokens,
            "timing_per_token_ms/gen": seconds["gen"] * 1000 / tokens,
            "perf/total_num_tokens": tokens,
            "perf/time_per_step": whole,
            "perf/throughput": tokens / (whole * devices),
        }
        told = " - ".join([f"step:{step}", *(f"{name}:{value}" for name, value in metrics.items())])
        write(f"{process} {told}")


def read_config(path: Path) -> dict[str, Any]:
    """As nemo_rl/utils/config.py reads it, without references."""
    own = yaml.safe_load(path.read_text())
    below = own.pop("defaults", None)
    return laid_over(read_config(path.parent / below), own) if below else own


def laid_over(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = {key: laid_over(base[key], over[key]) for key in base.keys() & over.keys() if isinstance(base[key], dict)}
    return {**base, **over, **both}


def nemo_rl(words: list[str]) -> None:
    """`uv run examples/run_grpo.py --config FILE a.b=value ...`: a key that the file has not, and no `++` adds, is
    hydra's error."""
    at = words.index("--config")
    config = read_config(Path(words[at + 1]))
    for word in (*words[:at], *words[at + 2 :]):
        name, _, text = word.partition("=")
        *sections, last = name.lstrip("+").split(".")
        place = config
        for section in sections:
            place = place.setdefault(section, {}) if name.startswith("++") else place.get(section, {})
        if last not in place and not name.startswith("++"):
            sys.exit(
                f"nemo_rl.utils.config.OverridesError: Failed to parse Hydra overrides: Could not override '{name}'."
            )
        place[last] = yaml.safe_load(text)
    policy, grpo, cluster = config["policy"], config["grpo"], config["cluster"]
    engine, training = policy["generation"]["vllm_cfg"], policy["dtensor_cfg"]
    devices = cluster["num_nodes"] * cluster["gpus_per_node"]
    assert devices % (engine["tensor_parallel_size"] * training["tensor_parallel_size"]) == 0, "world size"
    longest, answer = policy["max_total_sequence_length"], policy["generation"]["max_new_tokens"]
    setting = Setting(
        devices=devices,
        rows=grpo["num_prompts_per_step"] * grpo["num_generations_per_prompt"],
        prompt=longest - answer,
        answer=answer,
        tp=engine["tensor_parallel_size"],
        share=engine["gpu_memory_utilization"],
        max_rows=policy["generation"]["vllm_kwargs"].get("max_num_seqs", 256),
        eager=engine["enforce_eager"],
        micro=policy["train_micro_batch_size"],
        log_prob_rows=policy["logprob_batch_size"],
        recompute=training["activation_checkpointing"],
        weights_leave=True,
        optimizer_leaves=True,
        reference=config["loss_fn"]["reference_policy_kl_penalty"] > 0,
        split=training["tensor_parallel_size"],
    )
    write(f"Loaded configuration from: {words[at + 1]}")
    setting.held()
    for step in range(1, grpo["max_num_steps"] + 1):
        write(f"\n{'=' * 25} Step {step}/{grpo['max_num_steps']} {'=' * 25}")
        write(f"▶ Generating responses for batch of size {setting.rows}...")
        setting.check_generation()
        setting.check_update()
        found, tokens = setting.seconds(step)
        phases = {
            "prepare_for_generation/total": found["update_weights"],
            "generation": found["gen"],
            "reward_calculation": found["reward"],
            "policy_and_reference_logprobs": found["old_log_prob"] + found.get("ref", 0),
            "policy_training": found["update_actor"],
        }
        whole = sum(phases.values()) + 0.4
        write(f"\n📊 Training Results:\n  • Loss: {0.01 * step:.4f}\n  • Avg Reward: 0.4100")
        write(f"\n⏱️  Timing:\n  • Total step time: {whole:.2f}s")
        for name, seconds in sorted(phases.items(), key=lambda item: item[1], reverse=True):
            write(f"  • {name}: {seconds:.2f}s ({seconds / whole * 100:.1f}%)")
        write("\n🔍 Performance Metrics:")
        write(f"  • Mean Total Tokens per Sample: {tokens / setting.rows:.2f}")


# Of Ray's report of a worker's error, the frames that say in which phase it was.
_FRAMES = {
    "update_actor": (
        ("/verl/workers/fsdp_workers.py", 900, "update_actor", "metrics = self.actor.update_policy(data=data)"),
        ("/verl/workers/actor/dp_actor.py", 655, "update_policy", "loss.backward()"),
    ),
    "compute_log_prob": (
        ("/verl/workers/fsdp_workers.py", 1013, "compute_log_prob", "outputs = self.actor.compute_log_prob(data=data)"),
        ("/verl/workers/actor/dp_actor.py", 457, "compute_log_prob", "outputs = self._forward_micro_batch("),
    ),
    "rollout": (
        ("/verl/workers/fsdp_workers.py", 744, "rollout_mode", 'await self.rollout.resume(tags=["weights"])'),
        ("/vllm/device_allocator/cumem.py", 225, "wake_up", "create_and_map(handle)"),
    ),
}


def out_of_memory(phase: str) -> None:
    """Ends as a driver does whose worker ran out of memory."""
    lines = ["Error executing job with overrides: []", "Traceback (most recent call last):"]
    for file, line, function, text in _FRAMES[phase]:
        lines += [f'  File "{file}", line {line}, in {function}', f"    {text}"]
    lines.append(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.28 GiB. GPU 0 has a total capacity of 79.11 "
        "GiB of which 3.02 GiB is free."
    )
    sys.exit("\n".join(lines))


if __name__ == "__main__":
    programs = {"main_ppo": verl, "run_grpo": nemo_rl}
    try:
        programs[Path(__file__).stem](sys.argv[1:])
    except OutOfMemory as error:
        out_of_memory(str(error))
