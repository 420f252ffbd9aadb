"""Stands in for openrlhf.cli.train_ppo_ray: takes its flags, prints the lines of its log, and trains nothing.

Flags and what it refuses are those of openrlhf/cli/train_ppo_ray.py, lines those of PPOTrainer.fit in
openrlhf/trainer/ppo_trainer.py in the form of openrlhf/utils/logging_utils.py, OpenRLHF at 3c3be623, behind the tag
that Ray gives a line of an actor. The seconds are planted, not waited for: a step is a generation (rounds of as many
rows as an engine's keys and values have room for), a pass of log-probabilities for each micro-batch, updates, and what
sleeping engines and states copy. Memory is that of the fullest phase, in GB."""

from __future__ import annotations

import argparse
import sys
from math import ceil

DEVICE_GB, WEIGHTS_GB = 80.0, 16.0
# Of a row: keys and values; and of each in a pass of the update, and of log-probabilities.
CACHE_GB, UPDATE_GB, SCORED_GB = 0.25, 3.0, 1.0


def parsed(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name, default in {
        "ref.num_nodes": 1, "ref.num_gpus_per_node": 8, "actor.num_nodes": 1, "actor.num_gpus_per_node": 8,
        "vllm.num_engines": 0, "vllm.tensor_parallel_size": 1, "ds.zero_stage": 2, "rollout.batch_size": 1024,
        "rollout.micro_batch_size": 1, "rollout.n_samples_per_prompt": 1, "train.micro_batch_size": 1,
        "train.batch_size": 128, "train.max_epochs": 1, "train.num_episodes": 1, "data.max_len": 2048,
        "data.max_samples": 100_000_000, "ckpt.save_steps": -1, "eval.steps": -1,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in (
        "train.colocate_all", "vllm.enforce_eager", "vllm.enable_sleep", "vllm.enable_prefix_caching",
        "ds.enable_sleep", "ds.adam_offload", "actor.gradient_checkpointing_enable", "ds.packing_samples",
    ):  # fmt: skip
        parser.add_argument(f"--{name}", action="store_true")
    for name in (
        "actor.model_name_or_path", "reward.remote_url", "data.prompt_dataset", "ckpt.output_dir", "ckpt.path",
        "algo.advantage.estimator", "ds.param_dtype",
    ):  # fmt: skip
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--vllm.gpu_memory_utilization", type=float, default=0.95)
    parser.add_argument("--algo.kl.init_coef", type=float, default=0.01)
    return parser.parse_args(words)


def phases_s(args: dict[str, float], devices: int) -> dict[str, float]:
    """Raises MemoryError with the phase that does not fit."""
    tp, share = int(args["vllm.tensor_parallel_size"]), args["vllm.gpu_memory_utilization"]
    sleeps, states_leave = args["vllm.enable_sleep"], args["ds.enable_sleep"] or args["ds.adam_offload"]
    rows = int(args["rollout.batch_size"] * args["rollout.n_samples_per_prompt"])
    trained = WEIGHTS_GB / devices
    states = 0.0 if states_leave else 6 * trained
    engine = share * DEVICE_GB
    room = (engine - WEIGHTS_GB / tp - 2) * tp / CACHE_GB
    if room < 1 or engine + trained + states > DEVICE_GB:
        raise MemoryError("PolicyModelActor.execute_batch" if room >= 1 else "LLMRayActor.__init__")
    micro, scored = int(args["train.micro_batch_size"]), int(args["rollout.micro_batch_size"])
    update = (0 if args["ds.adam_offload"] else 6 * trained) + trained + micro * UPDATE_GB
    update += (2 if sleeps else engine) + scored * SCORED_GB / 4
    if update > DEVICE_GB or scored * SCORED_GB + (2 if sleeps else engine) + trained + states > DEVICE_GB:
        raise MemoryError("PolicyModelActor.fit")
    rounds = ceil(rows / (devices / tp) / min(room, 256))
    generation = rounds * 30 * (1 / tp + 0.1 * (tp - 1)) * (1 if not args["vllm.enforce_eager"] else 1.5)
    each = ceil(rows / devices)
    return {
        "make_experience": ceil(each / scored) * (0.2 + 0.05 * scored),
        "ppo_train": ceil(each / micro) * (0.5 + 0.15 * micro) + (20 if args["ds.adam_offload"] else 0),
        "broadcast": 2.0 + 4 * sleeps + 6 * args["ds.enable_sleep"],
        "generation": generation,
    }


def main() -> None:
    args = vars(parsed(sys.argv[1:]))
    devices = args["actor.num_nodes"] * args["actor.num_gpus_per_node"]
    engines = args["vllm.num_engines"] * args["vllm.tensor_parallel_size"]
    assert not args["train.colocate_all"] or devices == engines, (
        "actor_num_nodes * actor_num_gpus_per_node must be equal to vllm_num_engines * vllm_tensor_parallel_size, got "
        f"{devices} and {engines}"
    )
    try:
        seconds = phases_s(args, devices)
    except MemoryError as error:
        sys.exit(
            f"ray.exceptions.RayTaskError(OutOfMemoryError): \x1b[36mray::{error}()\x1b[39m (pid=7, ip=10.0.0.1)\n"
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "79.10 GiB of which 1.02 GiB is free."
        )
    prompts = min(args["data.max_samples"], 8 * args["rollout.batch_size"])
    for step in range(1, prompts // args["rollout.batch_size"] + 1):
        # As rollouts have other lengths; the first one is slow.
        slower = (1 + 0.01 * (step % 3)) * (1.5 if step == 1 else 1)
        timing = {f"timing/{name}": each * slower for name, each in seconds.items()}
        status = {
            "policy_loss": -0.01,
            "actor_lr": 5e-07,
            "reward": 0.4,
            "rollout/response_length_mean": 700.0,
        } | timing
        status["timing/step_total"] = sum(timing.values())
        sys.stdout.write(
            f"\x1b[36m(PPOTrainer pid=42)\x1b[0m INFO 11-29 10:00:{step:02d} ppo_trainer.py:520] "
            f"✨ Global step {step}: {status}\n"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
