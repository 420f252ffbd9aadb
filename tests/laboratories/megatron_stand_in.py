"""Stands in for Megatron-LM's pretrain_gpt.py: prints the lines of its log, and trains nothing.

The lines are those of training_log in megatron/training/training.py and of report_memory in
megatron/training/utils/common_utils.py of NVIDIA/Megatron-LM at d98e8a64. The time of a step follows from the plan's
arguments, so that a campaign has something to find: recomputation costs a third, a pipeline its bubble."""

from __future__ import annotations

import os
import sys
import time

MEMORY_MB = 20_000.0


def value(name: str, default: int) -> int:
    words = sys.argv
    return int(words[words.index(name) + 1]) if name in words else default


def step_time_s() -> float:
    pp, micro = value("--pipeline-model-parallel-size", 1), value("--micro-batch-size", 1)
    tp = value("--tensor-model-parallel-size", 1)
    rounds = max(1, value("--global-batch-size", 1) * tp * pp // (int(os.environ["WORLD_SIZE"]) * micro))
    recompute = 4 / 3 if "--recompute-granularity" in sys.argv else 1.0
    return 0.02 * recompute * (1 + 0.1 * (tp - 1)) * (rounds + pp - 1) / rounds


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    steps, batch, step_s = value("--train-iters", 10), value("--global-batch-size", 1), step_time_s()
    for iteration in range(1, steps + 1):
        time.sleep(step_s)
        if iteration == 1:
            told = f"allocated: {MEMORY_MB / 2:.2f} | max allocated: {MEMORY_MB:.2f} | reserved: {MEMORY_MB + 512:.2f}"
            say(f"[Rank {rank}] (after {iteration} iterations) memory (MB) | {told} | max reserved: 0.00")
        if rank == world - 1:
            say(
                f" [2026-01-01 00:00:00.000000] iteration {iteration:8d}/{steps:8d} |"
                f" consumed samples: {iteration * batch:12d} |"
                f" elapsed time per iteration (ms): {step_s * 1000.0:.1f} |"
                f" throughput per GPU (TFLOP/s/GPU): {123.4:.1f} | learning rate: {1e-4:.6E} |"
                f" global batch size: {batch:5d} | lm loss: {8.0 - iteration / 100:.6E} | loss scale: {1.0:.1f} |"
                f" grad norm: {2.5:.3f} | number of skipped iterations: {0:3d} | number of nan iterations: {0:3d} |"
            )


if __name__ == "__main__":
    main()
